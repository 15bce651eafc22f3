// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/run/isolation"
)

// The test here is about secrets that are where nobody should find them.

// logLines is what this process logs. It is kept from the first call of since on, for the
// tests that read it.
type logLines struct {
	mu      sync.Mutex
	keeping bool
	lines   strings.Builder
}

var processLog logLines

func (l *logLines) add(prefix, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeping {
		l.lines.WriteString(prefix + " " + args + "\n")
	}
}

func (l *logLines) keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeping = true
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

// canaries are secret values by the way that each goes in.
var canaries = map[string]string{
	"variable":       "canary-variable-7Gk2",
	"environment":    "canary-environment-9Qx4",
	"environment of": "canary-envFrom-2Yc6",
	"file mapping":   "canary-mapping-3Wp8",
	"line of a file": "canary-line-6Kf1",
	"URL":            "canary-url-8Mz5",
	"CLI config":     "canary-cli-4Pb7",
	"backend":        "canary-backend-6Tn0",
	"marked":         "canary-marked-2Lm7",
	"template":       "canary-template-1Xs9",
	"SOPS file":      "canary-sops-5Rj3",
	"SOPS variable":  "canary-tfvars-0Dv8",
	"SOPS mapping":   "canary-sopsmap-7Ha4",
	"SOPS object":    "canary-object-3Uq6",
	"substitution":   "canary-substitute-9Ev2",
	"decryption key": "", // made by the test
	"hidden":         "canary-hidden-4Nw1",
	"module source":  "canary-source-3Ts8", // of a module in the repository, which keeps it
}

