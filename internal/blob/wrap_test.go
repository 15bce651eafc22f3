// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"
	_ "gocloud.dev/secrets/awskms"
	_ "gocloud.dev/secrets/hashivault"
	_ "gocloud.dev/secrets/localsecrets"
)

// Keys of 32 bytes, as base64key:// has them.
const (
	keyA = "base64key://smGbjm71Nxd1Ig5FS0wj9SlbzAIrnolCz9bQQ6uAhl4="
	keyB = "base64key://AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

// fakeKMS does what its functions say; what it encrypts begins with its sign.
type fakeKMS struct {
	encrypt, decrypt func(context.Context, []byte) ([]byte, error)
}

const fakeSign = "by the fake: "

var fakes sync.Map // of the URL's host

func init() { secrets.DefaultURLMux().RegisterKeeper("fakekms", fakeOpener{}) }

type fakeOpener struct{}

func (fakeOpener) OpenKeeperURL(_ context.Context, u *url.URL) (*secrets.Keeper, error) {
	k, ok := fakes.Load(u.Host)
	if !ok {
		return nil, errors.New("open keeper " + u.String() + ": there is none")
	}
	return secrets.NewKeeper(k.(*fakeKMS)), nil
}

func (k *fakeKMS) Encrypt(ctx context.Context, plain []byte) ([]byte, error) {
	if k.encrypt != nil {
		return k.encrypt(ctx, plain)
	}
	return append([]byte(fakeSign), plain...), nil
}

func (k *fakeKMS) Decrypt(ctx context.Context, sealed []byte) ([]byte, error) {
	if k.decrypt != nil {
		return k.decrypt(ctx, sealed)
	}
	plain, ok := bytes.CutPrefix(sealed, []byte(fakeSign))
	if !ok {
		return nil, errors.New("not mine")
	}
	return plain, nil
}

func (k *fakeKMS) Close() error                       { return nil }
func (k *fakeKMS) ErrorAs(error, any) bool            { return false }
func (k *fakeKMS) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }
func denied(context.Context, []byte) ([]byte, error)  { return nil, errors.New("denied") }
func garbled(_ context.Context, b []byte) ([]byte, error) {
	return bytes.Repeat([]byte("x"), fileKeySize), nil
}
func short(context.Context, []byte) ([]byte, error)        { return nil, nil }
func panics(context.Context, []byte) (out []byte, _ error) { return []byte{out[1]}, nil }

// inTheClear tells whether a key file can be read without a KMS.
func inTheClear(t *testing.T, file string) bool {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(data, []byte("AGE-SECRET-KEY-1"))
}

