// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What a path says before it is applied, seen in the cluster.

// get reads an object of the world's namespace.
func get[T client.Object](w *world, name string, o T) T {
	w.t.Helper()
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, o); err != nil {
		w.t.Fatal(err)
	}
	return o
}

const quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: quota}\nspec: {hard: {limits.memory: 20Gi}}\n"

// pod is the manifest of a Deployment without a namespace.
const pod = `apiVersion: apps/v1
kind: Deployment
metadata: {name: pod, labels: {app: pod}}
spec:
  replicas: 1
  selector: {matchLabels: {app: pod}}
  template:
    metadata: {labels: {app: pod}}
    spec: {containers: [{name: c, image: "podinfo:1.0.0"}]}
`

// transformers are those that kustomize has built in, each by its name.
func (w *world) transformers() map[string]string {
	selector := "target: {group: apps, version: v1, kind: Deployment, name: pod}\n"
	specs := map[string]string{
		"NamespaceTransformer":   "metadata: {name: t, namespace: " + w.ns + "}\nfieldSpecs: [{path: metadata/namespace, create: true}]\n",
		"PrefixTransformer":      "metadata: {name: t}\nprefix: pre-\nfieldSpecs: [{path: metadata/name}]\n",
		"SuffixTransformer":      "metadata: {name: t}\nsuffix: -post\nfieldSpecs: [{path: metadata/name}]\n",
		"AnnotationsTransformer": "metadata: {name: t}\nannotations: {by: annotations}\nfieldSpecs: [{path: metadata/annotations, create: true}]\n",
		"LabelTransformer":       "metadata: {name: t}\nlabels: {by: labels}\nfieldSpecs: [{path: metadata/labels, create: true}]\n",
		"ReplacementTransformer": "metadata: {name: t}\nreplacements:\n- source: {kind: ConfigMap, name: limits, fieldPath: data.memory}\n  targets: [{select: {kind: ResourceQuota}, fieldPaths: [spec.hard.limits\\.memory]}]\n",
		"PatchJson6902Transformer": "metadata: {name: t}\n" + selector +
			"jsonOp: |-\n  - {op: add, path: /metadata/labels/json, value: \"6902\"}\n",
		"PatchTransformer": "metadata: {name: t}\n" + selector +
			"patch: |-\n  - {op: add, path: /metadata/labels/patch, value: \"any\"}\n",
		"PatchStrategicMergeTransformer": "metadata: {name: t}\npatches: |-\n  apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: pod}\n  spec: {template: {spec: {serviceAccountName: merged}}}\n",
		"ImageTagTransformer":            "metadata: {name: t}\nimageTag: {name: podinfo, newTag: 6.0.0}\n",
		"ReplicaCountTransformer":        "metadata: {name: t}\nreplica: {name: pod, count: 2}\nfieldSpecs: [{path: spec/replicas, create: true, kind: Deployment}]\n",
	}
	for kind, spec := range specs {
		specs[kind] = "apiVersion: builtin\nkind: " + kind + "\n" + spec
	}
	return specs
}

var generators = map[string]string{
	"ConfigMapGenerator": "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: made}\nliterals: [a=b]\noptions: {disableNameSuffixHash: true}\n",
	"SecretGenerator":    "apiVersion: builtin\nkind: SecretGenerator\nmetadata: {name: hidden}\nliterals: [a=secret]\noptions: {disableNameSuffixHash: true}\n",
}

// order is that of the transformers: names are matched before they are changed.
var order = []string{
	"ReplacementTransformer", "PatchJson6902Transformer", "PatchTransformer", "PatchStrategicMergeTransformer", "ImageTagTransformer",
	"ReplicaCountTransformer", "AnnotationsTransformer", "LabelTransformer", "NamespaceTransformer", "PrefixTransformer", "SuffixTransformer",
}

