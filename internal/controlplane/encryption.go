// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"
)

// ensureEncryption makes the key of Secrets at first start. XSalsa20-Poly1305
// (secretbox) takes random nonces without a bound on their number that matters,
// unlike AES-GCM, whose key would have to be rotated; and it authenticates,
// unlike AES-CBC. There is no identity provider beside it: no Secret of this
// directory was ever written in the clear, and one that is found so is refused.
//
// A key that is missing beside a database is an error: a new one would leave
// every Secret unreadable, and the loss would show much later.
func ensureEncryption(d *directory) error {
	text, err := d.read(encryptionFile)
	if err != nil {
		return err
	}
	if text != nil {
		return checkEncryption(d, text)
	}
	if _, err := os.Stat(d.join(etcdDir, "member")); !errors.Is(err, os.ErrNotExist) {
		return &StartError{
			What: fmt.Sprintf("read %s: it is missing, and the Secrets in the database cannot be read without it", d.join(encryptionFile)),
			Hint: fmt.Sprintf("restore the file from a backup; or move %s away to begin with an empty control plane", d.join(etcdDir)),
			Err:  ErrCorrupt,
		}
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	text, err = yaml.Marshal(&apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserverv1.SchemeGroupVersion.String(), Kind: "EncryptionConfiguration"},
		Resources: []apiserverv1.ResourceConfiguration{{
			Resources: []string{"secrets"},
			Providers: []apiserverv1.ProviderConfiguration{{
				Secretbox: &apiserverv1.SecretboxConfiguration{
					Keys: []apiserverv1.Key{{Name: "1", Secret: base64.StdEncoding.EncodeToString(key)}},
				},
			}},
		}},
	})
	if err != nil {
		return err
	}
	return d.write(encryptionFile, text)
}

// checkEncryption accepts a file that encrypts Secrets with some key; a person
// may have added keys to rotate them.
func checkEncryption(d *directory, text []byte) error {
	var c apiserverv1.EncryptionConfiguration
	if err := yaml.UnmarshalStrict(text, &c); err != nil || len(c.Resources) == 0 {
		// The parser's error would quote the key.
		return &StartError{
			What: fmt.Sprintf("read %s: it is not an EncryptionConfiguration", d.join(encryptionFile)),
			Hint: "restore the file from a backup: the Secrets in the database cannot be read without it",
			Err:  ErrCorrupt,
		}
	}
	return nil
}

// writeAuthentication lets requests without a name reach health probes only.
// The file is written at each start: it holds no choice of the user.
func writeAuthentication(d *directory) error {
	text, err := yaml.Marshal(&apiserverv1.AuthenticationConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserverv1.SchemeGroupVersion.String(), Kind: "AuthenticationConfiguration"},
		JWT:      []apiserverv1.JWTAuthenticator{},
		Anonymous: &apiserverv1.AnonymousAuthConfig{
			Enabled:    true,
			Conditions: []apiserverv1.AnonymousAuthCondition{{Path: "/livez"}, {Path: "/readyz"}, {Path: "/healthz"}},
		},
	})
	if err != nil {
		return err
	}
	return d.write(authenticationFile, text)
}
