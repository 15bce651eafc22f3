// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// profiler picks a port for the profiler of the controllers, which does not tell of
// one that it was left to pick.
func (b *bench) profiler() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	b.pprof = l.Addr().String()
	return b.pprof, l.Close()
}

// profile writes what the controllers hold on their heap, after a collection, into the
// directory of profiles; nothing if there is none. The API server has no profiler.
func (b *bench) profile(ctx context.Context, phase string) error {
	if b.profiles == "" {
		return nil
	}
	if err := os.MkdirAll(b.profiles, 0o755); err != nil {
		return err
	}
	file := filepath.Join(b.profiles, strings.NewReplacer(" ", "-", ",", "", "(", "", ")", "").Replace(phase)+".heap")
	if err := download(ctx, "http://"+b.pprof+"/debug/pprof/heap?gc=1", file); err != nil {
		return fmt.Errorf("take a heap profile: %w", err)
	}
	return nil
}

func download(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", req.URL.Path, resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, resp.Body); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
