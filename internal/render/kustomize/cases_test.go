// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxkustomize "github.com/fluxcd/pkg/apis/kustomize"
)

// buildCase is a tree with a unit. Each is built by this package and by Flux's,
// and the objects are compared.
type buildCase struct {
	reason string
	files  files
	path   string
	spec   func(*kustomizev1.KustomizationSpec)
	want   []string // Kind/namespace/name, in order
}

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  a: b\n"

var buildCases = map[string]buildCase{
	"overlay": {
		reason: "a base outside of the path, a patch file and an image in the overlay",
		files:  smallApp,
		path:   "./apps/prod",
		want:   []string{"Deployment/prod/web", "Service/prod/web", "ServiceAccount/prod/web", "Ingress/prod/web"},
	},
	"names and namespace": {
		reason: "the unit's prefix, suffix and namespace go over the file's, and references follow",
		files: files{
			"kustomization.yaml": "namePrefix: file-\nnamespace: file\nresources: [all.yaml]\n",
			"all.yaml":           deployment + "---\n" + serviceAccount,
		},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.NamePrefix, s.NameSuffix, s.TargetNamespace = "blue-", "-x", "team"
		},
		want: []string{"Deployment/team/blue-web-x", "ServiceAccount/team/blue-web-x"},
	},
	"scan": {
		reason: "without a kustomization file every YAML file counts, in the order of a walk, and nothing else",
		files: files{
			"app/z.yaml":          serviceAccount,
			"app/a.yml":           service,
			"app/sub/deploy.yaml": deployment,
			"app/README.md":       "not a manifest: [",
			"app/script.sh":       "exit 0",
			"other/x.yaml":        configMap,
		},
		path: "app",
		want: []string{"Service//web", "Deployment//web", "ServiceAccount//web"},
	},
	"scan with bases": {
		reason: "a directory with a kustomization file is a resource and is not scanned",
		files: files{
			"base/kustomization.yml": "resources: [sa.yaml]\nnamePrefix: based-\n",
			"base/sa.yaml":           serviceAccount,
			"base/ignored.yaml":      configMap,
			"base/deep/also.yaml":    configMap,
			"plain/Kustomization":    "resources: [cm.yaml]\n",
			"plain/cm.yaml":          configMap,
			"service.yaml":           service,
		},
		want: []string{"ServiceAccount//based-web", "ConfigMap//settings", "Service//web"},
	},
	"scan of empty documents": {
		reason: "a file without an object is a manifest of nothing",
		files:  files{"a.yaml": "# nothing\n", "b.yaml": "---\n---\n" + configMap},
		want:   []string{"ConfigMap//settings"},
	},
	"empty": {
		reason: "a directory without manifests applies nothing",
		files:  files{"app/README.md": "soon"},
		path:   "app",
	},
	"file without resources": {
		reason: "a kustomization file that has nothing to build is not an error",
		files:  files{"kustomization.yaml": "resources: []\n"},
	},
	"components": {
		reason: "components of the spec come after those of the file, relative to the path",
		files: files{
			"app/kustomization.yaml": "resources: [cm.yaml]\ncomponents: [../parts/one]\n",
			"app/cm.yaml":            configMap,
			"parts/one/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches:\n" +
				"- patch: |\n    apiVersion: v1\n    kind: ConfigMap\n    metadata:\n      name: settings\n    data:\n      one: '1'\n      last: one\n",
			"parts/two/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches:\n" +
				"- patch: |\n    apiVersion: v1\n    kind: ConfigMap\n    metadata:\n      name: settings\n    data:\n      two: '2'\n      last: two\n",
		},
		path: "app",
		spec: func(s *kustomizev1.KustomizationSpec) { s.Components = []string{"../parts/two"} },
		want: []string{"ConfigMap//settings"},
	},
	"missing components": {
		reason: "ignoreMissingComponents passes over a component that is not there",
		files:  files{"cm.yaml": configMap},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.Components = []string{"gone"}
			s.IgnoreMissingComponents = true
		},
		want: []string{"ConfigMap//settings"},
	},
	"patches": {
		reason: "merge and JSON patches of the spec, by name and by selector",
		files:  files{"app.yaml": deployment + "---\n" + service},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.Patches = []fluxkustomize.Patch{
				{Patch: "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 5\n"},
				{Patch: "- op: add\n  path: /metadata/annotations\n  value: {team: \"7\"}\n", Target: &fluxkustomize.Selector{Kind: "Service"}},
				{Patch: "apiVersion: v1\nkind: x\nmetadata:\n  name: x\n  labels:\n    all: \"true\"\n", Target: &fluxkustomize.Selector{LabelSelector: "app=web"}},
				{Patch: "$patch: delete\napiVersion: v1\nkind: x\nmetadata:\n  name: x\n", Target: &fluxkustomize.Selector{Name: "nobody"}},
			}
		},
		want: []string{"Deployment//web", "Service//web"},
	},
	"images": {
		reason: "fields of an image are merged; a tag replaces a digest and the other way round",
		files: files{
			"kustomization.yaml": "resources: [app.yaml]\nimages:\n- name: nginx\n  newName: registry/nginx\n  digest: sha256:aaaa\n- name: other\n  newTag: v1\n",
			"app.yaml":           deployment,
		},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.Images = []fluxkustomize.Image{{Name: "nginx", NewTag: "2.0"}, {Name: "third", NewTag: "x"}}
		},
		want: []string{"Deployment//web"},
	},
	"generators": {
		reason: "names with hashes, references to them, literals, env and files, binary data",
		files: files{
			"kustomization.yaml": "resources: [app.yaml]\nconfigMapGenerator:\n- name: env\n  envs: [app.properties]\n  files: [run.sh, binary.bin]\n  literals: [n=004, yes=yes]\n" +
				"secretGenerator:\n- name: keys\n  files: [key=secret.txt]\n  options: {disableNameSuffixHash: true}\n",
			"app.yaml":       "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: c\n    image: i\n    envFrom:\n    - configMapRef: {name: env}\n",
			"app.properties": "A=1\nB=two\n", "run.sh": "#!/bin/sh\necho hi\n", "binary.bin": "\xff\xfe\x00", "secret.txt": "s3cret",
		},
		want: []string{"Pod//p", "ConfigMap//env-t7fhb4692f", "Secret//keys"},
	},
	"build metadata": {
		reason: "origin annotations are relative to the path",
		files:  smallApp,
		path:   "apps/prod",
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.BuildMetadata = []kustomizev1.BuildMetadataOption{"originAnnotations", "transformerAnnotations"}
		},
		want: []string{"Deployment/prod/web", "Service/prod/web", "ServiceAccount/prod/web", "Ingress/prod/web"},
	},
	"common metadata": {
		reason: "labels and annotations of the spec go on every object, over what it has",
		files:  files{"a.yaml": service + "---\n" + deployment},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.CommonMetadata = &kustomizev1.CommonMetadata{Labels: map[string]string{"app": "common"}, Annotations: map[string]string{"x": "y"}}
		},
		want: []string{"Service//web", "Deployment//web"},
	},
	"lists": {
		reason: "lists are taken apart",
		files:  files{"a.yaml": "apiVersion: v1\nkind: ConfigMapList\nitems:\n- " + indent(configMap) + "\n- apiVersion: v1\n  kind: ServiceAccount\n  metadata: {name: x}\n"},
		want:   []string{"ConfigMap//settings", "ServiceAccount//x"},
	},
	"values": {
		reason: "numbers, booleans, nulls, words of YAML 1.1, anchors and merges mean what they mean to kustomize",
		files: files{"a.yaml": `apiVersion: example.org/v1
kind: Thing
metadata: {name: thing}
spec:
  whole: 1.0
  large: 12345678901234567890
  small: 1e-7
  exponent: 1e3
  octal: 0o17
  old: 017
  hex: 0x1F
  word: yes
  other: off
  bool: true
  none: null
  empty:
  tilde: ~
  quoted: "004"
  date: 2026-11-30
  time: 2026-11-30T10:00:00Z
  block: |
    line one
      line two
  folded: >-
    a
    b
  base: &base {x: 1, y: [1, 2]}
  alias: *base
  merged: {<<: *base, z: 3}
  list: []
  map: {}
  tagged: !!str 12
  "key: odd": v
  ünïcode: "ü\t\u0001"
`},
		want: []string{"Thing//thing"},
	},
	"local objects": {
		reason: "objects marked as local are dropped, as is a stray kustomization",
		files: files{
			"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: local\n  annotations: {config.kubernetes.io/local-config: \"true\"}\n---\n" + configMap,
		},
		want: []string{"ConfigMap//settings"},
	},
	"replacements and vars": {
		reason: "values move between objects",
		files: files{
			"kustomization.yaml": "resources: [cm.yaml, d.yaml]\nreplacements:\n- source: {kind: ConfigMap, name: settings, fieldPath: data.a}\n  targets:\n  - select: {kind: Deployment}\n    fieldPaths: [spec.template.spec.containers.0.image]\n",
			"cm.yaml":            configMap, "d.yaml": deployment,
		},
		want: []string{"ConfigMap//settings", "Deployment//web"},
	},
	"own schema": {
		reason: "a tree may bring an OpenAPI schema, by which lists of a custom resource merge",
		files: files{
			"kustomization.yaml": "resources: [cr.yaml]\nopenapi: {path: schema.json}\npatches:\n- patch: |\n    apiVersion: example.org/v1\n    kind: Thing\n    metadata: {name: thing}\n    spec:\n      parts:\n      - name: b\n        size: 20\n",
			"cr.yaml":            "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: thing}\nspec:\n  parts:\n  - name: a\n    size: 1\n  - name: b\n    size: 2\n",
			"schema.json": `{"definitions":{"v1.Thing":{"properties":{"spec":{"properties":{"parts":{"items":{"type":"object"},"type":"array",` +
				`"x-kubernetes-patch-merge-key":"name","x-kubernetes-patch-strategy":"merge"}}}},"x-kubernetes-group-version-kind":[{"group":"example.org","kind":"Thing","version":"v1"}]}}}`,
		},
		want: []string{"Thing//thing"},
	},
	"crds": {
		reason: "definitions of CRDs tell which fields are references to names",
		files: files{
			"kustomization.yaml": "namePrefix: p-\nresources: [cr.yaml, cm.yaml]\ncrds: [crd.json]\n",
			"cr.yaml":            "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: thing}\nspec:\n  ref: {name: settings}\n",
			"cm.yaml":            configMap,
			"crd.json": `{"example.org/v1.Thing":{"Schema":{"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},` +
				`"spec":{"properties":{"ref":{"type":"object","x-kubernetes-object-ref-api-version":"v1","x-kubernetes-object-ref-kind":"ConfigMap","properties":{"name":{"type":"string"}}}}}}},"Dependencies":[]}}`,
		},
		want: []string{"Thing//p-thing", "ConfigMap//p-settings"},
	},
	"transformers": {
		reason: "transformer files and inline generators are built in",
		files: files{
			"kustomization.yaml": "resources: [cm.yaml]\ntransformers: [label.yaml]\ngenerators:\n- |-\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: made}\n  literals: [a=b]\n  options: {disableNameSuffixHash: true}\n",
			"cm.yaml":            configMap,
			"label.yaml":         "apiVersion: builtin\nkind: LabelTransformer\nmetadata: {name: l}\nlabels: {by: transformer}\nfieldSpecs:\n- path: metadata/labels\n  create: true\n",
		},
		want: []string{"ConfigMap//settings", "ConfigMap//made"},
	},
	"variables": {
		reason: "plain text with variables",
		files: files{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ${name}\n  labels:\n    id: ${q}${number}${q}\n    \"${key}\": v\ndata:\n" +
			"  plain: id-${number}\n  default: ${gone:=fallback}\n  part: ${name:0:2}\n  replaced: ${name/a/b}\n  upper: ${name^^}\n  escaped: $${name}\n  dollar: a$$b\n" +
			"  text: |\n    host=${name}\n      $${kept}\n  long: >-\n    ${name} and\n    ${name}\n---\n" +
			"apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: thing}\nspec:\n  number: ${number}\n  yes: ${yes}\n  exponent: ${exponent}\n  list: ${list}\n  map: ${map}\n  empty: ${empty}\n  items:\n  - ${number}\n  - ${list}\n  - a-${yes}\n  commented: ${commented}\n"},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.PostBuild = &kustomizev1.PostBuild{Substitute: map[string]string{
				"name": "alpha", "number": "004", "q": `"`, "key": "the-key", "yes": "yes", "exponent": "1e3", "list": "[1, two]", "map": "{a: 1}", "empty": "", "commented": "a # b",
			}}
		},
		want: []string{"ConfigMap//alpha", "Thing//thing"},
	},
	"variables switched off": {
		reason: "label or annotation keep an object as it is",
		files: files{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\n  annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}\ndata:\n  a: ${gone}\n---\n" +
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: two\n  labels: {kustomize.toolkit.fluxcd.io/substitute: disabled}\ndata:\n  a: ${gone}\n"},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.PostBuild = &kustomizev1.PostBuild{Substitute: map[string]string{"a": "b"}}
		},
		want: []string{"ConfigMap//one", "ConfigMap//two"},
	},
	"strategy always": {
		reason: "without variables, Always still applies defaults",
		files:  files{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ${n:=dflt}\n"},
		spec: func(s *kustomizev1.KustomizationSpec) {
			s.PostBuild = &kustomizev1.PostBuild{SubstituteStrategy: kustomizev1.SubstituteStrategyAlways}
		},
		want: []string{"ConfigMap//dflt"},
	},
	"strategy with variables": {
		reason: "without variables, the text stays",
		files:  files{"a.yaml": configMap + "  x: ${y} $$\n"},
		spec:   func(s *kustomizev1.KustomizationSpec) { s.PostBuild = &kustomizev1.PostBuild{} },
		want:   []string{"ConfigMap//settings"},
	},
	"path that climbs": {
		reason: "a path cannot leave the artifact: what is above its root is its root",
		files:  files{"app/a.yaml": configMap},
		path:   "../../app/",
		want:   []string{"ConfigMap//settings"},
	},
}

func indent(s string) string {
	out := ""
	for i, r := range s {
		if i > 0 && s[i-1] == '\n' {
			out += "  "
		}
		out += string(r)
	}
	return out
}
