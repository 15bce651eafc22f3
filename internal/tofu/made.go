// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"regexp"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/terrace-dev/terrace/internal/tofu/address"
)

// Made is a resource that an apply says it has created.
type Made struct {
	Address string
	// ID is the provider's, "" when the tool printed none.
	ID string
	// Replaced is the id of the one at the address that the apply destroyed before, "" for
	// none, or if the tool printed none.
	Replaced string
}

// ImportBlock is the block of a module that imports it. The error is of an address that is
// none.
func (m Made) ImportBlock() ([]byte, error) {
	a, err := address.Parse(m.Address)
	if err != nil {
		return nil, err
	}
	id := hclwrite.TokensForValue(cty.StringVal(m.ID)).Bytes()
	return fmt.Appendf(nil, "import {\n  to = %s\n  id = %s\n}\n", a, id), nil
}

// completion is how OpenTofu and Terraform say that a resource is done, and destroying that
// one is begun with (views/hook_ui.go of OpenTofu 1.12). What provisioners print has the
// address and their name before it.
var (
	completion = regexp.MustCompile(`^(\S.*): (Creation|Destruction) complete after [0-9hms.]+(?: \[(?:id=(.*)|[a-z]+=.*)\])?$`)
	destroying = regexp.MustCompile(`^(\S.*): Destroying\.\.\. \[id=(.*)\]$`)
)

// applyOutput is what apply leaves of its standard output when it is killed, or when
// Terrace is.
const applyOutput = "apply-*.out"

// MadeIn returns what the applies have made that were killed, or whose end Terrace did not
// see, as their output in the directory says that was their Session.Tmp.
func MadeIn(tmp string) ([]Made, error) {
	dir := os.DirFS(tmp)
	files, err := fs.Glob(dir, applyOutput)
	if err != nil {
		return nil, err
	}
	var made []Made
	for _, name := range files {
		f, err := dir.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read what an apply has made: %w", err)
		}
		var failed error
		made = append(made, MadeBy(linesOf(f, &failed))...)
		if err := errors.Join(failed, f.Close()); err != nil {
			return nil, fmt.Errorf("read what an apply has made: %w", err)
		}
	}
	return made, nil
}

// maxMadeLine bounds a line that is looked at, in bytes; those that are looked for hold an
// address and an id.
const maxMadeLine = 16 << 10

// linesOf goes through the lines that are not too long, without their ends.
func linesOf(r io.Reader, failed *error) iter.Seq[string] {
	return func(yield func(string) bool) {
		b := bufio.NewReaderSize(r, maxMadeLine)
		for {
			line, more, err := b.ReadLine()
			long := more
			for more && err == nil {
				_, more, err = b.ReadLine()
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				*failed = err
				return
			}
			if !long && !yield(string(line)) {
				return
			}
		}
	}
}

// MadeBy reads the lines that an apply printed and returns the resources that it had
// created by then, in their order, without those that it destroyed again. It is for an
// apply that was killed: the tool writes its state every 20 seconds and at its end, so
// that the state may not know of them.
func MadeBy(lines iter.Seq[string]) []Made {
	var order []string
	made, begun, gone := map[string]Made{}, map[string]string{}, map[string]string{}
	for line := range lines {
		if m := destroying.FindStringSubmatch(line); m != nil {
			begun[m[1]] = m[2]
			continue
		}
		m := completion.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := address.Parse(m[1])
		switch {
		case err != nil:
		case m[2] == "Destruction":
			delete(made, at.String())
			gone[at.String()] = begun[m[1]]
		default:
			if _, twice := made[at.String()]; !twice {
				order = append(order, at.String())
			}
			made[at.String()] = Made{Address: at.String(), ID: m[3], Replaced: gone[at.String()]}
		}
	}
	var out []Made
	for _, at := range order {
		if m, ok := made[at]; ok {
			out = append(out, m)
			delete(made, at)
		}
	}
	return out
}
