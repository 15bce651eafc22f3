// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package https

import (
	"net"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

func TestCertificateIsRenewed(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	a, err := NewAuthority(clock, "test", nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := a.Certificate(nil); again != first {
		t.Error("a good certificate was replaced")
	}
	clock.SetTime(clock.Now().Add(serverLife - renewBefore))
	next, err := a.Certificate(nil)
	if err != nil || next == first {
		t.Errorf("an old certificate stays: %v", err)
	}
	if err := next.Leaf.CheckSignatureFrom(a.cert); err != nil {
		t.Error(err)
	}
}
