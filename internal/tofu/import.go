// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/terrace-dev/terrace/internal/tofu/address"
)

// MaxImportID bounds the id of an import, in bytes.
const MaxImportID = 2 << 10

// ImportOptions are what is imported, which must be given, and the choices of import.
type ImportOptions struct {
	// Address is the resource instance that takes the object over; see address.Parse.
	Address string
	// ID names the object as its provider does; see CheckImportID.
	ID string
	// VarFiles are paths, absolute or relative to Session.Dir.
	VarFiles []string
	// LockTimeout is a duration like "30s"; empty: do not wait.
	LockTimeout string
}

func (o ImportOptions) args() []string {
	a := args{"import", "-no-color", "-input=false"}
	a.each("-var-file=", o.VarFiles)
	a.text("-lock-timeout=", o.LockTimeout)
	// What follows is no flag, whatever it begins with.
	a.add("--", o.Address, o.ID)
	return a
}

// everywhere are arguments that the tools obey wherever they stand, also after "--".
var everywhere = []string{"-v", "-version", "--version"}

// CheckImportID says what is wrong with an id; what it means, the provider knows.
func CheckImportID(id string) error {
	switch {
	case id == "":
		return errors.New("import id: it is empty")
	case len(id) > MaxImportID:
		return fmt.Errorf("import id: it is longer than %d bytes", MaxImportID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return errors.New("import id: it has characters that no id has")
	case slices.Contains(everywhere, id):
		return fmt.Errorf("import id: the tool takes %s for a flag; use an import block", id)
	}
	return nil
}

// Import takes an object that exists into the state. Nothing in the world is changed. It
// fails where the state has an object at that address already.
func (s *Session) Import(ctx context.Context, o ImportOptions) error {
	if _, err := address.Parse(o.Address); err != nil {
		return err
	}
	if err := CheckImportID(o.ID); err != nil {
		return err
	}
	_, err := s.run(ctx, command{sub: "import", args: o.args()})
	return err
}
