// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	tfstate "github.com/terrace-dev/terrace/internal/state"
)

// states is the kind of the states that Terrace keeps, which no verb but those of
// "state" takes.
var states = kind{v1alpha1.StateKind, v1alpha1.GroupVersion.WithResource("states"), nil, record}

func newState(a *app) *cobra.Command {
	var f stateFlags
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Look at, change and share the Terraform states that Terrace keeps",
		Long: `Look at, change and share the Terraform states that Terrace keeps.

A STATE is named by the name of its State object; -n says where. What is known of a
state (list, show, versions) comes from the Kubernetes API. Its content comes from
the state service, which knows you by the token or the client certificate of the
kubeconfig, and lets you do what RBAC says of states.terrace.dev: get, update, lock,
unlock, force-unlock, rollback, delete.

Verbs that change something lock the state, are recorded in the ledger, and ask
unless --yes is given.`,
		Example: `  terrace state list -A
  terrace state diff network 12 13
  terrace state rollback network 12
  eval "export TF_HTTP_PASSWORD=$(terrace state token network --for 30m)"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f.add(cmd.PersistentFlags())
	cmd.AddCommand(
		newStateList(a), newStateShow(a, &f), newStateVersions(a), newStateDiff(a, &f), newStatePull(a, &f), newStatePush(a, &f),
		newStateRollback(a, &f), newStateUnlock(a, &f), newStateRm(a, &f), newStateMv(a, &f), newStateToken(a, &f),
		newStateRotateKey(a), newStateMigrate(a),
	)
	return cmd
}

// namedState is a State and the service that has its content.
type namedState struct {
	*v1alpha1.State
	cluster *cluster
	service *stateService
}

func (s namedState) String() string { return "state/" + s.Namespace + "/" + s.Name }

// do asks the service for something about the state.
func (s namedState) do(cmd *cobra.Command, doing, method, rest string, query url.Values, body []byte) ([]byte, http.Header, error) {
	return s.service.do(cmd.Context(), doing+" "+s.String(), method, s.Namespace, s.Name, rest, query, body)
}

// typed is a State object as its type.
func typed(o object) (*v1alpha1.State, error) {
	var s v1alpha1.State
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
		return nil, fmt.Errorf("read %s: %w", o, err)
	}
	return &s, nil
}

// findState reads a State, and finds the service when f is given.
func (a *app) findState(cmd *cobra.Command, name string, f *stateFlags) (namedState, object, error) {
	r, err := parseRef(name, []kind{states})
	if err != nil {
		return namedState{}, object{}, usagef(cmd, "%v", err)
	}
	c, err := a.connect()
	if err != nil {
		return namedState{}, object{}, err
	}
	u, err := c.of(states, c.namespace).Get(cmd.Context(), r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return namedState{}, object{}, hintf(fmt.Errorf("get state/%s/%s: not found", c.namespace, r.Name), "\"terrace state list -A\" lists the states of all namespaces")
	}
	if err != nil {
		return namedState{}, object{}, c.explain("get state/"+c.namespace+"/"+r.Name, err)
	}
	o := object{Unstructured: u, Kind: states}
	s, err := typed(o)
	if err != nil || f == nil {
		return namedState{State: s, cluster: c}, o, err
	}
	service, err := a.stateService(c, *f)
	return namedState{State: s, cluster: c, service: service}, o, err
}

// stateArg completes the names of states.
func (a *app) stateArg(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, _, err := c.list(cmd.Context(), selection{Kinds: []kind{states}, Namespace: c.namespace})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, o := range found {
		names = append(names, o.GetName())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// stateArgs accepts so many arguments, named in the message when they are missing.
func stateArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef(cmd, "needs %s", names[len(args)])
		}
		if len(args) > len(names) {
			return usagef(cmd, "%q is too much", args[len(names)])
		}
		return nil
	}
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "json or yaml")
}

func checkOutput(cmd *cobra.Command, output string) error {
	if !slices.Contains([]string{"", "json", "yaml"}, output) {
		return usagef(cmd, "-o %s: use json or yaml", output)
	}
	return nil
}

func newStateList(a *app) *cobra.Command {
	var all bool
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the states that are kept",
		Long: `List the states that are kept. RESOURCES is "?" where OpenTofu encrypts the state
itself; CHANGED is how long ago the newest version was written.`,
		Example: `  terrace state list
  terrace state list -A -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			where := selection{Kinds: []kind{states}, Namespace: c.namespace}
			if all {
				where.Namespace = ""
			}
			found, _, err := c.list(cmd.Context(), where)
			if err != nil {
				return err
			}
			if output != "" {
				return printObjects(a.env.Stdout, output, found, false)
			}
			return a.printStates(found, all)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "in all namespaces")
	outputFlag(cmd, &output)
	return cmd
}