// TestWrappedKeyFile takes one key file through every change of KMS keys: what was sealed
// at the beginning stays readable, and the file opens with the keys that it is to open
// with and no other.
func TestWrappedKeyFile(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "k")
	var d digest.Digest
	var name []byte
	for _, step := range []struct {
		reason string
		kms    []string
		clear  bool     // how the file is afterwards
		wraps  []string // what BeforeWrap is told
		refuse []string // what opens it no more afterwards
	}{
		{"a new file is wrapped from the first byte on", []string{keyA}, false, nil, []string{"", keyB, Unwrapped}},
		{"the same key again", []string{keyA}, false, nil, nil},
		{"another key, with the old one to open it", []string{keyB, keyA}, false, []string{"base64key", "base64key"}, []string{keyA}},
		{"the new key alone", []string{keyB}, false, nil, nil},
		{"back to the old one", []string{keyA, keyB}, false, []string{"base64key", "base64key"}, []string{keyB}},
		{"off", []string{Unwrapped, keyA}, true, []string{"base64key", ""}, nil},
		{"none at all", nil, true, nil, nil},
		{"none, by name", []string{Unwrapped}, true, nil, nil},
		{"a file in the clear is wrapped", []string{keyB}, false, []string{"", "base64key"}, []string{"", keyA}},
	} {
		var wraps []string
		s, err := Open(t.Context(), Options{URL: dir, KeyFile: file, KMSKeys: step.kms, BeforeWrap: func(before, after string) error {
			wraps = append(wraps, before, after)
			return nil
		}})
		if err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		if d == "" {
			if d, _, err = s.Seal(t.Context(), strings.NewReader("kept")); err != nil {
				t.Fatal(err)
			}
			if !s.KeyFile().Created {
				t.Errorf("%s: it is not said to be new", step.reason)
			}
		}
		r, err := s.Unseal(t.Context(), d)
		if got := content(t, r, err); got != "kept" {
			t.Errorf("%s: unsealed %q", step.reason, got)
		}
		key, err := s.Key("names")
		if name == nil {
			name = key
		}
		if err != nil || !bytes.Equal(key, name) {
			t.Errorf("%s: a derived key changed: %v", step.reason, err)
		}
		if got := inTheClear(t, file); got != step.clear || (s.KeyFile().WrappedBy == "") != step.clear {
			t.Errorf("%s: in the clear: %v, said to be wrapped by %q", step.reason, got, s.KeyFile().WrappedBy)
		}
		if diff := cmp.Diff(step.wraps, wraps); diff != "" {
			t.Errorf("%s: BeforeWrap -want, +got:\n%s", step.reason, diff)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, kms := range step.refuse {
			was, _ := os.ReadFile(file)
			var keys []string
			if kms != "" {
				keys = []string{kms}
			}
			_, err := Open(t.Context(), Options{URL: dir, KeyFile: file, KMSKeys: keys})
			var open *OpenError
			if !errors.As(err, &open) || !strings.Contains(open.Hint(), "--kms-key") {
				t.Errorf("%s: opened with %q: %v", step.reason, kms, err)
			} else if text := err.Error() + open.Hint(); strings.Contains(text, "smGb") || strings.Contains(text, "AAEC") {
				t.Errorf("%s: the error shows a key: %s", step.reason, text)
			}
			if now, _ := os.ReadFile(file); !bytes.Equal(was, now) {
				t.Errorf("%s: a refused key changed the file", step.reason)
			}
		}
	}
}

// TestRotationOfAWrappedKeyFile: every write of the file wraps it, and another process
// sees it.
func TestRotationOfAWrappedKeyFile(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "k")
	o := Options{URL: dir, KeyFile: file, KMSKeys: []string{keyA}}
	s, other := open(t, o), open(t, o)
	d, _, err := s.Seal(t.Context(), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, _, err := other.Reseal(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if current, err := s.Current(t.Context(), again); !current || err != nil {
		t.Errorf("another process seals to the old identity: %v", err)
	}
	if err := s.Delete(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Retire(t.Context()); n != 1 || err != nil {
		t.Errorf("Retire = %d, %v", n, err)
	}
	if inTheClear(t, file) {
		t.Error("rotation took the wrapping off")
	}
	r, err := open(t, o).Unseal(t.Context(), again)
	if got := content(t, r, err); got != "x" {
		t.Errorf("unsealed %q", got)
	}
}

// TestKMSThatFails: whatever it does not do, the key file stays as it was, and there is
// none when there was none.
func TestKMSThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		kms    *fakeKMS
		before func(string, string) error
		want   string
	}{
		"NoEncrypt":   {reason: "nothing can be wrapped", kms: &fakeKMS{encrypt: denied}, want: "encrypt with fakekms: "},
		"NoDecrypt":   {reason: "what it wraps would never be opened again", kms: &fakeKMS{decrypt: denied}, want: "decrypt with fakekms: "},
		"OtherAnswer": {reason: "it decrypts to another key", kms: &fakeKMS{decrypt: garbled}, want: "bad header MAC"},
		"NoAnswer":    {reason: "it answers with nothing", kms: &fakeKMS{decrypt: short}, want: "the answer is no key of a file"},
		"Panic":       {reason: "the driver of Vault does, at an empty answer", kms: &fakeKMS{encrypt: panics}, want: "the driver does not understand the answer"},
		"NotRecorded": {reason: "what is not recorded does not happen", kms: &fakeKMS{}, before: func(string, string) error { return errors.New("the ledger is full") }, want: "the ledger is full"},
	} {
		t.Run(name, func(t *testing.T) {
			fakes.Store(strings.ToLower(name), tc.kms)
			dir, file := t.TempDir(), filepath.Join(t.TempDir(), "k")
			o := Options{URL: dir, KeyFile: file, KMSKeys: []string{"fakekms://" + strings.ToLower(name)}, BeforeWrap: tc.before}
			if tc.before == nil {
				if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: a new file: %v", tc.reason, err)
				}
				if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 0 {
					t.Errorf("%s: something was made: %v, %v", tc.reason, left, err)
				}
			}
			open(t, Options{URL: dir, KeyFile: file})
			was, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: a file in the clear: %v", tc.reason, err)
			}
			if now, _ := os.ReadFile(file); !bytes.Equal(was, now) {
				t.Errorf("%s: the file was changed", tc.reason)
			}
		})
	}
}

