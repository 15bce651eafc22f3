// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// The locations of a Mapping.
const (
	LocationHome      = "home"
	LocationWorkspace = "workspace"
)

// ErrMapping is a mapping that cannot be placed.
var ErrMapping = errors.New("it is not a path inside the location")

// Mapping is a file of spec.fileMappings: written 0600, its directories 0700.
type Mapping struct {
	// Location is LocationHome, below HOME, or LocationWorkspace, below the
	// module directory.
	Location string
	// Path is relative to the location, also with a leading slash.
	Path    string
	Content []byte
}

// MappingError says which mapping cannot be placed.
type MappingError struct {
	Location, Path string
	Err            error
}

// Error is `map a file to home "../x": it is not a path inside the location`.
func (e *MappingError) Error() string {
	return fmt.Sprintf("map a file to %s %q: %v", e.Location, e.Path, e.Err)
}

// Unwrap is ErrMapping.
func (e *MappingError) Unwrap() error { return e.Err }

// mappingPath is the Terraform Controller's rule for spec.fileMappings[].path.
var mappingPath = regexp.MustCompile(`^(.?[/_a-zA-Z0-9]{1,})*$`)

// place is the name of the file relative to the Dir.
func (m Mapping) place(r *Reach) (string, error) {
	name := strings.TrimLeft(m.Path, "/")
	ok := mappingPath.MatchString(m.Path) && path.Clean(name) != "."
	for part := range strings.SplitSeq(name, "/") {
		ok = ok && part != ".."
	}
	if ok && m.Location == LocationHome {
		return path.Join(homePart, name), nil
	}
	if ok && m.Location == LocationWorkspace {
		return path.Join(workPart, r.Path, name), nil
	}
	return "", &MappingError{Location: m.Location, Path: m.Path, Err: ErrMapping}
}

// CLIConfig picks the CLI configuration out of a Secret's data: the one key that
// ends in ".tfrc".
func CLIConfig(data map[string][]byte) ([]byte, error) {
	var found []string
	for key := range data {
		if strings.HasSuffix(key, ".tfrc") {
			found = append(found, key)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("read the CLI configuration: %d keys end in .tfrc where one is needed", len(found))
	}
	return data[found[0]], nil
}

// mirror is a filesystem_mirror block with its path, override a line of dev_overrides. A
// CLI configuration is written in the first version of HCL, for which there is no reader
// that is still kept; what these patterns do not find has to be named by a flag.
var (
	mirror    = regexp.MustCompile(`filesystem_mirror\s*\{[^}]*?\bpath\s*=\s*"([^"]+)"`)
	overrides = regexp.MustCompile(`dev_overrides\s*\{([^}]*)\}`)
	override  = regexp.MustCompile(`=\s*"([^"]+)"`)
)

// Mirrors are the directories that a CLI configuration tells the tool to find providers in:
// filesystem mirrors and overrides for development.
func Mirrors(cliConfig []byte) []string {
	var out []string
	for _, m := range mirror.FindAllSubmatch(cliConfig, -1) {
		out = append(out, string(m[1]))
	}
	for _, block := range overrides.FindAllSubmatch(cliConfig, -1) {
		for _, m := range override.FindAllSubmatch(block[1], -1) {
			out = append(out, string(m[1]))
		}
	}
	return out
}