// TestKustomizationTransformers runs each built-in transformer and generator, written
// into the kustomization file, and in files of their own.
func TestKustomizationTransformers(t *testing.T) {
	for name, inFiles := range map[string]bool{"inline": false, "files": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			files := map[string]string{
				"app/quota.yaml": quota, "app/pod.yaml": pod,
				"app/limits.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: limits}\ndata: {memory: 24Gi}\n",
			}
			file := "resources: [quota.yaml, pod.yaml, limits.yaml]\n"
			list := func(field string, kinds []string, texts map[string]string) {
				file += field + ":\n"
				for _, kind := range kinds {
					if inFiles {
						files["app/"+kind+".yaml"] = texts[kind]
						file += "- " + kind + ".yaml\n"
						continue
					}
					file += "- |-\n" + indent(texts[kind])
				}
			}
			list("generators", []string{"ConfigMapGenerator", "SecretGenerator"}, generators)
			list("transformers", order, w.transformers())
			files["app/kustomization.yaml"] = file
			rev := w.commit(files)
			w.app("app", "path: ./app\nprune: true")
			w.awaitAppAt("app", rev)

			q := get(w, "pre-quota-post", &corev1.ResourceQuota{})
			if got := q.Spec.Hard[corev1.ResourceLimitsMemory]; got.String() != "24Gi" {
				t.Errorf("replacement: limits.memory is %s", got.String())
			}
			d := get(w, "pre-pod-post", &appsv1.Deployment{})
			spec := d.Spec.Template.Spec
			for what, pair := range map[string][2]string{
				"annotations":   {q.Annotations["by"], "annotations"},
				"labels":        {q.Labels["by"], "labels"},
				"JSON patch":    {d.Labels["json"], "6902"},
				"patch":         {d.Labels["patch"], "any"},
				"merge":         {spec.ServiceAccountName, "merged"},
				"image":         {spec.Containers[0].Image, "podinfo:6.0.0"},
				"replicas":      {fmt.Sprint(*d.Spec.Replicas), "2"},
				"ConfigMap":     {get(w, "pre-made-post", &corev1.ConfigMap{}).Data["a"], "b"},
				"Secret":        {string(get(w, "pre-hidden-post", &corev1.Secret{}).Data["a"]), "secret"},
				"the unit's":    {q.Labels["kustomize.toolkit.fluxcd.io/name"], "app"},
				"inventory":     {fmt.Sprint(len(inventory(w.ks("app")))), "5"},
				"the selector":  {d.Spec.Selector.MatchLabels["app"], "pod"},
				"not templated": {d.Spec.Template.Labels["by"], ""},
			} {
				if pair[0] != pair[1] {
					t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
				}
			}
		})
	}
}

// TestKustomizationSpecTransforms changes what the path has by the fields of the spec,
// with a kustomization file that says something itself, and without one.
func TestKustomizationSpecTransforms(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{
		"scan/pod.yaml": pod,
		"file/pod.yaml": strings.ReplaceAll(pod, "name: pod", "name: filed"),
		"file/kustomization.yaml": `namespace: elsewhere
resources: [pod.yaml]
images: [{name: podinfo, newName: mirror/podinfo}]
patches:
- target: {kind: Deployment}
  patch: |
    - {op: add, path: /metadata/labels/own, value: file}
`,
	})
	for path, name := range map[string]string{"scan": "pod", "file": "filed"} {
		w.app(path, fmt.Sprintf(`path: ./%[1]s
prune: true
targetNamespace: %[2]s
images: [{name: podinfo, newTag: 5.2.0}]
patches:
- patch: |
    - {op: add, path: /metadata/labels/patch1, value: inline-json}
  target: {labelSelector: app=pod}
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: %[3]s, labels: {patch2: inline-yaml}}
- patch: |
    - {op: replace, path: /spec/replicas, value: 3}
  target: {group: apps, version: v1, kind: Deployment, name: %[3]s}
- patch: |
    - {op: add, path: /metadata/labels/patch1, value: wrong}
  target: {kind: Service}
`, path, w.ns, name))
	}
	for path, want := range map[string]struct{ name, image, own string }{
		"scan": {"pod", "podinfo:5.2.0", ""},
		"file": {"filed", "mirror/podinfo:5.2.0", "file"}, // fields of an image are merged
	} {
		w.awaitAppAt(path, rev)
		d := get(w, want.name, &appsv1.Deployment{})
		if d.Labels["patch1"] != "inline-json" || d.Labels["patch2"] != "inline-yaml" || *d.Spec.Replicas != 3 || d.Labels["own"] != want.own {
			t.Errorf("%s: patched to %v, %d replicas", path, d.Labels, *d.Spec.Replicas)
		}
		if got := d.Spec.Template.Spec.Containers[0].Image; got != want.image {
			t.Errorf("%s: image %s, want %s", path, got, want.image)
		}
	}
}

