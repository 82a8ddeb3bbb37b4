package ociruntime

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/strictjson"
)

const configName = "config.json"

// Bundle is a container's config.
type Bundle struct {
	// Spec is the config. Save writes what was changed in it.
	Spec *rspec.Spec

	path   string
	raw    json.RawMessage // as found
	before json.RawMessage // Spec as decoded
}

// OpenBundle reads a config.json. If Save wrote it, OpenBundle returns the original config: a second
// container of the bundle (runc run by hand) can get another GPU.
func OpenBundle(path string) (*Bundle, error) {
	path, err := filepath.Abs(path)
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the container's config: %w", err)
	}
	if original, err := os.ReadFile(beside(path, originalSuffix)); err == nil {
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

// decodeBundle decodes a config with encoding/json, as runc does.
func decodeBundle(data []byte) (*Bundle, error) {
	spec := &rspec.Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, err
	}
	// Low-level runtimes use different values of a field that occurs twice (runc, by encoding/json, ignores case).
	if err := strictjson.CheckNames(data, func(member string) bool { return freeNames[member] }); err != nil {
		return nil, err
	}
	before, err := marshal(spec)
	return &Bundle{Spec: spec, raw: data, before: before}, err
}

// freeNames are fields with maps, in which case matters.
var freeNames = map[string]bool{"annotations": true, "sysctl": true, "unified": true, "rdma": true, "timeOffsets": true, "netDevices": true}

func (b *Bundle) encode() (data json.RawMessage, changed bool, err error) {
	after, err := marshal(b.Spec)
	if err != nil || bytes.Equal(b.before, after) {
		return b.raw, false, err
	}
	if data, err = patch(b.raw, b.before, after); err != nil {
		return nil, false, err
	}
	// The low-level runtime must read what was checked here.
	again, err := decodeBundle(data)
	if err == nil && !bytes.Equal(again.before, after) {
		err = errors.New("the written config would be read differently")
	}
	return data, true, err
}

// Save replaces the config if Spec was changed, with the same mode and owner. It does not sync: a
// bundle does not outlive a boot.
func (b *Bundle) Save() error {
	data, changed, err := b.encode()
	if err == nil && changed {
		err = b.replace(append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the container's config %s: %w", b.path, err)
	}
	return nil
}

// originalSuffix is of the file with the original config, after a digest of the new one.
const originalSuffix = ".before-gpuslice"

func (b *Bundle) replace(data []byte) error {
	if err := atomicfile.Write(beside(b.path, originalSuffix), append(digest(data), b.raw...), 0o600); err != nil {
		return err
	}
	old, err := os.Stat(b.path)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(b.path, data, old.Mode().Perm()); err != nil {
		return err
	}
	owner, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("the owner of %s is unknown", b.path)
	}
	return os.Lchown(b.path, int(owner.Uid), int(owner.Gid))
}

func digest(data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(hex.AppendEncode(nil, sum[:]), '\n')
}

func beside(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+suffix)
}

// patch applies the difference of before and after, which are encoded from Go types, to the original
// document raw. Unknown fields and the spelling of values stay, in any depth.
func patch(raw, before, after json.RawMessage) (json.RawMessage, error) {
	if bytes.Equal(before, after) {
		return raw, nil
	}
	if o := decodeEach[map[string]json.RawMessage](raw, before, after); o[0] != nil && o[1] != nil && o[2] != nil {
		return patchObject(o[0], o[1], o[2])
	}
	if l := decodeEach[[]json.RawMessage](raw, before, after); l[0] != nil && l[1] != nil && l[2] != nil {
		return patchList(l[0], l[1], l[2])
	}
	return after, nil
}

// decodeEach decodes documents to a type; those of another type are nil.
func decodeEach[T any](documents ...json.RawMessage) []T {
	values := make([]T, len(documents))
	for i, document := range documents {
		if json.Unmarshal(document, &values[i]) != nil {
			clear(values[i : i+1])
		}
	}
	return values
}

func patchObject(raw, before, after map[string]json.RawMessage) (json.RawMessage, error) {
	for name := range before {
		if _, stays := after[name]; !stays {
			delete(raw, name)
		}
	}
	for name, value := range after {
		old, had := before[name]
		found, there := raw[name]
		if !had || !there {
			if !bytes.Equal(old, value) {
				raw[name] = value
			}
			continue
		}
		patched, err := patch(found, old, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		raw[name] = patched
	}
	return marshal(raw)
}

// patchList keeps each unchanged item as it was found.
func patchList(raw, before, after []json.RawMessage) (json.RawMessage, error) {
	if len(raw) != len(before) {
		return nil, fmt.Errorf("a list of %d items was decoded as %d", len(raw), len(before))
	}
	used := make([]bool, len(before))
	for i, item := range after {
		for j := range before {
			if !used[j] && bytes.Equal(before[j], item) {
				after[i], used[j] = raw[j], true
				break
			}
		}
	}
	return marshal(after)
}

func marshal(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // as container runtimes do
	err := enc.Encode(v)
	return bytes.TrimRight(out.Bytes(), "\n"), err
}
