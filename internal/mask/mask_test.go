// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pem puts a key together at run time, so that scanners do not take this file for
// a leak.
func pem(kind, body string) string {
	return "-----BEGIN " + kind + " KEY-----\n" + body + "\n-----END " + kind + " KEY-----"
}

func TestString(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("admin:correct-horse"))
	cases := map[string]struct {
		reason string
		values []string
		in     string
		want   string
	}{
		"Plain": {
			reason: "a value is masked inside words too",
			values: []string{"hunter22"},
			in:     "password=hunter22x and hunter2",
			want:   "password=(sensitive value)x and hunter2",
		},
		"Overlap": {
			reason: "what two values share must not leave the rest of one",
			values: []string{"abcdef", "defghi"},
			in:     "-abcdefghi-",
			want:   "-(sensitive value)-",
		},
		"Longest": {
			reason: "a value that begins with another is masked to its end",
			values: []string{"token", "token-of-bob"},
			in:     "token-of-bob token",
			want:   "(sensitive value) (sensitive value)",
		},
		"ShortIsAToken": {
			reason: "three bytes in the middle of words tell nothing",
			values: []string{"abc"},
			in:     "abc abcd x-abc (abc) élabc",
			want:   "(sensitive value) abcd x-abc ((sensitive value)) élabc",
		},
		"Trivial": {
			reason: "masking words and digits that are everywhere destroys the text",
			values: []string{"true", "False", "null", "1", "443", "-1", "0.5", "a", "", "  ", "{}"},
			in:     `enabled = true, port = 443, a = null, b = -1, {}, 0.5`,
			want:   `enabled = true, port = 443, a = null, b = -1, {}, 0.5`,
		},
		"Number": {
			reason: "a PIN of four digits is a secret",
			values: []string{"4711"},
			in:     "pin 4711",
			want:   "pin (sensitive value)",
		},
		"Trimmed": {
			reason: "Secrets made from files end in a newline, texts do not",
			values: []string{"s3cr3t\n"},
			in:     "got s3cr3t!",
			want:   "got (sensitive value)!",
		},
		"PasswordOfAURL": {
			reason: "programs print the password without the address, as written and decoded",
			values: []string{"postgres://u:correct%2Fhorse@db:5432/x"},
			in:     "password correct%2Fhorse, correct/horse of u at db:5432",
			want:   "password (sensitive value), (sensitive value) of u at db:5432",
		},
		"CLIConfig": {
			reason: "a token stands alone in messages, not with its line",
			values: []string{"credentials \"app.example.org\" {\n  token = \"correcthorse\"\n}\n"},
			in:     "app.example.org refuses correcthorse",
			want:   "app.example.org refuses (sensitive value)",
		},
		"Settings": {
			reason: "INI, YAML and .netrc name what is secret; the rest of such a file is not",
			values: []string{
				"[default]\nregion = eu-central-1\naws_secret_access_key=battery-staple\n",
				"user:\n  name: deployment\n  token: 'horse-battery'\n",
				"machine example.org login somebody password staple-correct\n",
			},
			in:   "eu-central-1 deployment somebody battery-staple horse-battery staple-correct",
			want: "eu-central-1 deployment somebody (sensitive value) (sensitive value) (sensitive value)",
		},
		"ShortSetting": {
			reason: "a short part of a file is a word of every text",
			values: []string{"auth = basic\npassword = secure\n"},
			in:     "a secure and basic text",
			want:   "a secure and basic text",
		},
		"JSONEscaped": {
			reason: "tofu's JSON views quote",
			values: []string{`a"b\c<d>`},
			in:     `{"v":"a\"b\\c\u003cd\u003e"} "a\"b\\c<d>"`,
			want:   `{"v":"(sensitive value)"} "(sensitive value)"`,
		},
		"HCLEscaped": {
			reason: "plans show template marks doubled",
			values: []string{"pa${ss}%{x}"},
			in:     `v = "pa$${ss}%%{x}"`,
			want:   `v = "(sensitive value)"`,
		},
		"URLEscaped": {
			reason: "passwords go into connection strings",
			values: []string{"p@ss/word"},
			in:     "dial p%40ss%2Fword@db",
			want:   "dial (sensitive value)@db",
		},
		"Base64InsideLonger": {
			reason: "basic authentication encodes the password after the user's name",
			values: []string{"correct-horse"},
			in:     "x " + basic,
			want:   "x " + basic[:14] + Replacement + basic[31:],
		},
		"Lines": {
			reason: "programs print the line of a document that they dislike",
			values: []string{"user: admin\npassword: swordfish\n}\n"},
			in:     "line 2: password: swordfish\n}\n",
			want:   "line 2: (sensitive value)\n}\n",
		},
		"Escaped lines": {
			reason: "a document inside a JSON string is one line",
			values: []string{"first line\nsecond line"},
			in:     `"first line\nsecond line"`,
			want:   `"(sensitive value)"`,
		},
		"JSONMembers": {
			reason: "a service account is a document; its members are the secrets",
			values: []string{`{"id":7,"key":{"private":["deep-secret"]}}`},
			in:     "cannot use deep-secret",
			want:   "cannot use (sensitive value)",
		},
		"Cut short": {
			reason: "an excerpt of a long value is still the value",
			values: []string{strings.Repeat("0123456789", 20)},
			in:     strings.Repeat("0123456789", 9) + "...",
			want:   Replacement + "...",
		},
		"ReplacementHoldsIt": {
			reason: "a value that the replacement contains cannot be masked by it",
			values: []string{"sensitive", "value"},
			in:     "sensitive",
			want:   "sensitive",
		},
		"MadeByReplacement": {
			reason: "a replacement next to other text may spell another value",
			values: []string{"first-secret", "x(sens"},
			in:     "xfirst-secret",
			want:   Replacement + "itive value)",
		},
		"PrivateKey": {
			reason: "a key is a key, known or not",
			in:     "before " + pem("RSA PRIVATE", "AAAA\nBBBB") + " after",
			want:   "before (sensitive value)\n after",
		},
		"PrivateKeyOneLine": {
			reason: "in JSON the newlines of a key are escaped",
			in:     strings.ReplaceAll(pem("PRIVATE", "AAAA"), "\n", `\n`) + ` "b"`,
			want:   `(sensitive value) "b"`,
		},
		"UnknownKeyAfterKnown": {
			reason: "all keys begin with the same line",
			values: []string{pem("PRIVATE", "AAAABBBBCCCC")},
			in:     pem("PRIVATE", "unknown-body"),
			want:   "(sensitive value)\n",
		},
		"Certificate": {
			reason: "certificates are public",
			values: []string{pem("PRIVATE", "AAAABBBBCCCC")},
			in:     "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
			want:   "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
		},
		"Tokens": {
			reason: "forms that are secrets whoever made them",
			in: "eyJ" + "hbGciOiJI.eyJ" + "zdWIiOiIx.c2lnbmF0dXJl AKIA" + "ABCDEFGHIJKLMNOP " +
				"ghp_" + strings.Repeat("a", 36) + " glpat-" + strings.Repeat("b", 20) + " AGE-SECRET-KEY-" + "1QQQQ",
			want: strings.TrimSpace(strings.Repeat(Replacement+" ", 5)),
		},
		"URLPassword": {
			reason: "the user's name may stay",
			in:     "postgres://app:swordfish@db:5432/x https://a.example/b:c@d",
			want:   "postgres://app:(sensitive value)@db:5432/x https://a.example/b:c@d",
		},
		"Headers": {
			reason: "debug logs print headers",
			in:     "Authorization: Bearer abcdefgh1234",
			want:   "Authorization: Bearer (sensitive value)",
		},
		"AWSSecret": {
			reason: "forty characters are a key only where they are called one",
			in:     `aws_secret_access_key = "` + strings.Repeat("aB3/", 10) + `"`,
			want:   `aws_secret_access_key = "(sensitive value)"`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m := New(toBytes(tc.values)...)
			if diff := cmp.Diff(tc.want, m.String(tc.in)); diff != "" {
				t.Errorf("%s\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.want, string(m.Bytes([]byte(tc.in)))); diff != "" {
				t.Errorf("bytes: %s\n%s", tc.reason, diff)
			}
		})
	}
}