// TestKustomizationBuildMetadata notes on the objects where they come from, where the
// spec asks for it, and takes the notes off again.
func TestKustomizationBuildMetadata(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{
		"base/kustomization.yaml": "resources: [cm.yaml]\n",
		"base/cm.yaml":            w.cm("a", nil),
		"app/kustomization.yaml":  "resources: [../base]\nnamePrefix: p-\n",
	})
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppAt("app", rev)
	const origin, transformations = "config.kubernetes.io/origin", "alpha.config.kubernetes.io/transformations"
	for _, step := range []struct {
		options             []kustomizev1.BuildMetadataOption
		origin, transformed bool
	}{
		{nil, false, false},
		{[]kustomizev1.BuildMetadataOption{"originAnnotations"}, true, false},
		{[]kustomizev1.BuildMetadataOption{"transformerAnnotations"}, false, true},
		{[]kustomizev1.BuildMetadataOption{"originAnnotations", "transformerAnnotations"}, true, true},
		{[]kustomizev1.BuildMetadataOption{}, false, false},
	} {
		w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.BuildMetadata = step.options })
		w.awaitAppReady("app")
		a := w.configMap("p-a").Annotations
		if got := strings.TrimSpace(a[origin]); (got == "path: ../base/cm.yaml") != step.origin || (got != "") != step.origin {
			t.Errorf("%v: the origin is %q", step.options, got)
		}
		if got := a[transformations]; strings.Contains(got, "PrefixTransformer") != step.transformed || (got != "") != step.transformed {
			t.Errorf("%v: the transformations are %q", step.options, got)
		}
	}
}

// TestKustomizationVariables substitutes from the spec, from ConfigMaps and from Secrets:
// who comes later wins, the spec over all.
func TestKustomizationVariables(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{
		"app/sa.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: sa\n  namespace: " + w.ns +
			"\n  labels:\n    environment: ${env:=dev}\n    region: \"${_Region}\"\n    zone: \"${zone}\"\n    rack: ${rack}\n",
		"app/secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  namespace: " + w.ns + "\nstringData:\n  zone: ${zone}\n",
	})
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {zone: \"\\naz-1a\\n\", rack: r1, _Region: nowhere}")
	w.putSecret("hidden", map[string]string{"zone": "\naz-1b\n"})
	w.app("app", `path: ./app
prune: true
healthChecks: [{apiVersion: v1, kind: ServiceAccount, name: sa, namespace: `+w.ns+`}]
postBuild:
  substitute: {_Region: eu-central-1}
  substituteFrom: [{kind: ConfigMap, name: settings}, {kind: Secret, name: hidden}]`)
	ks := w.awaitAppAt("app", rev)
	if appCondition(ks, "Healthy").Status != metav1.ConditionTrue {
		t.Errorf("Healthy is %v", appCondition(ks, "Healthy"))
	}
	labels := get(w, "sa", &corev1.ServiceAccount{}).Labels
	for name, want := range map[string]string{"environment": "dev", "region": "eu-central-1", "zone": "az-1b", "rack": "r1", "kustomize.toolkit.fluxcd.io/name": "app"} {
		if labels[name] != want {
			t.Errorf("%s is %q, want %q", name, labels[name], want)
		}
	}
	if got := string(get(w, "s", &corev1.Secret{}).Data["zone"]); got != "az-1b" {
		t.Errorf("the Secret has %q", got)
	}
}

// TestKustomizationOptionalVariables goes on without what may be missing, whether it
// comes later or goes.
func TestKustomizationOptionalVariables(t *testing.T) {
	w := newWorld(t, nil)
	w.commit(map[string]string{"app/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: " + w.ns + "\ndata:\n  color: ${color:=blue}\n  shape: ${shape:=square}\n"})
	w.app("app", `path: ./app
prune: true
postBuild:
  substitute: {enabled: "true"}
  substituteFrom: [{kind: ConfigMap, name: colors, optional: true}, {kind: Secret, name: shapes, optional: true}]`)
	has := func(step, color, shape string) {
		t.Helper()
		w.awaitConfigMap("a", color+" and "+shape+" "+step, func(cm *corev1.ConfigMap) bool {
			return cm != nil && cm.Data["color"] == color && cm.Data["shape"] == shape
		})
		w.awaitAppReady("app")
	}
	has("without either", "blue", "square")
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: colors}\ndata: {color: red}")
	w.putSecret("shapes", map[string]string{"shape": "\ntriangle\n"})
	has("with both", "red", "triangle")
	w.deleteConfigMap("colors")
	if err := w.client.Delete(w.ctx(), get(w, "shapes", &corev1.Secret{})); err != nil {
		t.Fatal(err)
	}
	has("when both are gone", "blue", "square")
}

