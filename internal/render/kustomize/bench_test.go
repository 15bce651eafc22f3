// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
)

// smallApp is a base with an overlay, of four objects, as most units are.
var smallApp = files{
	"base/kustomization.yaml":      "resources: [app.yaml]\n",
	"base/app.yaml":                deployment + "---\n" + service + "---\n" + serviceAccount + "---\n" + ingress,
	"apps/prod/kustomization.yaml": "namespace: prod\nresources: [../../base]\nimages:\n- name: nginx\n  newTag: \"1.29\"\npatches:\n- path: replicas.yaml\n",
	"apps/prod/replicas.yaml":      "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 3\n",
}

const (
	deployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: 1
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      serviceAccountName: web
      containers:
      - name: nginx
        image: nginx:1.28
        env:
        - name: REGION
          value: "${region:=eu}"
        ports:
        - containerPort: 8080
`
	service = `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: {app: web}
  ports:
  - port: 80
    targetPort: 8080
`
	serviceAccount = `apiVersion: v1
kind: ServiceAccount
metadata:
  name: web
`
	ingress = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
spec:
  rules:
  - host: web.${domain}
    http:
      paths:
      - path: /
        pathType: Prefix
        backend:
          service:
            name: web
            port: {number: 80}
`
)

func BenchmarkBuild(b *testing.B) {
	dir := smallApp.write(b)
	in := Input{Dir: dir, Strict: true, Variables: map[string]string{"domain": "example.org"}, Unit: unit("apps/prod", func(s *kustomizev1.KustomizationSpec) {
		s.PostBuild = &kustomizev1.PostBuild{}
	})}
	for b.Loop() {
		if out, err := Build(b.Context(), in); err != nil || len(out.Objects) != 4 {
			b.Fatal(out, err)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	dir := smallApp.write(b)
	out, err := Build(b.Context(), Input{Dir: dir, Unit: unit("apps/prod", nil)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := out.Reads.Digest(dir); err != nil {
			b.Fatal(err)
		}
	}
}