func (a *app) printStates(found []object, namespaces bool) error {
	if len(found) == 0 {
		fmt.Fprintln(a.env.Stderr, "no states found")
		return nil
	}
	header := []string{"NAME", "SERIAL", "RESOURCES", "SIZE", "VERSIONS", "LOCKED BY", "CHANGED"}
	if namespaces {
		header = append([]string{"NAMESPACE"}, header...)
	}
	var rows [][]string
	for _, o := range found {
		s, err := typed(o)
		if err != nil {
			return err
		}
		locked, changed := none, none
		if l := s.Status.Lock; l != nil {
			locked = orNone(l.Holder)
		}
		if len(s.Status.Versions) > 0 {
			changed = age(s.Status.Versions[0].Created.Time, a.env.Now())
		}
		row := []string{s.Name, strconv.FormatInt(s.Status.Serial, 10), resourcesOf(s), byteSize(s.Status.Size), strconv.Itoa(kept(s)), locked, changed}
		if namespaces {
			row = append([]string{s.Namespace}, row...)
		}
		rows = append(rows, row)
	}
	newTable(a.env.Stdout, a.painter(), header...).print(true, rows...)
	return nil
}

// kept is how many versions there are; a status of an earlier release does not count them.
func kept(s *v1alpha1.State) int { return max(s.Status.Kept, len(s.Status.Versions)) }

func resourcesOf(s *v1alpha1.State) string {
	if s.Status.Encrypted {
		return "?"
	}
	return strconv.Itoa(s.Status.Resources)
}

// byteSize is a size in the largest unit that leaves at least one before the point.
func byteSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	e := min(int(math.Log(float64(n))/math.Log(unit)), 3)
	return fmt.Sprintf("%.1f %ciB", float64(n)/math.Pow(unit, float64(e)), "KMG"[e-1])
}