// TestKustomizationSubstituteStrategy leaves manifests alone when there is no variable at
// all, unless the strategy says otherwise.
func TestKustomizationSubstituteStrategy(t *testing.T) {
	w := newWorld(t, nil)
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n  namespace: " + w.ns + "\ndata:\n  a: ${gone:=default}\n  b: $${kept}\n"
	rev := w.commit(map[string]string{"with/cm.yaml": fmt.Sprintf(text, "with"), "always/cm.yaml": fmt.Sprintf(text, "always"), "none/cm.yaml": fmt.Sprintf(text, "none")})
	untouched := map[string]string{"a": "${gone:=default}", "b": "$${kept}"}
	replaced := map[string]string{"a": "default", "b": "${kept}"}
	for name, tc := range map[string]struct {
		post string
		want map[string]string
	}{
		"none":   {"", untouched},
		"with":   {"postBuild: {substituteStrategy: WithVariables}", untouched},
		"always": {"postBuild: {substituteStrategy: Always}", replaced},
	} {
		w.app(name, "path: ./"+name+"\nprune: true\n"+tc.post)
		w.awaitAppAt(name, rev)
		if got := w.configMap(name).Data; !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	// The first variable switches it on.
	w.changeApp("with", func(ks *kustomizev1.Kustomization) { ks.Spec.PostBuild.Substitute = map[string]string{"x": "y"} })
	w.awaitAppReady("with")
	if got := w.configMap("with").Data; !maps.Equal(got, replaced) {
		t.Errorf("with a variable: %v, want %v", got, replaced)
	}
}

// TestKustomizationVariableTypes puts words that YAML reads as numbers and booleans where
// strings are wanted, in each of the ways by which people keep them strings (case 12),
// and where numbers are.
func TestKustomizationVariableTypes(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{"app/all.yaml": `apiVersion: v1
kind: ConfigMap
metadata:
  name: a
  namespace: ` + w.ns + `
  labels:
    id: ${numberStr}
    enabled: ${booleanStr}
  annotations:
    id: ${q}${number}${q}
    enabled: ${q}${boolean}${q}
data:
  quoted: "${number}"
  joined: id-${number}
  zip: "${zip}"
  word: '${word}'
  exponent: "${exponent}"
  text: |
    escaped $${var}, number ${number}
---
apiVersion: v1
kind: Service
metadata:
  name: s
  namespace: ` + w.ns + `
spec:
  publishNotReadyAddresses: ${boolean}
  ports:
  - port: ${number}
`})
	w.app("app", `path: ./app
prune: true
postBuild:
  substitute:
    q: '"'
    number: "123"
    numberStr: "!!str 123"
    boolean: "true"
    booleanStr: "!!str true"
    zip: "004"
    word: "yes"
    exponent: "1e3"`)
	w.awaitAppAt("app", rev)
	cm := w.configMap("a")
	want := map[string]string{"quoted": "123", "joined": "id-123", "zip": "004", "word": "yes", "exponent": "1e3", "text": "escaped ${var}, number 123\n"}
	if !maps.Equal(cm.Data, want) {
		t.Errorf("data %v, want %v", cm.Data, want)
	}
	for what, m := range map[string]map[string]string{"labels": cm.Labels, "annotations": cm.Annotations} {
		if m["id"] != "123" || m["enabled"] != "true" {
			t.Errorf("%s: %v", what, m)
		}
	}
	if s := get(w, "s", &corev1.Service{}); s.Spec.Ports[0].Port != 123 || !s.Spec.PublishNotReadyAddresses {
		t.Errorf("the Service has %v", s.Spec)
	}
}

// TestKustomizationStrictVariables fails a build with a variable that nobody defines
// (case 13), and goes on the moment that somebody does.
func TestKustomizationStrictVariables(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{"app/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: " + w.ns + "\ndata:\n  host: ${host}\n  port: ${port:-80}\n"})
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars}\ndata: {other: x}")
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1h\npostBuild: {substituteFrom: [{kind: ConfigMap, name: vars}]}")
	ks := w.awaitAppReason("app", "BuildFailed")
	for _, text := range []string{"host", "ConfigMap/" + w.ns + "/a", "app/cm.yaml", "$${host}"} {
		if m := appReady(ks).Message; !strings.Contains(m, text) {
			t.Errorf("the condition does not say %q: %s", text, m)
		}
	}
	if w.configMap("a") != nil {
		t.Error("something was applied")
	}
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars}\ndata: {host: h}")
	w.awaitAppAt("app", rev)
	if got := w.configMap("a").Data; got["host"] != "h" || got["port"] != "80" {
		t.Errorf("data %v", got)
	}
}
