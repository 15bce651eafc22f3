// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The files of a data directory; doc.go says what each is for.
const (
	lockFile           = "lock"
	kubeconfigFile     = "kubeconfig"
	pkiDir             = "pki"
	encryptionFile     = "encryption.yaml"
	authenticationFile = "authentication.yaml"
	etcdDir            = "etcd"
	etcdSocket         = "etcd.sock"
)

// holder is what the lock file tells of the process that has the directory. It
// is for people; the lock on the file decides.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Started time.Time `json:"started"`
}

// directory is a data directory that this process holds until release.
type directory struct {
	path string // absolute
	lock *os.File
}

// openDirectory makes or reopens the directory and takes its lock. It refuses a
// directory that has content of another origin, so that a slip of the hand such
// as --data-dir $HOME neither changes its mode nor mixes files.
func openDirectory(path string, now time.Time) (*directory, error) {
	if path == "" {
		return nil, &StartError{What: "open the data directory: no path is given", Hint: "name one with --data-dir"}
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, unusable(path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, unusable(abs, err)
	}
	if err := checkOrigin(abs); err != nil {
		return nil, err
	}
	if err := os.Chmod(abs, 0o700); err != nil {
		return nil, unusable(abs, err)
	}
	lock, err := os.OpenFile(filepath.Join(abs, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(abs, err)
	}
	d := &directory{path: abs, lock: lock}
	if err := d.hold(now); err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

// origins mark a directory as ours: a control plane was here, or controllers
// were that worked on another one.
var origins = []string{lockFile, "keys"}

func checkOrigin(dir string) error {
	for _, mark := range origins {
		if _, err := os.Lstat(filepath.Join(dir, mark)); err == nil {
			return nil
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return unusable(dir, err)
	}
	if len(entries) == 0 {
		return nil
	}
	return &StartError{
		What: fmt.Sprintf("use data directory %s: it has files of another origin, such as %s", dir, entries[0].Name()),
		Hint: "give a new or an empty directory to --data-dir",
	}
}

func unusable(dir string, err error) error {
	var path *fs.PathError
	why := err
	if errors.As(err, &path) {
		why = path.Err
	}
	hint := "give a directory that this user can write to --data-dir"
	if errors.Is(err, syscall.ENOSPC) {
		hint = "free space on its file system, or give another --data-dir"
	}
	return &StartError{What: fmt.Sprintf("use data directory %s: %v", dir, why), Hint: hint, Err: err}
}

// hold takes the lock, which the kernel frees when this process ends in
// whatever way, and writes who has it.
func (d *directory) hold(now time.Time) error {
	err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return d.held()
	}
	if err != nil {
		return unusable(d.path, err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	text, err := json.Marshal(holder{PID: os.Getpid(), Host: host, Started: now.UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	if err := d.lock.Truncate(0); err != nil {
		return unusable(d.path, err)
	}
	if _, err := d.lock.WriteAt(append(text, '\n'), 0); err != nil {
		return unusable(d.path, err)
	}
	return nil
}

func (d *directory) held() error {
	who := "another process"
	hint := "stop it, or use another --data-dir"
	var h holder
	if err := json.NewDecoder(d.lock).Decode(&h); err == nil {
		who = fmt.Sprintf("process %d on %s since %s", h.PID, h.Host, h.Started.Format(time.RFC3339))
		hint = fmt.Sprintf("stop it with `kill %d` on %s, or use another --data-dir", h.PID, h.Host)
	}
	return &StartError{What: fmt.Sprintf("use data directory %s: it is held by %s", d.path, who), Hint: hint, Err: ErrHeld}
}

// release gives the directory back. The lock file stays: it also marks the
// directory as ours.
func (d *directory) release() error {
	return d.lock.Close()
}

func (d *directory) join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// write replaces a file in one step, so that a reader, or a start after a crash,
// sees the old content or the new one.
func (d *directory) write(name string, content []byte) error {
	path := d.join(name)
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return unusable(d.path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return unusable(d.path, err)
	}
	return nil
}

// read returns the content of a file, nil when there is none.
func (d *directory) read(name string) ([]byte, error) {
	content, err := os.ReadFile(d.join(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unusable(d.path, err)
	}
	return content, nil
}
