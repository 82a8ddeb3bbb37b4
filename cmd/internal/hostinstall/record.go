package hostinstall

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

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
