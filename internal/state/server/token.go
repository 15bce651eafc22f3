// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/durable"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// signedToken begins the tokens that people ask for.
const signedToken = "terrace_state_"

const (
	// MaxTokenLife bounds how long a token is good: nothing takes it back before.
	MaxTokenLife = 30 * 24 * time.Hour
	// DefaultTokenLife is that of a token that was asked for without one.
	DefaultTokenLife = time.Hour
)

// claims are what a signed token says. Field names are short, as it is a password.
type claims struct {
	Namespace string `json:"ns"`
	Name      string `json:"n"`
	Write     bool   `json:"w,omitempty"`
	By        string `json:"by"`
	Expires   int64  `json:"exp"` // Unix seconds
	ID        string `json:"id"`
}

// Tokens makes and checks the tokens that "terrace state token" gives out: each says
// itself which state it is for, whether it may write, who asked for it and when it
// ends, and is signed with a key. They end by themselves, all of them when the key is
// replaced, and in no other way.
type Tokens struct {
	key   []byte
	clock clock.PassiveClock
}

// NewTokens signs with the key, of at least 32 bytes; nil is the real clock.
func NewTokens(key []byte, c clock.PassiveClock) (*Tokens, error) {
	if len(key) < 32 {
		return nil, fmt.Errorf("sign tokens: the key has %d bytes, and needs 32", len(key))
	}
	if c == nil {
		c = clock.RealClock{}
	}
	return &Tokens{key: key, clock: c}, nil
}

// OpenTokens reads the key from a file, and makes it, 0600, when there is none. The
// error says what is wrong with the file.
func OpenTokens(file string, c clock.PassiveClock) (*Tokens, error) {
	key, err := readKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKey(file); err == nil {
			key, err = readKey(file)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read key of state tokens %s: %w", file, err)
	}
	return NewTokens(key, c)
}

func readKey(file string) ([]byte, error) {
	if _, err := durable.Private(file); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) < 32 {
		return nil, errors.New("it does not hold 32 bytes as hexadecimal digits; delete it for a new one")
	}
	return key, nil
}

// createKey writes a new key; another process may be first.
func createKey(file string) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	return durable.Create(file, fmt.Appendln(nil, hex.EncodeToString(key)))
}

// Mint makes a token for one state; by is who asked for it. Without write it is good
// for reading only. A life of 0 is DefaultTokenLife; the error says that it is longer
// than MaxTokenLife, or negative.
func (t *Tokens) Mint(key store.Key, write bool, by string, life time.Duration) (string, time.Time, error) {
	if life == 0 {
		life = DefaultTokenLife
	}
	if life < 0 || life > MaxTokenLife {
		return "", time.Time{}, fmt.Errorf("make a token: it may be good for %s at most, not %s", MaxTokenLife, life)
	}
	id := make([]byte, 6)
	if _, err := rand.Read(id); err != nil {
		return "", time.Time{}, fmt.Errorf("make a token: %w", err)
	}
	expires := t.clock.Now().Add(life).Truncate(time.Second)
	token, err := t.sign("token", claims{
		Namespace: key.Namespace, Name: key.Name, Write: write, By: by, Expires: expires.Unix(), ID: hex.EncodeToString(id),
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("make a token: %w", err)
	}
	return signedToken + token, expires, nil
}

// sign writes down what it is given, and signs it for one purpose.
func (t *Tokens) sign(purpose string, what any) (string, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return "", err
	}
	mac, err := t.mac(purpose, body)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(mac), nil
}

var errSignature = errors.New("the signature is not ours")

// verify reads what sign wrote.
func (t *Tokens) verify(purpose, signed string, what any) error {
	text, signature, ok := strings.Cut(signed, ".")
	body, err := base64.RawURLEncoding.Strict().DecodeString(text)
	given, err2 := base64.RawURLEncoding.Strict().DecodeString(signature)
	if !ok || err != nil || err2 != nil {
		return errSignature
	}
	mac, err := t.mac(purpose, body)
	if err != nil {
		return err
	}
	if !hmac.Equal(mac, given) {
		return errSignature
	}
	return json.Unmarshal(body, what)
}

func (t *Tokens) mac(purpose string, body []byte) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, t.key, nil, "terrace state "+purpose, 32)
	if err != nil {
		return nil, err
	}
	h := hmac.New(sha256.New, key)
	h.Write(body)
	return h.Sum(nil), nil
}

// Authorize implements Authorizer.
func (t *Tokens) Authorize(_ context.Context, r *http.Request) (Identity, error) {
	signed, ok := strings.CutPrefix(Token(r), signedToken)
	if !ok {
		return Identity{}, ErrUnknown
	}
	var c claims
	if err := t.verify("token", signed, &c); err != nil {
		return Identity{}, &TokenError{"the token is not one that this server made, or it is damaged"}
	}
	if end := time.Unix(c.Expires, 0); !t.clock.Now().Before(end) {
		return Identity{}, &TokenError{fmt.Sprintf("the token expired at %s; ask for another with \"terrace state token\"", end.UTC().Format(time.RFC3339))}
	}
	return Identity{Name: fmt.Sprintf("%s (token %s)", c.By, c.ID), Allow: c.allow}, nil
}

func (c claims) allow(_ context.Context, verb Verb, key store.Key) error {
	mine := store.Key{Namespace: c.Namespace, Name: c.Name}
	switch {
	case key != mine:
		return &DeniedError{fmt.Sprintf("the token is for the state %s, and not for %s", mine, key)}
	case verb == Get, c.Write && slices.Contains(applyVerbs, verb):
		return nil
	case !c.Write && slices.Contains(applyVerbs, verb):
		return &DeniedError{fmt.Sprintf("the token may only read the state %s, and not %s it; plan with -lock=false, or ask for a token without --read", mine, verb)}
	}
	return &DeniedError{fmt.Sprintf("no token may %s a state; use your own account", verb)}
}
