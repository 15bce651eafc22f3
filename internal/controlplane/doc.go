// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a complete Kubernetes API inside this process: the
// real kube-apiserver as a library, etcd below it, and the few controllers of
// kube-controller-manager without which an API server is not a usable one. Out
// come a rest.Config and a kubeconfig file. It knows nothing of Terrace's own
// kinds and controllers; package server/embedded puts both together.
//
// Everything that persists is in the data directory, which only its owner can
// enter (0700):
//
//	lock                who holds the directory (a lock on the file, not its content, decides)
//	kubeconfig          for people and tools: the administrator, certificates inline
//	pki/                the authority, serving and client certificates, service account key
//	encryption.yaml     the key with which Secrets are encrypted in etcd
//	authentication.yaml who may come without a name: health probes
//	etcd/               etcd's log and database
//	etcd.sock           the only door to etcd while it runs
//
// # What an embedded API server leaves out, and why
//
// No kubelet, scheduler or workload controller runs here, so what only serves
// them is off. Admission plugins that wait for a controller to finish their work
// would do harm: StorageObjectInUseProtection adds a finalizer that nobody
// would remove, ResourceQuota waits for a status that nobody would write. Those
// that only shape Pods (ServiceAccount, Priority, LimitRanger, PodSecurity, …)
// cost informers and change nothing. MutatingAdmissionPolicy reads the index of
// all schemas once a second, policy or not. Namespace lifecycle, certificate
// checks, admission webhooks and validating admission policies stay. Priority and fairness is off:
// its clients share one machine and one owner, the plain limits of requests in
// flight protect the process as well, and it would cost two dozen objects, their
// informers and a timer. The identity lease, which an API server renews every
// ten seconds for its peers, is off: there are no peers, and an idle control
// plane must not write. The publisher of the root certificate to each namespace
// is left out too: only Pods read it, and it costs one write a namespace and a
// cache of all ConfigMaps.
package controlplane