// TestKMSIsWaitedForNoLongerThanItMay also for one whose driver knows no context, and
// what was read of the file before stays.
func TestKMSIsWaitedForNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		defer close(free)
		asked := 0
		away := false
		fakes.Store("slow", &fakeKMS{decrypt: func(_ context.Context, b []byte) ([]byte, error) {
			asked++
			if away {
				<-free
			}
			return bytes.TrimPrefix(b, []byte(fakeSign)), nil
		}})
		o := Options{URL: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "k"), KMSKeys: []string{"fakekms://slow"}}
		s, other := open(t, o), open(t, o)
		d, _, err := s.Seal(t.Context(), strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		away, asked = true, 0
		begun := time.Now()
		for range 3 {
			r, err := s.Unseal(t.Context(), d)
			if got := content(t, r, err); got != "x" {
				t.Errorf("unsealed %q", got)
			}
		}
		if took := time.Since(begun); took != kmsTimeout || asked != 1 {
			t.Errorf("three reads beside a KMS that does not answer took %s and asked it %d times", took, asked)
		}
		begun = time.Now()
		if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no answer within 30s") {
			t.Errorf("Open: %v", err)
		}
		if took := time.Since(begun); took != kmsTimeout {
			t.Errorf("Open took %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx, o); err == nil {
			t.Error("Open goes on when nobody wants it any more")
		}
	})
}

func TestWrongKMSKeys(t *testing.T) {
	for name, tc := range map[string]struct{ reason, key, want, never string }{
		"NoURL":     {"a key without its scheme is a secret", "canary", "a KMS key is given that is no URL", "canary"},
		"Broken":    {"nor is a broken one shown", "base64key://can ary", "a KMS key is given that is no URL", "ary"},
		"NoDriver":  {"what is not linked is named", "oldkms://canary", "there is no driver for KMS keys of oldkms://", "canary"},
		"NoKey":     {"the driver would make one, and forget it", "base64key://", "base64key:// names no key", "canary"},
		"ShortKey":  {"the driver repeats what it was given", "base64key://canary", "open KMS key base64key: it cannot be used as a key", "canary"},
		"Parameter": {"nor are parameters shown that a driver repeats", "awskms://alias/a?secret=canary&region=r", `open KMS key awskms://alias/a: open keeper awskms://alias/a?…`, "canary"},
		"LastNone":  {"none is for the first", Unwrapped, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "k")
			keys := []string{tc.key}
			if tc.want == "" {
				keys, tc.want = []string{keyA, tc.key}, "a KMS key is given that is no URL"
			}
			_, err := Open(t.Context(), Options{URL: t.TempDir(), KeyFile: file, KMSKeys: keys})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v; want %q", tc.reason, err, tc.want)
			} else if tc.never != "" && strings.Contains(err.Error(), tc.never) {
				t.Errorf("%s: it is shown: %v", tc.reason, err)
			}
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: a key file was made", tc.reason)
			}
		})
	}
}