func newStateShow(a *app, f *stateFlags) *cobra.Command {
	var resources bool
	var version int64
	var output string
	cmd := &cobra.Command{
		Use:   "show STATE",
		Short: "Show what is known of a state, or the resources in it",
		Long: `Show what is known of a state: serial, lineage, size, who holds its lock. With
--resources show the addresses of the resources in it, and no value of them; that
needs the verb get on states.terrace.dev.`,
		Example: `  terrace state show network
  terrace state show network --resources --version 12`,
		Args:              exactly("STATE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			if !resources {
				if version != 0 {
					return usagef(cmd, "--version: it is for --resources")
				}
				s, o, err := a.findState(cmd, args[0], nil)
				if err != nil {
					return err
				}
				if output != "" {
					return printObjects(a.env.Stdout, output, []object{o}, true)
				}
				a.printState(s.State)
				return nil
			}
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			payload, err := s.pull(cmd, version)
			if err != nil {
				return err
			}
			content, err := parseState(payload)
			if err != nil {
				return fmt.Errorf("show %s: %w", s, err)
			}
			addresses := slices.Sorted(maps.Keys(content.instances))
			if output != "" {
				return printValue(a.env.Stdout, output, append([]string{}, addresses...))
			}
			for _, at := range addresses {
				fmt.Fprintln(a.env.Stdout, at)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&resources, "resources", false, "show the addresses of the resources")
	cmd.Flags().Int64Var(&version, "version", 0, "those of this version (default: the newest)")
	outputFlag(cmd, &output)
	return cmd
}

func (a *app) printState(s *v1alpha1.State) {
	line := func(name, value string) { fmt.Fprintf(a.env.Stdout, "%-10s %s\n", name+":", value) }
	line("Name", s.Namespace+"/"+s.Name)
	line("Serial", strconv.FormatInt(s.Status.Serial, 10))
	line("Lineage", orNone(s.Status.Lineage))
	line("Resources", resourcesOf(s))
	line("Size", byteSize(s.Status.Size))
	if n := kept(s); n > 0 {
		newest := s.Status.Versions[0]
		line("Versions", fmt.Sprintf("%d, %d to %d", n, newest.Version-int64(n)+1, newest.Version))
		line("Changed", newest.Created.UTC().Format(time.RFC3339)+by(newest))
	} else {
		line("Versions", "0")
	}
	if l := s.Status.Lock; l != nil {
		line("Locked by", fmt.Sprintf("%s (%s) since %s, id %s", orNone(l.Holder), orNone(l.Operation), l.Since.UTC().Format(time.RFC3339), l.ID))
	} else {
		line("Locked by", none)
	}
}

func by(v v1alpha1.StateVersion) string {
	if v.By == "" {
		return ""
	}
	return " by " + v.By
}

func newStateVersions(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "versions STATE",
		Short: "List the versions of a state, the newest first",
		Long: `List the versions of a state that are kept, the newest first: when, by whom and by
which run each was written.`,
		Example:           `  terrace state versions network`,
		Args:              exactly("STATE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			s, _, err := a.findState(cmd, args[0], nil)
			if err != nil {
				return err
			}
			versions, err := s.Status.All()
			if err != nil {
				return hintf(fmt.Errorf("list the versions of %s: %w", s, err), "-o json of \"terrace state show\" has the ten newest")
			}
			if output != "" {
				return printValue(a.env.Stdout, output, append([]v1alpha1.StateVersion{}, versions...))
			}
			var rows [][]string
			for _, v := range versions {
				rows = append(rows, []string{
					strconv.FormatInt(v.Version, 10), strconv.FormatInt(v.Serial, 10), strconv.Itoa(v.Resources), byteSize(v.Size),
					v.Created.UTC().Format(time.RFC3339), orNone(v.Operation), orNone(v.By), orNone(v.Run),
				})
			}
			if len(rows) == 0 {
				fmt.Fprintf(a.env.Stderr, "%s has no versions\n", s)
				return nil
			}
			newTable(a.env.Stdout, a.painter(), "VERSION", "SERIAL", "RESOURCES", "SIZE", "CREATED", "OPERATION", "BY", "RUN").print(true, rows...)
			return nil
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// pull reads the content of a version; 0 is the newest.
func (s namedState) pull(cmd *cobra.Command, version int64) ([]byte, error) {
	rest := ""
	if version != 0 {
		rest = "versions/" + strconv.FormatInt(version, 10)
	}
	payload, _, err := s.do(cmd, "read", http.MethodGet, rest, nil, nil)
	return payload, err
}

func newStateDiff(a *app, f *stateFlags) *cobra.Command {
	var tell bool
	cmd := &cobra.Command{
		Use:   "diff STATE A [B]",
		Short: "Show what differs between two versions of a state",
		Long: `Show what differs between version A and version B, or the newest: resources that
were added (+), changed (~) and removed (-), the values that changed, and outputs.

Sensitive values are never shown: those that are marked in the state, those by whose
name they may be secret, and those that look like one.`,
		Example: `  terrace state diff network 12
  terrace state diff network 12 13 --exit-code`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return stateArgs("STATE", "A", "B")(cmd, args)
		},
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			var versions [2]int64
			for i, word := range args[1:] {
				n, err := stateVersion(cmd, word)
				if err != nil {
					return err
				}
				versions[i] = n
			}
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			var contents [2]*stateContent
			for i, n := range versions {
				payload, err := s.pull(cmd, n)
				if err != nil {
					return err
				}
				if contents[i], err = parseState(payload); err != nil {
					return fmt.Errorf("compare versions of %s: %w", s, err)
				}
			}
			d := diffStates(contents[0], contents[1])
			d.print(a.env.Stdout)
			if tell && !d.empty() {
				return exitCode(ExitChanges)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&tell, "exit-code", false, "exit with 2 when they differ")
	return cmd
}

func stateVersion(cmd *cobra.Command, word string) (int64, error) {
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < 1 {
		return 0, usagef(cmd, "%q is no version: they count from 1", word)
	}
	return n, nil
}

func newStatePull(a *app, f *stateFlags) *cobra.Command {
	var version int64
	cmd := &cobra.Command{
		Use:   "pull STATE",
		Short: "Write the content of a state to stdout",
		Long: `Write the content of a state to stdout, as it was written. It holds every value
that the resources have, also the sensitive ones.`,
		Example: `  terrace state pull network >network.tfstate
  terrace state pull network --version 12 | jq .outputs`,
		Args:              exactly("STATE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			payload, err := s.pull(cmd, version)
			if err != nil {
				return err
			}
			_, err = a.env.Stdout.Write(payload)
			return err
		},
	}
	cmd.Flags().Int64Var(&version, "version", 0, "this version (default: the newest)")
	return cmd
}

func newStatePush(a *app, f *stateFlags) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use:   "push STATE FILE",
		Short: "Write a file as the newest version of a state",
		Long: `Write a file ("-" is stdin) as the newest version of a state, which is made when
there is none. The file must be of the same lineage, with a serial that is higher.
--force takes any other one as well: it gets the next serial. The versions before it
stay.`,
		Example: `  terrace state push network network.tfstate
  terrace state push network backup.tfstate --force --yes`,
		Args:              stateArgs("STATE", "FILE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.statePush(cmd, f, args[0], args[1], force, yes)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also over another lineage and a serial that is not lower")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) statePush(cmd *cobra.Command, f *stateFlags, name, file string, force, yes bool) error {
	r, err := parseRef(name, []kind{states})
	if err != nil {
		return usagef(cmd, "%v", err)
	}
	if file == "-" && !yes {
		return &usageError{err: errors.New("state push: the state comes from stdin, so that nobody can be asked"), hint: "give --yes"}
	}
	payload, sum, err := a.readState(file)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	service, err := a.stateService(c, *f)
	if err != nil {
		return err
	}
	s := namedState{State: &v1alpha1.State{}, cluster: c, service: service}
	s.Namespace, s.Name = c.namespace, r.Name
	if !yes {
		question := fmt.Sprintf("Write %s (serial %d, %d resources) as the newest version of %s?", file, sum.Serial, sum.Resources, s)
		if err := a.confirm(cmd, question, "give --yes"); err != nil {
			return err
		}
	}
	return a.locked(cmd, service, s.Namespace, s.Name, "state-push", func(id string) error {
		query := url.Values{"ID": {id}}
		if force {
			query.Set("force", "true")
			if payload, err = s.raise(cmd, payload, sum); err != nil {
				return err
			}
		}
		_, header, err := s.do(cmd, "write", http.MethodPost, "", query, payload)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.env.Stdout, "wrote version %s of %s\n", header.Get("X-Terrace-Version"), s)
		return nil
	})
}

func (a *app) readState(file string) ([]byte, tfstate.Summary, error) {
	in := a.env.Stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, tfstate.Summary{}, fmt.Errorf("read state: %w", err)
		}
		defer opened.Close()
		in = opened
	}
	payload, err := io.ReadAll(io.LimitReader(in, tfstate.MaxPayload+1))
	if err != nil {
		return nil, tfstate.Summary{}, fmt.Errorf("read %s: %w", file, err)
	}
	if len(payload) > tfstate.MaxPayload {
		return nil, tfstate.Summary{}, fmt.Errorf("read %s: larger than %d bytes", file, tfstate.MaxPayload)
	}
	sum, err := tfstate.Summarize(payload)
	if err != nil {
		return nil, sum, fmt.Errorf("%s: %w", file, err)
	}
	return payload, sum, nil
}

