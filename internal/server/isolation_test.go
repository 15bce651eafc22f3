// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/run/isolation"
	"github.com/terrace-dev/terrace/internal/server"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// TestRunSeesOnlyItsOwn has units whose HCL reads what is not theirs.
func TestRunSeesOnlyItsOwn(t *testing.T) {
	if isolation.Supported().Landlock == 0 {
		t.Skip("the kernel has no Landlock")
	}
	allowed := filepath.Join(privateDir(t), "allowed")
	if err := os.WriteFile(allowed, []byte("ALLOWED"), 0o600); err != nil {
		t.Fatal(err)
	}
	var dataDir string
	w := newWorld(t, map[string]string{"owner/main.tf": moduleA}, func(c *config.Config) {
		c.RunAllowRead = append(c.RunAllowRead, allowed)
		dataDir = c.DataDir
	})
	w.unit("owner", "path: ./owner\napprovePlan: auto")
	w.awaitReady("owner")
	secret := filepath.Join(dataDir, "canary")
	if err := os.WriteFile(secret, []byte("CANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	theirs, err := filepath.Glob(filepath.Join(dataDir, "units", w.ns, "owner", "work", "owner", "main.tf"))
	if err != nil || len(theirs) != 1 {
		t.Fatalf("the other unit's module is not where this test looks: %v, %v", theirs, err)
	}
	keys, err := filepath.Glob(filepath.Join(dataDir, "keys", "*"))
	if err != nil || len(keys) == 0 {
		t.Fatalf("no keys in the data directory: %v", err)
	}
	denied := map[string]string{
		"shadow": "/etc/shadow", "neighbour": theirs[0], "data": secret, "key": keys[0],
		"kubeconfig": testenv.Start(t).Kubeconfig, "token": filepath.Join(dataDir, server.ServerFile), "states": filepath.Join(dataDir, "keys", "states.key"),
		"environ": fmt.Sprintf("/proc/%d/environ", os.Getpid()),
	}
	files := map[string]string{}
	for name, path := range denied {
		files[name+"/main.tf"] = fmt.Sprintf("output \"o\" { value = file(%q) }\n", path)
		files[name+"-exec/main.tf"] = fmt.Sprintf("resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"cat '%s'\" }\n}\n", path)
	}
	files["given/main.tf"] = fmt.Sprintf("output \"o\" { value = file(%q) }\n", allowed)
	revision := w.commit(files)
	w.unit("given", "path: ./given\napprovePlan: auto\nwriteOutputsToSecret: {name: given}")
	for name := range denied {
		w.unit(name, "path: ./"+name+"\napprovePlan: auto\nwriteOutputsToSecret: {name: "+name+"}")
		w.unit(name+"-exec", "path: ./"+name+"-exec\napprovePlan: auto")
	}
	w.awaitRevision("given", revision)
	for name, path := range denied {
		for _, name := range []string{name, name + "-exec"} {
			tf := w.await(name, "failing", func(tf *infra.Terraform) bool {
				return tf.Status.ReconciliationFailures > 0 && readyOf(tf).Reason != infra.ReasonProgressing
			})
			message := readyOf(tf).Message
			if strings.Contains(message, "CANARY") || strings.Contains(w.runLog(name), "CANARY") {
				t.Errorf("%s: what %s holds was told: %s", name, path, message)
			}
			if !strings.Contains(message, "--run-allow-read") {
				t.Errorf("%s: the message does not say what to do: %s", name, message)
			}
		}
	}
}