// TestFilesThatOthersEncrypted are not taken for ours.
func TestFilesThatOthersEncrypted(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "k")
	s := open(t, Options{URL: dir, KeyFile: file})
	d, _, err := s.Seal(t.Context(), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(s.key(d))))
	if err != nil {
		t.Fatal(err)
	}
	for reason, data := range map[string][]byte{
		"encrypted to an identity": sealed,
		"cut off":                  sealed[:len(ageIntro)+2],
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), Options{URL: dir, KeyFile: file, KMSKeys: []string{keyA}}); err == nil || !strings.Contains(err.Error(), "not by a KMS key") {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

// TestWrappingLeavesNothingInTheClear: a process that died while it wrote the file.
func TestWrappingLeavesNothingInTheClear(t *testing.T) {
	file := filepath.Join(t.TempDir(), "k")
	left, fresh := filepath.Join(filepath.Dir(file), ".k.1"), filepath.Join(filepath.Dir(file), ".k.2")
	for _, f := range []string{left, fresh} {
		if err := os.WriteFile(f, []byte("AGE-SECRET-KEY-1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * staleSpool)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	open(t, Options{URL: t.TempDir(), KeyFile: file, KMSKeys: []string{keyA}})
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half-written file: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("what another process may be writing: %v", err)
	}
}

// TestKMSByItsProtocol wraps by the drivers of AWS and Vault, as far as their requests go.
func TestKMSByItsProtocol(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary-of-the-secret-key")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("VAULT_TOKEN", "canary-of-the-token")
	var mu sync.Mutex
	refuse := false
	kms := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var in struct{ Plaintext, CiphertextBlob, Ciphertext string }
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &in)
		}
		if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		aws := r.Header.Get("X-Amz-Target")
		switch {
		case refuse && aws != "":
			rw.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(rw, `{"__type":"AccessDeniedException","message":"not authorized to perform this"}`)
		case refuse:
			rw.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(rw, `{"errors":["permission denied"]}`)
		case aws == "TrentService.Encrypt":
			_ = json.NewEncoder(rw).Encode(map[string]string{"CiphertextBlob": base64.StdEncoding.EncodeToString([]byte("aws" + in.Plaintext))})
		case aws == "TrentService.Decrypt":
			blob, _ := base64.StdEncoding.DecodeString(in.CiphertextBlob)
			_ = json.NewEncoder(rw).Encode(map[string]string{"Plaintext": strings.TrimPrefix(string(blob), "aws")})
		case r.URL.Path == "/v1/transit/encrypt/terrace":
			_ = json.NewEncoder(rw).Encode(map[string]any{"data": map[string]string{"ciphertext": "vault:v1:" + in.Plaintext}})
		case r.URL.Path == "/v1/transit/decrypt/terrace":
			_ = json.NewEncoder(rw).Encode(map[string]any{"data": map[string]string{"plaintext": strings.TrimPrefix(in.Ciphertext, "vault:v1:")}})
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}))
	defer kms.Close()
	t.Setenv("VAULT_ADDR", kms.URL)
	for key, want := range map[string][2]string{
		"awskms://alias/terrace?region=eu-central-1&endpoint=" + kms.URL: {"awskms://alias/terrace", "AccessDenied"},
		"hashivault://terrace": {"hashivault://terrace", "permission denied"},
	} {
		o := Options{URL: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "k"), KMSKeys: []string{key}}
		s := open(t, o)
		if s.KeyFile().WrappedBy != want[0] || inTheClear(t, o.KeyFile) {
			t.Errorf("%s: wrapped by %q", want[0], s.KeyFile().WrappedBy)
		}
		open(t, o)
		mu.Lock()
		refuse = true
		mu.Unlock()
		_, err := Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "it is wrapped by "+want[0]) || !strings.Contains(err.Error(), want[1]) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: a refusal: %v", want[0], err)
		}
		mu.Lock()
		refuse = false
		mu.Unlock()
	}
}