// raise gives a payload the serial after the newest one, if it is not higher by itself.
// What OpenTofu encrypted keeps the one that it has inside.
func (s namedState) raise(cmd *cobra.Command, payload []byte, sum tfstate.Summary) ([]byte, error) {
	current, err := s.pull(cmd, 0)
	if errors.Is(err, errStateMissing) {
		return payload, nil
	}
	if err != nil {
		return nil, err
	}
	kept, err := tfstate.Summarize(current)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s, err)
	}
	if sum.Encrypted || sum.Serial > kept.Serial || kept.Serial >= math.MaxInt64 {
		return payload, nil
	}
	return tfstate.WithSerial(payload, int64(kept.Serial)+1)
}

func newStateRollback(a *app, f *stateFlags) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use:   "rollback STATE VERSION",
		Short: "Make an old version of a state the newest again",
		Long: `Write the content of an old version again, as a new version with a higher serial.
Every version that there was stays. The resources themselves are not touched: the
next plan shows how they differ.

A state that OpenTofu encrypts has its serial inside. --force writes it as it was.`,
		Example:           `  terrace state rollback network 12`,
		Args:              stateArgs("STATE", "VERSION"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := stateVersion(cmd, args[1])
			if err != nil {
				return err
			}
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(cmd, fmt.Sprintf("Make version %d of %s the newest again?", n, s), "give --yes"); err != nil {
					return err
				}
			}
			return a.locked(cmd, s.service, s.Namespace, s.Name, "rollback", func(id string) error {
				query := url.Values{"ID": {id}, "version": {args[1]}}
				if force {
					query.Set("force", "true")
				}
				answer, _, err := s.do(cmd, "roll back", http.MethodPost, "rollback", query, nil)
				if err != nil {
					return err
				}
				var v v1alpha1.StateVersion
				if err := json.Unmarshal(answer, &v); err != nil {
					return fmt.Errorf("roll back %s: read the answer: %w", s, err)
				}
				fmt.Fprintf(a.env.Stdout, "rolled %s back to version %d: it is version %d, serial %d\n", s, n, v.Version, v.Serial)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also what OpenTofu encrypted, with its old serial")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func newStateUnlock(a *app, f *stateFlags) *cobra.Command {
	var yes bool
	var id string
	cmd := &cobra.Command{
		Use:   "unlock STATE",
		Short: "Break the lock of a state",
		Long: `Break the lock of a state, whoever holds it. When its holder is still at work it can
write no more, and what it did is not in the state. Terrace releases the locks of its
own dead runs by itself.`,
		Example: `  terrace state unlock network
  terrace state unlock network --lock-id 6f1d2c9a-… --yes`,
		Args:              exactly("STATE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			held := s.Status.Lock
			switch {
			case held == nil:
				return fmt.Errorf("unlock %s: it is not locked", s)
			case id != "" && id != held.ID:
				return fmt.Errorf("unlock %s: its lock is %s, not %s", s, held.ID, id)
			}
			if !yes {
				question := fmt.Sprintf("Break lock %s of %s, held by %s since %s? Its holder must not be at work any more.",
					held.ID, s, orNone(held.Holder), held.Since.UTC().Format(time.RFC3339))
				if err := a.confirm(cmd, question, "give --yes"); err != nil {
					return err
				}
			}
			// By its ID and no more: should another have been taken meanwhile, it stays.
			body, err := json.Marshal(map[string]string{"ID": held.ID})
			if err != nil {
				return err
			}
			if _, _, err := s.do(cmd, "unlock", http.MethodDelete, "lock", nil, body); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "broke lock %s of %s\n", held.ID, s)
			return nil
		},
	}
	cmd.Flags().StringVar(&id, "lock-id", "", "break this lock and no other")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func newStateRm(a *app, f *stateFlags) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use:   "rm STATE",
		Short: "Remove a state with all of its versions",
		Long: `Remove a state with all of its versions. It is refused while the state is locked,
and when it has resources: they would go on to exist, and nothing would know of them.
--force removes it all the same; nothing brings it back.`,
		Example:           `  terrace state rm old-network`,
		Args:              exactly("STATE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			if !yes {
				question := fmt.Sprintf("Remove %s with %s resources and %d versions?", s, resourcesOf(s.State), kept(s.State))
				if err := a.confirm(cmd, question, "give --yes"); err != nil {
					return err
				}
			}
			query := url.Values{}
			if force {
				query.Set("force", "true")
			}
			if _, _, err := s.do(cmd, "remove", http.MethodDelete, "", query, nil); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "removed %s\n", s)
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also with resources in it")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func newStateMv(a *app, f *stateFlags) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "mv STATE NAME",
		Short: "Give a state another name",
		Long: `Give a state another name in its namespace, with all of its versions. It is refused
while the state is locked, and when the name is taken. Whoever uses the state by its
old address has to be told the new one.`,
		Example:           `  terrace state mv network core-network`,
		Args:              stateArgs("STATE", "NAME"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := a.findState(cmd, args[0], f)
			if err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(cmd, fmt.Sprintf("Name %s %s?", s, args[1]), "give --yes"); err != nil {
					return err
				}
			}
			if _, _, err := s.do(cmd, "move", http.MethodPost, "move", url.Values{"to": {args[1]}}, nil); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "moved %s to %s\n", s, args[1])
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func newStateToken(a *app, f *stateFlags) *cobra.Command {
	var life time.Duration
	var read bool
	var output string
	cmd := &cobra.Command{
		Use:   "token STATE",
		Short: "Make a token for one state, for a pipeline or a colleague",
		Long: `Make a token for one state and write it to stdout. It is the password (the user does
not matter) of Terraform's http backend, and the token of a cloud block. It ends by
itself, and in no other way; it can do no more than you can, and cannot break locks,
roll back or remove. With --read it can only read: plan with -lock=false.`,
		Example: `  terrace state token network --for 30m
  terrace state token network --read --for 24h`,
		Args:              exactly("STATE"),
		ValidArgsFunction: a.stateArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			if life <= 0 {
				return usagef(cmd, "--for %s: it must be longer than nothing", life)
			}
			r, err := parseRef(args[0], []kind{states})
			if err != nil {
				return usagef(cmd, "%v", err)
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			service, err := a.stateService(c, *f)
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]any{"for": life.String(), "read": read})
			if err != nil {
				return err
			}
			doing := fmt.Sprintf("make a token for state/%s/%s", c.namespace, r.Name)
			answer, _, err := service.do(cmd.Context(), doing, http.MethodPost, c.namespace, r.Name, "tokens", nil, body)
			if err != nil {
				return err
			}
			var made struct {
				Token   string    `json:"token"`
				Expires time.Time `json:"expires"`
			}
			if err := json.Unmarshal(answer, &made); err != nil {
				return fmt.Errorf("%s: read the answer: %w", doing, err)
			}
			if output != "" {
				return printValue(a.env.Stdout, output, made)
			}
			fmt.Fprintln(a.env.Stdout, made.Token)
			return nil
		},
	}
	cmd.Flags().DurationVar(&life, "for", time.Hour, "how long it is good, 720h at most")
	cmd.Flags().BoolVar(&read, "read", false, "it can only read")
	outputFlag(cmd, &output)
	return cmd
}
