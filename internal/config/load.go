// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Load fills, in c, every setting that no flag gave: from the environment, then
// from the configuration file, whose name file is empty for none. fs is the
// parsed flag set on which c.AddFlags declared its flags; lookup is os.LookupEnv
// or a stand-in. It then completes what follows from other settings, and
// validates. Errors have the shape "doing what: which: why" and may carry a
// hint, found with errors.As on interface{ Hint() string }.
func (c *Config) Load(fs *pflag.FlagSet, file string, lookup func(string) (string, bool)) error {
	settings, err := readFile(fs, file)
	if err != nil {
		return err
	}
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !isSetting(f) {
			return
		}
		if v, ok := lookup(Variable(f.Name)); ok {
			if err := fs.Set(f.Name, v); err != nil {
				errs = append(errs, &SettingError{Setting: Variable(f.Name), Why: reason(err)})
			}
			return
		}
		for _, v := range settings[f.Name] {
			if err := fs.Set(f.Name, v); err != nil {
				errs = append(errs, &SettingError{Setting: file + ": " + f.Name, Why: reason(err)})
				return
			}
		}
	})
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	c.complete()
	return c.Validate()
}

// Variable is the name of the environment variable of a flag: TERRACE_DATA_DIR
// for data-dir.
func Variable(flag string) string {
	return "TERRACE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// isSetting tells the flags of a Config from those that the command line has
// for itself.
func isSetting(f *pflag.Flag) bool {
	return f.Name != "help" && f.Name != "config"
}

// readFile reads the settings of a configuration file: YAML whose keys are the
// flags' names. A key that is no flag is an error, because a misspelt setting
// that is silently ignored is found only after it did harm.
func readFile(fs *pflag.FlagSet, file string) (map[string][]string, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var raw map[string]any
	if err := yaml.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("read configuration: %s: %w", file, err)
	}
	out := map[string][]string{}
	for key, value := range raw {
		f := fs.Lookup(key)
		if f == nil || !isSetting(f) {
			return nil, &SettingError{Setting: file + ": " + key, Why: "no such setting",
				Advice: "the settings are the flags of `terrace up --help` and `terrace controller --help`, without the dashes"}
		}
		switch v := value.(type) {
		case []any:
			for _, item := range v {
				out[key] = append(out[key], fmt.Sprint(item))
			}
		case map[string]any, nil:
			return nil, &SettingError{Setting: file + ": " + key, Why: "wants a value or a list of values"}
		default:
			out[key] = []string{fmt.Sprint(v)}
		}
	}
	return out, nil
}

var notNameCharacters = regexp.MustCompile(`[^a-z0-9]+`)

// systemNamespace is where Terrace keeps what is its own.
const systemNamespace = "terrace-system"

// complete derives the settings that follow from others.
func (c *Config) complete() {
	if c.Git.URL != "" && c.Git.Name == "" {
		c.Git.Name = RepositoryName(c.Git.URL)
	}
	if c.SOPSAgeSecret != "" && !strings.Contains(c.SOPSAgeSecret, "/") {
		c.SOPSAgeSecret = systemNamespace + "/" + c.SOPSAgeSecret
	}
	// The flag does not split them itself: what it cannot read it would show.
	var keys []string
	for _, list := range c.KMSKeys {
		for key := range strings.SplitSeq(list, ",") {
			if key != "" {
				keys = append(keys, key)
			}
		}
	}
	c.KMSKeys = keys
	slices.Sort(c.WatchNamespaces)
	c.WatchNamespaces = slices.Compact(c.WatchNamespaces)
}

// RepositoryName makes an object name of the last element of a Git URL or
// path: "infra" of https://example.org/team/Infra.git. It is "repository" when
// nothing of it can be kept.
func RepositoryName(url string) string {
	base := strings.TrimSuffix(path.Base(strings.TrimRight(strings.ReplaceAll(url, ":", "/"), "/")), ".git")
	name := strings.Trim(notNameCharacters.ReplaceAllString(strings.ToLower(base), "-"), "-")
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-")
	}
	if name == "" {
		return "repository"
	}
	return name
}

// reason strips pflag's own "invalid argument … for …" from an error, since
// the setting is named beside it already.
func reason(err error) string {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return fmt.Sprintf("%q: %v", invalid.GetValue(), invalid.Unwrap())
	}
	return err.Error()
}
