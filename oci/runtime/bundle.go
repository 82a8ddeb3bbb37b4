package ociruntime

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// configName is the file that every bundle has (runtime-spec, bundle.md).
const configName = "config.json"

// Bundle is a container's config, as it was found and as it is to be.
type Bundle struct {
	// Spec is what may be changed before Save: of a config no more than a view has.
	Spec *rspec.Spec

	path   string
	raw    json.RawMessage // as found
	before json.RawMessage // what Spec was
}

// OpenBundle reads a config.json. Of one that was written by Save and not changed since,
// it takes what Save found: a container that is made of its bundle again, as runc run by
// hand does, may get another GPU.
func OpenBundle(path string) (*Bundle, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("read the container's config: %w", err)
	}
	data, err := rawfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("read the container's config: %w", err)
	}
	if original, err := rawfile.Read(beside(path, originalSuffix)); err == nil {
		if found, ours := bytes.CutPrefix(original, digest(data)); ours {
			data = found
		}
	}
	b, err := decodeBundle(data)
	if err != nil {
		return nil, fmt.Errorf("read the container's config %s: %w", path, err)
	}
	b.path = path
	return b, nil
}

// decodeBundle reads what a config.json holds.
func decodeBundle(data []byte) (*Bundle, error) {
	spec, err := decodeSpec(data)
	if err != nil {
		return nil, err
	}
	before, err := encodeSpec(spec)
	return &Bundle{Spec: spec, raw: data, before: before}, err
}

// encode is the config with what was changed in it.
func (b *Bundle) encode() (data json.RawMessage, changed bool, err error) {
	after, err := encodeSpec(b.Spec)
	if err != nil {
		return nil, false, err
	}
	data, err = patch(b.raw, b.before, after)
	return data, string(after) != string(b.before), err
}

// Save writes the config back if it was changed: by a rename, so that a reader sees the
// old one or the new one, with the mode and the owner that it had.
//
// Nothing is synced: a bundle doesn't outlive its machine's boot.
func (b *Bundle) Save() error {
	data, changed, err := b.encode()
	if err == nil && changed {
		data = append(data, '\n')
		err = b.replace(data)
	}
	if err != nil {
		return fmt.Errorf("write the container's config %s: %w", b.path, err)
	}
	return nil
}

// originalSuffix names the file that keeps what Save found, after a digest of what it wrote.
const originalSuffix = ".before-gpuslice"

// replace puts another content into the bundle and keeps the one that was found.
func (b *Bundle) replace(data []byte) error {
	err := rawfile.Write(beside(b.path, originalSuffix), append(digest(data), b.raw...), 0o600)
	if err != nil {
		return err
	}
	return replace(b.path, data)
}

// digest identifies a config.
func digest(data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(hex.AppendEncode(nil, sum[:]), '\n')
}

// beside is the path of a hidden file beside another.
func beside(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+suffix)
}

// replace puts another content into the place of a file.
func replace(path string, data []byte) (err error) {
	old, err := os.Stat(path)
	if err != nil {
		return err
	}
	// One name, so that those of processes which were killed don't pile up.
	temp := beside(path, ".gpuslice")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := rawfile.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp) // the first error is the one to tell
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, own(f, old), f.Chmod(old.Mode().Perm()), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// own gives a file the owner of another.
func own(f *os.File, as fs.FileInfo) error {
	st, ok := as.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}
