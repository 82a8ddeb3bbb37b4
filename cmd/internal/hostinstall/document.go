package hostinstall

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// document is a configuration file. An edit changes the bytes of one setting only.
type document interface {
	text() []byte
	tree() (map[string]any, error)
	set(key []string, value any) error
	remove(key []string) error
	// value decodes a value of a record.
	value(raw json.RawMessage) (any, error)
}

// parse reads a file of an engine: docker's is JSON, the others' TOML.
func parse(engine string, text []byte) (document, error) {
	if engine == "docker" {
		return parseJSON(text)
	}
	return parseTOML(text)
}

func treeOf(engine string, text []byte) (map[string]any, error) {
	d, err := parse(engine, text)
	if err != nil {
		return nil, err
	}
	return d.tree()
}

// newline is how the lines of a file end.
func newline(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// setting is a wanted value. A table is replaced as a whole.
type setting struct {
	key   []string
	value any
}

func (s setting) isNamed() bool { return s.value == Name || s.key[len(s.key)-1] == Name }

// change is an edit of one setting, as recorded.
type change struct {
	Key []string `json:"key"`
	// Set is the new value; without a record it is empty, which matches any.
	Set json.RawMessage `json:"set,omitempty"`
	Was json.RawMessage `json:"was,omitempty"`
	// Tables counts the tables on the way to the key that existed before.
	Tables int `json:"tables"`
}

var errLayout = errors.New("unsupported layout of the file: it was not changed; make the change by hand")

func dotted(key []string) string { return strings.Join(key, ".") }

func apply(d document, settings []setting) (changes []change, err error) {
	tree, err := d.tree()
	if err != nil {
		return nil, err
	}
	before := clone(tree)
	for _, s := range settings {
		c := change{Key: s.key, Set: encoded(s.value), Tables: tablesOf(before, s.key)}
		want, err := d.value(c.Set) // with the types of the parser
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", dotted(s.key), err)
		}
		have, there := lookup(tree, s.key)
		_, isTable := have.(map[string]any)
		_, wantTable := want.(map[string]any)
		if there && equal(have, want) {
			if isTable { // of an install without a record
				changes = append(changes, c)
			}
			continue
		}
		if isTable && !wantTable {
			return nil, fmt.Errorf("set %s: it is a table", dotted(s.key))
		}
		if n := tablesOf(tree, s.key); n < len(s.key)-1 {
			if _, taken := lookup(tree, s.key[:n+1]); taken {
				return nil, fmt.Errorf("set %s: %s is not a table", dotted(s.key), dotted(s.key[:n+1]))
			}
		}
		if there {
			c.Was = encoded(have)
		}
		put(tree, s.key, want)
		if err := verified(d, d.set(s.key, want), tree); err != nil {
			return nil, fmt.Errorf("set %s = %v: %w", dotted(s.key), s.value, err)
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// undo reverts changes. It keeps values that were changed since, and returns their keys.
func undo(d document, changes []change) (kept [][]string, err error) {
	tree, err := d.tree()
	if err != nil {
		return nil, err
	}
	for _, c := range slices.Backward(changes) {
		have, there := lookup(tree, c.Key)
		if !there {
			continue
		}
		if len(c.Set) > 0 {
			set, err := d.value(c.Set)
			if err != nil {
				return nil, fmt.Errorf("record of %s: %w", dotted(c.Key), err)
			}
			if !equal(have, set) {
				kept = append(kept, c.Key)
				continue
			}
		}
		if len(c.Was) > 0 {
			was, err := d.value(c.Was)
			if err != nil {
				return nil, fmt.Errorf("record of %s: %w", dotted(c.Key), err)
			}
			put(tree, c.Key, was)
			err = verified(d, d.set(c.Key, was), tree)
			if err != nil {
				return nil, fmt.Errorf("restore %s: %w", dotted(c.Key), err)
			}
			continue
		}
		for key := c.Key; len(key) > c.Tables; key = key[:len(key)-1] { // with tables that become empty
			if v, there := lookup(tree, key); there && (len(key) == len(c.Key) || isEmptyTable(v)) {
				unstructured.RemoveNestedField(tree, key...)
				if err := verified(d, d.remove(key), tree); err != nil {
					return nil, fmt.Errorf("remove %s: %w", dotted(key), err)
				}
				// An implicit table of TOML is removed together with its last value.
				if tree, err = d.tree(); err != nil {
					return nil, err
				}
			}
		}
	}
	return kept, nil
}

// verified compares an edited document with what it should contain.
func verified(d document, edited error, want map[string]any) error {
	have, err := d.tree()
	if err = errors.Join(edited, err); err != nil {
		return fmt.Errorf("%w (%w)", errLayout, err)
	}
	if !equal(withoutEmpty(want), withoutEmpty(have)) {
		return errLayout
	}
	return nil
}

// encoded encodes a value for a record. NaN is recorded as any value.
func encoded(value any) json.RawMessage {
	raw, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return raw
}

func isPrefix(prefix, path []string) bool {
	return len(prefix) <= len(path) && slices.Equal(prefix, path[:len(prefix)])
}

func lookup(tree map[string]any, key []string) (any, bool) {
	value, there, err := unstructured.NestedFieldNoCopy(tree, key...)
	return value, there && err == nil
}

func tablesOf(tree map[string]any, key []string) int {
	for n := 1; n < len(key); n++ {
		v, _ := lookup(tree, key[:n])
		if _, ok := v.(map[string]any); !ok {
			return n - 1
		}
	}
	return len(key) - 1
}

func put(tree map[string]any, key []string, value any) {
	for _, k := range key[:len(key)-1] {
		next, ok := tree[k].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[k] = next
		}
		tree = next
	}
	tree[key[len(key)-1]] = value
}

func isEmptyTable(v any) bool {
	table, ok := v.(map[string]any)
	return ok && len(table) == 0
}

func clone(tree map[string]any) map[string]any {
	c := maps.Clone(tree)
	for k, v := range c {
		if table, ok := v.(map[string]any); ok {
			c[k] = clone(table)
		}
	}
	return c
}

func withoutEmpty(tree map[string]any) map[string]any {
	c := clone(tree)
	for k, v := range c {
		if table, ok := v.(map[string]any); ok {
			c[k] = withoutEmpty(table)
		}
	}
	maps.DeleteFunc(c, func(_ string, v any) bool { return isEmptyTable(v) })
	return c
}

// equal compares values. Unlike [reflect.DeepEqual], NaN equals itself.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equal)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || math.IsNaN(a) && math.IsNaN(b))
	}
	return reflect.DeepEqual(a, b)
}

