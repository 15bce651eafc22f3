// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/bench/rig"
)

const (
	namespace      = "kustomize-benchmark"
	floorNamespace = "kustomize-benchmark-floor"
	account        = "flux"         // that is impersonated
	shared         = "shared"       // ConfigMap that every unit substitutes from
	source         = "bench-source" // GitRepository that every unit comes from
)

// The values of MCPU before and after the upgrade.
const (
	firstCPU  = "1m"
	secondCPU = "2m"
)

// podinfo is what every app is. The variables are those of Flux's workload.
const podinfo = `apiVersion: v1
kind: ServiceAccount
metadata:
  name: podinfo-${INDEX}
---
apiVersion: v1
kind: Service
metadata:
  name: podinfo-${INDEX}
spec:
  type: ClusterIP
  selector:
    app: podinfo-${INDEX}
  ports:
    - name: http
      port: 9898
      protocol: TCP
      targetPort: http
    - name: grpc
      port: 9999
      protocol: TCP
      targetPort: grpc
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: podinfo-${INDEX}
spec:
  replicas: ${PODS}
  minReadySeconds: 3
  revisionHistoryLimit: 5
  progressDeadlineSeconds: 60
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
  selector:
    matchLabels:
      app: podinfo-${INDEX}
  template:
    metadata:
      labels:
        app: podinfo-${INDEX}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "9797"
    spec:
      serviceAccountName: podinfo-${INDEX}
      containers:
        - name: podinfod
          image: ghcr.io/stefanprodan/podinfo:6.5.3
          imagePullPolicy: IfNotPresent
          ports:
            - name: http
              containerPort: 9898
              protocol: TCP
            - name: http-metrics
              containerPort: 9797
              protocol: TCP
            - name: grpc
              containerPort: 9999
              protocol: TCP
          command:
            - ./podinfo
            - --port=9898
            - --port-metrics=9797
            - --grpc-port=9999
            - --level=info
          env:
            - name: PODINFO_UI_COLOR
              value: "#34577c"
            - name: PODINFO_UI_MESSAGE
              value: "app ${INDEX}"
          livenessProbe:
            exec:
              command: [podcli, check, http, "localhost:9898/healthz"]
            initialDelaySeconds: 5
            timeoutSeconds: 5
          readinessProbe:
            exec:
              command: [podcli, check, http, "localhost:9898/readyz"]
            initialDelaySeconds: 5
            timeoutSeconds: 5
          resources:
            limits:
              cpu: 2000m
              memory: 512Mi
            requests:
              cpu: ${MCPU}
              memory: 64Mi
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: podinfo-${INDEX}
spec:
  ingressClassName: nginx
  rules:
    - host: podinfo-${INDEX}.example.com
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: podinfo-${INDEX}
                port:
                  number: 9898
`

// index is the variable of the i-th app, as in Flux's workload.
func index(i int) string { return fmt.Sprintf("%dapp", i) }

// appName names the Kustomization of the i-th app, and its directory.
func appName(i int) string { return fmt.Sprintf("podinfo-%d", i) }

// file is where the manifest of an app is in the repository.
func file(app string) string { return path.Join("apps", app, "podinfo.yaml") }

// substituted is the manifest as a unit would have it, for the bare client.
func substituted(i int, mcpu string) string {
	return strings.NewReplacer("${INDEX}", index(i), "${PODS}", "0", "${MCPU}", mcpu).Replace(podinfo)
}

// kustomization is the i-th unit.
func kustomization(i int) *kustomizev1.Kustomization {
	return &kustomizev1.Kustomization{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: appName(i)},
		Spec: kustomizev1.KustomizationSpec{
			Interval:           metav1.Duration{Duration: time.Hour},
			RetryInterval:      &metav1.Duration{Duration: 2 * time.Minute},
			Timeout:            &metav1.Duration{Duration: time.Minute},
			SourceRef:          kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: source},
			Path:               "./apps/" + appName(i),
			Prune:              true,
			Wait:               true,
			ServiceAccountName: account,
			TargetNamespace:    namespace,
			PostBuild: &kustomizev1.PostBuild{
				Substitute:     map[string]string{"INDEX": index(i), "PODS": "0"},
				SubstituteFrom: []kustomizev1.SubstituteReference{{Kind: "ConfigMap", Name: shared}},
			},
		},
	}
}

// ofSource tells the requests that are made for the source and its events from those
// for the units. An event is named like what it is about, with a dot after it.
func ofSource(r *http.Request) bool {
	resource, name := rig.Target(r.URL.Path)
	switch {
	case strings.HasPrefix(resource, "gitrepositories"):
		return true
	case resource != "events":
		return false
	case r.Method != http.MethodPost:
		return strings.HasPrefix(name, source+".")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false // the server will have the same trouble, and answer it
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return bytes.Contains(body, []byte(source+"."))
}

// tenant makes a namespace and the account that may administer it.
func tenant(ctx context.Context, c client.Client, name string) error {
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: account}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: account},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: name, Name: account}},
		},
	} {
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, name, err)
		}
	}
	return nil
}

// user is the account's name as a user.
func user(namespace string) string {
	return "system:serviceaccount:" + namespace + ":" + account
}

// writeApps makes the repository: a directory for each app, and a file of none.
func writeApps(ctx context.Context, r rig.Repository, apps int) error {
	for i := range apps {
		if err := r.Write(file(appName(i)), podinfo); err != nil {
			return err
		}
	}
	if err := r.Write("README.md", "# Bench\n"); err != nil {
		return err
	}
	return r.Init(ctx)
}

// ready tells that the unit's spec was reconciled with success.
func ready(ks *kustomizev1.Kustomization) bool {
	if ks.Status.ObservedGeneration != ks.Generation {
		return false
	}
	for _, c := range ks.Status.Conditions {
		if c.Type == meta.ReadyCondition {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

// digest is that of what the unit was built to last, "" before the first time.
func digest(ks *kustomizev1.Kustomization) string {
	if len(ks.Status.History) == 0 {
		return ""
	}
	return ks.Status.History[0].Digest
}

// said is a unit's own account of itself.
func said(ks *kustomizev1.Kustomization) string {
	for _, c := range ks.Status.Conditions {
		if c.Type == meta.ReadyCondition {
			return c.Message
		}
	}
	return "no Ready condition"
}
