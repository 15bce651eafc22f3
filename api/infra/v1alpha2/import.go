// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ImportAnnotation asks, when its value changes, that an object that exists is taken into
// the state: an ImportRequest as JSON.
const ImportAnnotation = "terrace.dev/import"

// MaxImportRequest bounds the value of ImportAnnotation, in bytes.
const MaxImportRequest = 8 << 10

// ImportRequest is what ImportAnnotation asks for.
//
// +kubebuilder:object:generate=false
type ImportRequest struct {
	// Address is the resource instance that takes the object over, such as aws_vpc.main or
	// module.net["a"].aws_subnet.s[0].
	Address string `json:"address"`
	// ID names the object as its provider does.
	ID string `json:"id"`
	// RequestedAt is a time or any other token. Another one asks for the same once more.
	RequestedAt string `json:"requestedAt"`
}

// String is the value of ImportAnnotation.
func (r ImportRequest) String() string {
	b, err := json.Marshal(r)
	if err != nil { // texts always encode
		return ""
	}
	return string(b)
}

// ParseImport reads the value of ImportAnnotation. What address and id may be is not
// looked at.
func ParseImport(value string) (ImportRequest, error) {
	var r ImportRequest
	fail := func(err error) (ImportRequest, error) {
		return ImportRequest{}, fmt.Errorf("annotation %s: %w; it is {\"address\": …, \"id\": …, \"requestedAt\": …}", ImportAnnotation, err)
	}
	if len(value) > MaxImportRequest {
		return fail(fmt.Errorf("it is longer than %d bytes", MaxImportRequest))
	}
	d := json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return fail(errors.New("it is no JSON object of these fields"))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("something follows the object"))
	}
	if r.Address == "" || r.ID == "" || r.RequestedAt == "" {
		return fail(errors.New("a field is missing"))
	}
	return r, nil
}

// ImportName names a request by the whole value of ImportAnnotation, whatever is in it:
// "import-" and hexadecimal digits. It is what v1alpha1.FormatApproval takes as the plan.
func ImportName(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "import-" + hex.EncodeToString(sum[:8])
}