// recordDir has one file for each engine.
const recordDir = "/var/lib/gpuslice/install"

type record struct {
	Version int          `json:"version"`
	Engine  string       `json:"engine"`
	Files   []fileRecord `json:"files"`
	// Options of earlier installs, which a later install keeps.
	RuntimePath  string `json:"runtimePath,omitempty"` // empty: NRIOnly
	SetDefault   bool   `json:"setDefault,omitempty"`
	RequireAgent bool   `json:"requireAgent,omitempty"`
}

// fileRecord lists the changes of one file.
type fileRecord struct {
	Path string `json:"path"`
	// SHA256 is of the new content.
	SHA256 string `json:"sha256"`
	Whole  bool   `json:"whole,omitempty"` // without settings
	// Seed is the start of a file that did not exist before.
	Seed    string   `json:"seed,omitempty"`
	Backup  string   `json:"backup,omitempty"`
	Changes []change `json:"changes,omitempty"`
}

const recordVersion = 1

func recordPath(engine string) string { return path.Join(recordDir, engine+".json") }

func decodeRecord(data []byte) (r record, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("record version %d, this gpuslice supports only %d: use the gpuslice version that wrote it", r.Version, recordVersion)
	}
	return r, nil
}

func (r record) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

func (r record) file(path string) *fileRecord {
	if i := slices.IndexFunc(r.Files, func(f fileRecord) bool { return f.Path == path }); i >= 0 {
		return &r.Files[i]
	}
	return nil
}

// undone is a file without gpuslice's settings; nil is no file.
type undone struct {
	text []byte
	// exact: the text is that before the install.
	exact bool
	// kept are settings that were changed since; an empty key is the whole file.
	kept [][]string
}

// undo removes gpuslice's settings. A file that was not changed since is restored from its backup.
func (f fileRecord) undo(engine string, now, backup []byte) (u undone, err error) {
	unchanged := now != nil && sum(now) == f.SHA256
	switch {
	case now == nil, unchanged && (f.Whole || f.Seed != ""):
		return undone{exact: true}, nil
	case f.Whole:
		return undone{text: now, kept: [][]string{nil}}, nil
	case unchanged && backup != nil:
		return undone{text: backup, exact: true}, nil
	}
	d, err := parse(engine, now)
	if err != nil {
		return u, fmt.Errorf("%s is not valid and was not changed: %w", f.Path, err)
	}
	was := d.text()
	if u.kept, err = undo(d, f.Changes); err != nil {
		return u, fmt.Errorf("%s: %w", f.Path, err)
	}
	u.text = now
	undid := !bytes.Equal(was, d.text())
	if undid {
		u.text = d.text()
	}
	// Delete a file that gpuslice created, if nothing else is in it. An unchanged "{}" can be another program's.
	if f.Seed != "" && (undid || strings.HasPrefix(f.Seed, "#")) && bytes.Equal(squeeze(u.text), squeeze([]byte(f.Seed))) {
		u.text = nil
	}
	return u, nil
}

func squeeze(text []byte) []byte { return bytes.Join(bytes.Fields(text), nil) }

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
