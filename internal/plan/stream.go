// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxStreamLine bounds one line of a stream. Lines carry addresses and messages,
// no values; a diagnostic with a snippet is the longest of them.
const maxStreamLine = 8 << 20

// streamMessage is the part of a line of machine-readable output that tells of a plan.
type streamMessage struct {
	Type    string                  `json:"type"`
	Change  *streamChange           `json:"change"`
	Outputs map[string]streamOutput `json:"outputs"`
}

type streamChange struct {
	Resource         streamResource  `json:"resource"`
	PreviousResource *streamResource `json:"previous_resource"`
	Action           string          `json:"action"`
	Reason           string          `json:"reason"`
	Importing        *struct {
		ID string `json:"id"`
	} `json:"importing"`
}

type streamResource struct {
	Addr            string `json:"addr"`
	Resource        string `json:"resource"`
	ImpliedProvider string `json:"implied_provider"`
	ResourceType    string `json:"resource_type"`
	ResourceName    string `json:"resource_name"`
}

type streamOutput struct {
	Sensitive bool   `json:"sensitive"`
	Action    string `json:"action"`
}

// FromStream makes a Plan of the messages that `tofu plan -json` prints or writes
// with -json-into: addresses and actions, no values and no fields. The digest
// covers these and in.Salt, which has to be the digest of the plan file; so it
// names that one file, and a second plan of the same content has another digest.
// Lines that are not messages of a plan are passed over; a line that is not JSON
// is an error, since the stream may have been cut.
func FromStream(r io.Reader, in Inputs) (*Plan, error) {
	if in.Salt == "" {
		return nil, errors.New("read plan stream: no digest of the plan file is given, and the stream holds no values")
	}
	p := &Plan{Revision: in.Revision, Branch: branch(in.Revision), Destroy: in.Destroy}
	c := newContent(in)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxStreamLine)
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if len(line) == 0 {
			continue
		}
		var m streamMessage
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, fmt.Errorf("read plan stream: line %d: not a message of the tool: %w", n, err)
		}
		switch {
		case m.Type == "planned_change" && m.Change != nil:
			ch := m.Change.change(false)
			p.Changes = append(p.Changes, ch)
			c.Resources = append(c.Resources, contentResource{
				Address: ch.Address, PreviousAddress: ch.PreviousAddress, Provider: ch.Provider,
				Actions: []string{m.Change.Action}, Importing: ch.ImportID,
			})
		case m.Type == "resource_drift" && m.Change != nil:
			p.Drift = append(p.Drift, m.Change.change(true))
		case m.Type == "outputs":
			for name, o := range m.Outputs {
				a := streamAction(o.Action)
				if a == ActionNoop {
					continue
				}
				p.Outputs = append(p.Outputs, OutputChange{Name: name, Action: a, Sensitive: o.Sensitive})
				c.Outputs = append(c.Outputs, contentOutput{Name: name, Actions: []string{o.Action}, AfterSensitive: o.Sensitive})
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read plan stream: %w", err)
	}
	return p.finish(c, in.Key)
}

func (s *streamChange) change(drift bool) Change {
	ch := Change{
		Address:  s.Resource.Addr,
		Mode:     "managed",
		Type:     s.Resource.ResourceType,
		Name:     s.Resource.ResourceName,
		Provider: s.Resource.ImpliedProvider,
		Action:   streamAction(s.Action),
		Reason:   s.Reason,
		Drift:    drift,
	}
	if s.Action == "read" {
		ch.Mode = "data"
	}
	if s.Action == "noop" && !drift {
		// The stream tells only of resources that change. OpenTofu 1.12 writes noop for the
		// one action it has no word for, to forget an object and to make it anew.
		ch.Action = ActionCreate
	}
	if s.PreviousResource != nil && s.PreviousResource.Addr != s.Resource.Addr {
		ch.PreviousAddress = s.PreviousResource.Addr
	}
	if s.Importing != nil {
		ch.ImportID = cmp.Or(s.Importing.ID, "(by identity)")
	}
	return ch
}

func streamAction(a string) Action {
	switch a {
	case "create", "update", "delete", "replace", "read":
		return Action(a)
	case "remove", "forget":
		return ActionForget
	}
	// "noop", and "move" and "import", which tell of nothing else.
	return ActionNoop
}