// stateServer keeps one state for Terraform's HTTP backend and wants a password.
func stateServer(t *testing.T, password string) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	var state []byte
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if _, given, _ := r.BasicAuth(); given != password {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch {
		case r.Method == http.MethodPost:
			state, _ = io.ReadAll(r.Body)
		case state == nil:
			rw.WriteHeader(http.StatusNotFound)
		default:
			_, _ = rw.Write(state)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// spilling is a module that is given every canary and tells of them where its command does.
func spilling(command string) string {
	return `
variable "v" {}
variable "url" {}
variable "tv" { default = "none" }
variable "values" { default = {} }
variable "marked" { sensitive = true }
variable "hidden" { sensitive = true }
resource "terraform_data" "x" {
  input = [var.v, var.url, var.tv, var.values, file("${path.module}/mapped.ini"), file("${path.module}/mapped.json"), yamldecode(file("${path.module}/a.sops.yaml"))]
  provisioner "local-exec" {
    environment = { SOPS = yamldecode(file("${path.module}/a.sops.yaml")).password, TFVARS = var.tv, VALUES = jsonencode(var.values), URL = var.url }
    command     = <<-EOT
` + command + `
    EOT
  }
}
resource "terraform_data" "each" {
  for_each = toset([var.v])
  input    = var.marked
}
output "secret" {
  value     = "${var.marked}-${var.v}"
  sensitive = true
}
output "plain" { value = nonsensitive(var.hidden) }
`
}

// each way of telling a secret, and that of failing after it.
const (
	spillAll = `printf '%s\n' "$PLAIN" "$FROM" "$SOPS" "$TFVARS" "$VALUES" "$URL"
    cat mapped.ini mapped.json a.sops.yaml
    sed -n 's/.*token *= *"\(.*\)".*/\1/p' "$TF_CLI_CONFIG_FILE"
    sed -n 's/^aws_secret_access_key *= *//p' mapped.ini
    printf '%s' "$URL" | sed 's|.*://[^:]*:\(.*\)@.*|\1|'; echo
    printf '%s' "$PLAIN" | base64; printf 'user:%s' "$PLAIN" | base64
    env`
	failAfter = "\n    exit 1"
	crash     = `
    echo '!!!!!!!!!!!!!!!!!!!!!!!!!!! TERRAFORM CRASH !!!!!!!!!!!!!!!!!!!!!!!!!!!!' >&2
    echo "panic: runtime error: invalid value \"$PLAIN\" at $SOPS" >&2
    printf 'goroutine 1 [running]:\nmain.f({0x%s, 0x2})\n' "$PLAIN" >&2
    exit 2`
)

// TestCanaryIsNowhere gives secrets to runs in every way that there is, has the runs tell of
// them in every way that they can, and then looks for them in all that is kept and shown.
func TestCanaryIsNowhere(t *testing.T) {
	processLog.keep()
	id := identity(t)
	known := maps.Clone(canaries)
	known["decryption key"] = id.String()
	states := stateServer(t, known["backend"])
	hook := newHook(t)
	hook.answer("/refuse", 200, fmt.Sprintf(`{"allowed": false, "why": "%s %s %s"}`, known["variable"], known["hidden"], known["marked"]))

	files := map[string]string{
		"vars/x.sops.tfvars.json": sealed(t, id, "x.sops.tfvars.json", map[string]string{"tv": known["SOPS variable"]}),
		"backend/main.tf":         fmt.Sprintf("terraform {\n  backend \"http\" {\n    address  = %q\n    username = \"u\"\n  }\n}\nresource \"terraform_data\" \"x\" {}\n", states.URL),
		"init/main.tf":            "variable \"v\" {}\nmodule \"m\" { source = \"git::https://user:" + known["module source"] + "@127.0.0.1:1/x.git\" }\n",
		"app/kustomization.yaml":  "resources: [secret.sops.yaml, secret.yaml]\n",
		"app/secret.sops.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: from-sops}\nstringData:\n  doc.json: |\n" +
			"    " + strings.ReplaceAll(sealed(t, id, "doc.json", map[string]string{"password": known["SOPS object"]}), "\n", "\n    ") + "\n",
		"app/secret.yaml":           "apiVersion: v1\nkind: Secret\nmetadata: {name: from-substitute}\nstringData: {a: \"${secret}\"}\n",
		"badapp/kustomization.yaml": "resources: [deployment.yaml]\n",
		"badapp/deployment.yaml":    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: \"${secret}\", selector: {matchLabels: {a: \"${secret}\"}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: \"${secret}\", image: x}]}}}\n",
	}
	for name, module := range map[string]string{
		"good":       spilling(spillAll),
		"waiting":    spilling(spillAll),
		"exit":       spilling(spillAll + " >&2" + failAfter),
		"crash":      spilling(crash),
		"type":       spilling("true") + "output \"bad\" { value = tobool(var.v) + tonumber(yamldecode(file(\"${path.module}/a.sops.yaml\")).password) }\n",
		"validation": spilling("true") + "variable \"checked\" {\n  default = 1\n  validation {\n    condition     = var.checked == 2\n    error_message = \"bad: ${var.v} ${file(\"${path.module}/mapped.ini\")}\"\n  }\n}\n",
		"condition":  spilling("true") + "resource \"terraform_data\" \"bad\" {\n  lifecycle {\n    precondition {\n      condition     = var.v == \"\"\n      error_message = \"bad: ${var.v} ${jsonencode(var.values)} ${base64encode(var.v)} ${urlencode(var.url)}\"\n    }\n  }\n}\n",
		"syntax":     spilling("true") + "resource \"terraform_data\" \"bad\" { input = var.nope[file(\"${path.module}/mapped.ini\")] }\n",
		"health":     spilling("true"),
		"webhook":    spilling("true"),
		"policy":     spilling("true"),
	} {
		files[name+"/main.tf"] = module
		files[name+"/a.sops.yaml"] = sealed(t, id, "a.sops.yaml", map[string]string{"password": known["SOPS file"]})
	}
	w := newWorld(t, files)
	w.putSecret("in", map[string]string{"v": known["variable"], "hidden": known["hidden"], "url": "postgres://user:" + known["URL"] + "@127.0.0.1:1/db"})
	w.putSecret("env", map[string]string{"PLAIN": known["environment"]})
	w.putSecret("envfrom", map[string]string{"FROM": known["environment of"]})
	w.putSecret("mapped", map[string]string{
		"ini":  "[default]\nregion = eu-north-1\naws_secret_access_key = " + known["line of a file"] + "\n# " + known["file mapping"] + "\n",
		"json": sealed(t, id, "mapped.json", map[string]string{"password": known["SOPS mapping"]}),
	})
	w.putSecret("cli", map[string]string{"x.tfrc": "credentials \"app.example.org\" {\n  token = \"" + known["CLI config"] + "\"\n}\n"})
	w.putSecret("template", map[string]string{"t": known["template"]})
	w.putSecret("backend", map[string]string{"password": known["backend"]})
	w.putSecret("keys", map[string]string{"a.agekey": id.String()})
	w.putSecret("substitute", map[string]string{"secret": known["substitution"]})
	w.apply(`
apiVersion: terrace.dev/v1alpha1
kind: Policy
metadata: {name: tells}
spec:
  enforcement: deny
  selector: {matchLabels: {told: "yes"}}
  rego: |
    package main
    import rego.v1
    deny contains msg if {
      some r in input.resource_changes
      msg := sprintf("told: %v", [r.change.after])
    }
`)

	const spec = `
retryInterval: 1h
storeReadablePlan: human
enableInventory: true
tfVarsFiles: [vars/x.sops.tfvars.json]
vars: [{name: marked, value: canary-marked-2Lm7}]
varsFrom: [{kind: Secret, name: in}]
readInputsFromSecrets: [{name: template, as: t}]
values: {t: "${{ .t.t }}"}
cliConfigSecretRef: {name: cli}
runnerPodTemplate: {spec: {env: [{name: PLAIN, valueFrom: {secretKeyRef: {name: env, key: PLAIN}}}, {name: TF_LOG, value: LEVEL}], envFrom: [{secretRef: {name: envfrom}}]}}
fileMappings:
- {secretRef: {name: mapped, key: ini}, location: workspace, path: mapped.ini}
- {secretRef: {name: mapped, key: json}, location: workspace, path: mapped.json}
`
	units := map[string]struct{ reason, spec, state string }{
		"good":       {"a run that tells all and ends well", "approvePlan: auto\nwriteOutputsToSecret: {name: out-good}", ""},
		"waiting":    {"a plan that waits", "approvePlan: \"\"", "pending"},
		"exit":       {"a provisioner that prints all and fails", "approvePlan: auto", infra.ReasonApplyFailed},
		"crash":      {"a process that dies with its values in its last words", "approvePlan: auto", infra.ReasonApplyFailed},
		"type":       {"an error of types, which shows the value", "approvePlan: auto", infra.ReasonPlanFailed},
		"validation": {"a message that the module makes of a secret", "approvePlan: auto", infra.ReasonPlanFailed},
		"condition":  {"the same of a condition, in several spellings", "approvePlan: auto", infra.ReasonPlanFailed},
		"syntax":     {"an excerpt of the configuration", "approvePlan: auto", infra.ReasonPlanFailed},
		"health":     {"an address that is made of an output", "approvePlan: auto\nhealthChecks: [{name: h, type: http, url: \"http://127.0.0.1:1/?a=${{ .secret }}&b=${{ .plain }}\", timeout: 1s}]", infra.ReasonHealthChecksFailed},
		"webhook":    {"a webhook that quotes the plan", "approvePlan: auto\nwebhooks: [{url: \"" + hook.URL + "/refuse\", testExpression: \"${{ .allowed }}\", errorMessageTemplate: \"refused: ${{ .why }}\"}]", infra.ReasonPostPlanningWebhookFailed},
		"policy":     {"a policy that quotes the plan", "approvePlan: auto", v1alpha1.ReasonPolicyDenied},
	}
	for name, u := range units {
		level := "ERROR"
		if name == "good" {
			level = "TRACE"
		}
		text := "path: ./" + name + strings.ReplaceAll(spec, "LEVEL", level) + u.spec
		w.apply(fmt.Sprintf("apiVersion: infra.contrib.fluxcd.io/v1alpha2\nkind: Terraform\nmetadata: {name: %s, labels: {told: %q}, annotations: {terrace.dev/decryption: keys}}\nspec:\n  interval: 1h\n  sourceRef: {kind: GitRepository, name: src}\n%s",
			name, map[bool]string{true: "yes", false: "no"}[name == "policy"], indent(text)))
	}
	w.unit("backend", "path: ./backend\napprovePlan: auto\nrunnerPodTemplate: {spec: {env: [{name: TF_LOG, value: TRACE}]}}\nbackendConfigsFrom: [{kind: Secret, name: backend}]")
	w.unit("init", "path: ./init\napprovePlan: auto\nretryInterval: 1h\nvarsFrom: [{kind: Secret, name: in, varsKeys: [v]}]")
	const substitute = "prune: true\nretryInterval: 1h\ndecryption: {provider: sops, secretRef: {name: keys}}\npostBuild: {substituteFrom: [{kind: Secret, name: substitute}]}"
	w.app("app", "path: ./app\ntargetNamespace: "+w.ns+"\n"+substitute)
	w.app("badapp", "path: ./badapp\ntargetNamespace: "+w.ns+"\n"+substitute)
	w.apply(strings.Replace(appManifest("manual", "path: ./app\nnamePrefix: manual-\ntargetNamespace: "+w.ns+"\n"+substitute), "{name: manual}", "{name: manual, annotations: {terrace.dev/approve: manual}}", 1))

	// All of them come to their end.
	for name, u := range units {
		switch u.state {
		case "":
			w.awaitReady(name)
		case "pending":
			w.awaitPending(name)
		default:
			w.awaitReason(name, u.state)
		}
	}
	w.awaitReady("backend")
	w.awaitReason("init", infra.ReasonInitFailed)
	for name, reason := range map[string]string{"app": "ReconciliationSucceeded", "badapp": "", "manual": v1alpha1.ReasonPlanWaiting} {
		if !w.watch(&kustomizev1.KustomizationList{}, named(name), func(o client.Object) bool {
			if o == nil {
				return false
			}
			for _, c := range o.(*kustomizev1.Kustomization).Status.Conditions {
				if c.Type == "Ready" && (c.Reason == reason || reason == "" && strings.HasSuffix(c.Reason, "Failed")) {
					return true
				}
			}
			return false
		}) {
			t.Fatalf("Kustomization %s does not come to its end: %+v", name, w.ks(name).Status)
		}
	}
	if s := w.secret("from-substitute", nil); string(s.Data["a"]) != known["substitution"] {
		t.Errorf("the app was not given the secret: %q", s.Data)
	}
	if s := w.secret("out-good", nil); !strings.Contains(string(s.Data["secret"]), known["variable"]) {
		t.Errorf("the output Secret does not hold the output: %q", s.Data)
	}
	if text := w.runLog("good"); strings.Count(text, "(sensitive value)") < 10 {
		t.Errorf("the run did not tell of its secrets, so this test shows nothing: %s", text)
	}

	texts := w.everyText(known)
	for _, kind := range []string{"terraforms/good", "kustomizations/badapp", "configmaps/"} {
		found := false
		for where := range texts {
			found = found || strings.HasPrefix(where, kind)
		}
		if !found {
			t.Errorf("nothing was read of %s", kind)
		}
	}
	for _, name := range append(slices.Collect(maps.Keys(units)), "backend", "init") {
		texts["log of "+name] = w.runLog(name)
		for _, what := range []string{"log", "plan", "plan?format=json"} {
			_, texts["endpoint "+what+" of "+name] = w.get("/api/v1/units/terraform/"+w.ns+"/"+name+"/"+what, "")
		}
	}
	_, texts["metrics"] = w.get("/metrics", "")
	texts["the process's log"] = processLog.String()
	if texts["the process's log"] == "" {
		t.Error("the process has logged nothing, so this test shows less")
	}
	for where, text := range texts {
		w.noCanary(where, text, known)
	}
	if isolation.Supported().Landlock == 0 {
		t.Log("the kernel confines nothing; the runs could have read more than they did")
	}
}

// What init writes down of a backend with a password lies encrypted between runs, and saves
// the next run its init all the same.
func TestBackendPasswordRestsEncrypted(t *testing.T) {
	const password, other = "canary-backend-6Tn0", "canary-backend-9Wd2"
	states := stateServer(t, password)
	w := newWorld(t, map[string]string{"main.tf": fmt.Sprintf("terraform {\n  backend \"http\" {\n    address  = %q\n    username = \"u\"\n  }\n}\nresource \"terraform_data\" \"x\" {}\n", states.URL)})
	w.putSecret("backend", map[string]string{"password": password})
	w.unit("u", "approvePlan: auto\nretryInterval: 1h\nbackendConfigsFrom: [{kind: Secret, name: backend}]")
	w.awaitReady("u")
	answered := func(tf *infra.Terraform) bool {
		return isReady(tf) && tf.Status.LastHandledReconcileAt == tf.Annotations[infra.ReconcileRequestAnnotation]
	}
	for range 2 {
		w.reconcile("u")
		w.await("u", "planned again", answered)
		w.unitsHold(map[string]string{"backend": password})
		if n := w.spawned("init"); n != 1 {
			t.Fatalf("%d inits ran, want one", n)
		}
		w.restart()
	}
	// Another password is another backend: init is asked, and says that it does not fit.
	w.putSecret("backend", map[string]string{"password": other})
	w.await("u", "failing", func(tf *infra.Terraform) bool { return tf.Status.ReconciliationFailures > 0 })
	w.unitsHold(map[string]string{"backend": other})
}

// noCanary fails for each canary that is in a text, as it is or in base64.
func (w *world) noCanary(where, text string, canaries map[string]string) {
	w.t.Helper()
	for what, canary := range canaries {
		at := strings.Index(text, canary)
		if at < 0 {
			at = strings.Index(text, base64.StdEncoding.EncodeToString([]byte(canary)))
		}
		if at >= 0 {
			w.t.Errorf("%s shows the canary of %s: …%s…", where, what, text[max(0, at-80):min(len(text), at+60)])
		}
	}
}

// Values that nobody gave to the run and that only its state knows as sensitive, or its plan,
// are masked by value as well: in an apply that nobody looked at, in one that another process
// planned, in a destroy, and in what is said after an apply of what it made.
func TestSecretsOfTheStateStayInIt(t *testing.T) {
	// The module puts the values together, so that no file has them, and so do its commands.
	known := map[string]string{
		"state": "canary-state-7Tq1", "plan": "canary-plan-5Bn8", "variable": "canary-default-2Ws6", "apply": "canary-apply-4Fh2", "output": "canary-output-1Gy3",
	}
	value := func(name string) string {
		return fmt.Sprintf("join(\"-\", [\"canary\", %q])", strings.TrimPrefix(known[name], "canary-"))
	}
	tell := func(name string) string {
		return fmt.Sprintf("printf '%%s-%%s\\n' canary %s", strings.TrimPrefix(known[name], "canary-"))
	}
	kept := "resource \"terraform_data\" \"kept\" {\n  input = sensitive(" + value("state") + ")\n}\n" +
		"output \"o\" {\n  value     = " + value("output") + "\n  sensitive = true\n}\n"
	telling := func(when, command string) string {
		return "resource \"terraform_data\" \"tells\" {\n  depends_on = [terraform_data.kept]\n  provisioner \"local-exec\" {\n    when    = " + when + "\n    command = <<-EOT\n      " + command + "\n    EOT\n  }\n}\n"
	}
	planned := "variable \"d\" {\n  default   = \"canary-default-2Ws6\"\n  sensitive = true\n}\n" +
		"resource \"terraform_data\" \"planned\" {\n  input = sensitive(" + value("plan") + ")\n}\n"
	// Known only when terraform_data.before has been made.
	made := "resource \"terraform_data\" \"before\" {\n  input = \"apply-4Fh2\"\n}\n" +
		"resource \"terraform_data\" \"made\" {\n  input = sensitive(\"canary-${terraform_data.before.output}\")\n}\n"
	everything := tell("state") + "\n      " + tell("output")
	units := map[string]struct {
		reason, spec, module, state string
		log                         bool // whether its log is looked at
	}{
		"auto":    {"an apply that nobody looks at", "approvePlan: auto", planned + telling("create", everything+"\n      "+tell("plan")+"\n      "+tell("variable")), "", true},
		"restart": {"an apply by another process than the one that planned", "approvePlan: \"\"", planned + telling("create", everything+"\n      "+tell("plan")+"\n      "+tell("variable")), "pending", true},
		"fails":   {"the error of a provisioner", "approvePlan: auto", telling("create", "("+everything+") >&2\n      exit 1"), infra.ReasonApplyFailed, true},
		"quotes":  {"an error of a plan that quotes what the state lost the mark of", "approvePlan: auto", "resource \"terraform_data\" \"bad\" {\n  lifecycle {\n    precondition {\n      condition     = terraform_data.kept.output == \"\"\n      error_message = \"bad: ${terraform_data.kept.output}\"\n    }\n  }\n}\n", infra.ReasonPlanFailed, true},
		"makes":   {"an error about what the apply has just made; its log has it before anybody knows", "approvePlan: auto", made + strings.Replace(telling("create", tell("apply")+" >&2\n      exit 1"), "terraform_data.kept", "terraform_data.made", 1), infra.ReasonApplyFailed, false},
		"leaves":  {"a destroy that fails", "approvePlan: auto\ndestroyResourcesOnDeletion: true", telling("destroy", "("+everything+") >&2\n      exit 1"), "", true},
		"secret":  {"the same with the state in a Secret", "approvePlan: auto\nbackendConfig: {secretSuffix: secret}", telling("create", everything), "", true},
	}
	files := map[string]string{}
	for name := range units {
		files[name+"/main.tf"] = kept
	}
	w := newWorld(t, files)
	for name, u := range units {
		w.unit(name, "path: ./"+name+"\nretryInterval: 1h\nenableInventory: true\n"+strings.Replace(u.spec, "approvePlan: \"\"", "approvePlan: auto", 1))
	}
	for name, u := range units {
		w.awaitReady(name)
		w.change(name, func(tf *infra.Terraform) {
			if u.state == "pending" {
				tf.Spec.ApprovePlan = ""
			}
		})
		files[name+"/main.tf"] = kept + u.module
	}
	spawned := w.spawned("show")
	revision := w.commit(files)
	for name, u := range units {
		switch u.state {
		case "":
			w.awaitRevision(name, revision)
		case "pending":
		default:
			w.awaitReason(name, u.state)
			w.awaitEvent(name, u.state)
		}
	}
	pending := w.awaitPending("restart")
	shows := w.spawned("show") - spawned
	w.restart()
	w.change("restart", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = pending })
	w.awaitRevision("restart", revision)
	w.delete("leaves")
	w.awaitReason("leaves", infra.ReasonDestroyFailed)
	if shows > 1 {
		t.Errorf("%d plans were shown by a process of their own, to learn of their secrets; only that of the plan that waits is wanted", shows)
	}
	texts := w.everyText(map[string]string{})
	for name, u := range units {
		log := w.runLog(name)
		if u.log {
			texts["log of "+name] = log
		}
		if !strings.Contains(log, "(sensitive value)") && u.log {
			t.Errorf("%s: %s: the run told nothing, so this test shows nothing: %s", name, u.reason, log)
		}
		for _, what := range []string{"plan", "plan?format=json"} {
			_, texts["endpoint "+what+" of "+name] = w.get("/api/v1/units/terraform/"+w.ns+"/"+name+"/"+what, "")
		}
	}
	for where, text := range texts {
		if !strings.HasPrefix(where, "secrets/tfstate-") {
			w.noCanary(where, text, known)
		}
	}
}

// meant are the Secrets that hold canaries because somebody asked for it.
var meant = []string{"in", "env", "envfrom", "mapped", "cli", "template", "backend", "keys", "substitute", "from-sops", "from-substitute", "out-good"}

// everyText is all that the API and the data directory hold for whoever may read them.
func (w *world) everyText(canaries map[string]string) map[string]string {
	w.t.Helper()
	texts := map[string]string{}
	d, err := discovery.NewDiscoveryClientForConfig(w.api)
	must(w.t, err)
	api, err := dynamic.NewForConfig(w.api)
	must(w.t, err)
	lists, err := d.ServerPreferredNamespacedResources()
	must(w.t, err)
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		must(w.t, err)
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") || !strings.Contains(fmt.Sprint(r.Verbs), "list") {
				continue
			}
			objects, err := api.Resource(gv.WithResource(r.Name)).Namespace(w.ns).List(w.ctx(), metav1.ListOptions{})
			if err != nil {
				continue // served by nobody here
			}
			for _, o := range objects.Items {
				if r.Name == "secrets" && slices.Contains(meant, o.GetName()) {
					continue
				}
				// What somebody wrote into a spec is theirs; the test's own words are not what is looked for.
				delete(o.Object, "spec")
				o.SetManagedFields(nil)
				b, err := json.Marshal(o.Object)
				must(w.t, err)
				texts[r.Name+"/"+o.GetName()] = string(b)
			}
		}
	}
	outside := maps.Clone(canaries) // of the repository
	delete(outside, "module source")
	must(w.t, filepath.WalkDir(w.cfg.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return ignoreGone(err)
		}
		b = append(b, unzipped(b)...)
		w.noCanary(strings.TrimPrefix(path, w.cfg.DataDir), string(b), outside)
		return nil
	}))
	return texts
}