func TestNilMaskerMasksByForm(t *testing.T) {
	var m *Masker
	if got := m.String("https://u:pw12@h"); got != "https://u:(sensitive value)@h" {
		t.Errorf("got %q", got)
	}
}

// A writer that was given out before knows what the masker learns, from the next line on.
func TestLearn(t *testing.T) {
	m := New([]byte("hunter22"))
	var out strings.Builder
	w := m.Writer(&out)
	for _, step := range []func(){
		func() { fmt.Fprintln(w, "hunter22 learnt-later") },
		func() { fmt.Fprint(w, "a line that begins with learnt-") },
		func() { m.Learn([]byte("learnt-later"), []byte("hunter22")) },
		func() { fmt.Fprintln(w, "later and hunter22") },
		func() { m.Learn() },
		func() { fmt.Fprintln(w, "learnt-later") },
	} {
		step()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := "(sensitive value) learnt-later\na line that begins with (sensitive value) and (sensitive value)\n(sensitive value)\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if got := m.String("hunter22 learnt-later"); got != "(sensitive value) (sensitive value)" {
		t.Errorf("String: %q", got)
	}
}

func TestWriter(t *testing.T) {
	long := strings.Repeat("x", 3*longLine)
	cases := map[string]struct {
		reason string
		values []string
		writes []string
		want   string
	}{
		"SplitValue": {
			reason: "a pipe cuts where it likes",
			values: []string{"hunter22"},
			writes: []string{"a hun", "ter22 b\nc"},
			want:   "a (sensitive value) b\nc",
		},
		"KeyOverWrites": {
			reason: "a key has many lines and each may come alone",
			writes: []string{"a\n", pem("EC PRIVATE", "AAAA")[:20], pem("EC PRIVATE", "AAAA")[20:] + "\nb\n"},
			want:   "a\n(sensitive value)\nb\n",
		},
		"KeyWithoutEnd": {
			reason: "what never ends must not swallow the rest",
			writes: []string{"-----BEGIN PRIVATE" + " KEY-----\n", strings.Repeat("line\n", keyLines), "rest\n"},
			want:   "(sensitive value)\nrest\n",
		},
		"LongLine": {
			reason: "a line without an end is handed on in parts and still masked",
			values: []string{"hunter22"},
			writes: []string{long, "hunter22", long, "hunt", "er22", long},
			want:   long + Replacement + long + Replacement + long,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			w := New(toBytes(tc.values)...).Writer(&out)
			for _, s := range tc.writes {
				if n, err := fmt.Fprint(w, s); err != nil || n != len(s) {
					t.Fatalf("write: %d, %v", n, err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("%s\n%s", tc.reason, diff)
			}
			if _, err := w.Write([]byte("x")); err == nil {
				t.Error("write after Close: no error")
			}
		})
	}
}

// FuzzString: whatever stands around a value, and however it is spelled, the value
// is not in what comes out; nor when it comes through a Writer in pieces.
func FuzzString(f *testing.F) {
	f.Add("hunter22", "other-secret", "user ", " said", 3)
	f.Add("a\nb\nlonger line", "x(sens", "x", "itive", 1)
	f.Add("((((", "))))", "(", ")", 2)
	f.Add("ab\xff\xfe", "${x}", "\"", "\\", 5)
	f.Fuzz(func(t *testing.T, a, b, before, after string, cut int) {
		m := New([]byte(a), []byte(b))
		quoted, _ := json.Marshal(a)
		text := strings.Join([]string{before, a, after, b, before, string(quoted), after, url.QueryEscape(b), base64.StdEncoding.EncodeToString([]byte(b)), after}, "")
		got := m.String(text)
		var out strings.Builder
		w := m.Writer(&out)
		if cut < 0 || cut > len(text) {
			cut = len(text) / 2
		}
		_, _ = w.Write([]byte(text[:cut]))
		_, _ = w.Write([]byte(text[cut:]))
		_ = w.Close()
		for _, v := range []string{a, b} {
			if len(v) < minimum || trivial(strings.TrimSpace(v)) || strings.Contains(Replacement, v) {
				continue
			}
			if strings.Contains(got, v) {
				t.Errorf("String(%q) = %q: holds %q", text, got, v)
			}
			if !strings.Contains(v, "\n") && strings.Contains(out.String(), v) {
				t.Errorf("Writer(%q) = %q: holds %q", text, out.String(), v)
			}
		}
	})
}

func BenchmarkString(b *testing.B) {
	var values [][]byte
	for i := range 200 {
		values = append(values, fmt.Appendf(nil, "secret-number-%d-of-many", i))
	}
	m := New(values...)
	line := strings.Repeat("null_resource.a: Creation complete after 0s [id=123] ", 4)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		m.String(line)
	}
}

func toBytes(values []string) [][]byte {
	var out [][]byte
	for _, v := range values {
		out = append(out, []byte(v))
	}
	return out
}
