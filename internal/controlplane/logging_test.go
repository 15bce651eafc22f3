// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// TestFatalLinesFindTheirControlPlane sends the fatal line of a goroutine to the control
// plane that it belongs to, and that of a stopped one to nobody.
func TestFatalLinesFindTheirControlPlane(t *testing.T) {
	first, second := make(chan error, 1), make(chan error, 1)
	one := captureKubernetesLog(logr.Discard(), first)
	two := captureKubernetesLog(logr.Discard(), second)
	defer releaseKubernetesLog(two)
	// As a hook does it: from a goroutine that was started by one that was started there.
	fatal := func(number int64) {
		ended := make(chan struct{})
		labelled(number, func() {
			go func() {
				go func() {
					defer close(ended)
					klog.OsExit(255)
				}()
			}()
		})
		<-ended
	}
	fatal(one)
	if len(first) != 1 || len(second) != 0 {
		t.Errorf("a line of the first control plane: %d errors there, %d at the second", len(first), len(second))
	}
	releaseKubernetesLog(one)
	<-first
	fatal(one)
	if len(first) != 0 || len(second) != 0 {
		t.Errorf("a line of a stopped control plane: %d errors there, %d at the next", len(first), len(second))
	}
	fatal(two)
	if len(second) != 1 {
		t.Error("a line of the second control plane did not reach it")
	}
}
