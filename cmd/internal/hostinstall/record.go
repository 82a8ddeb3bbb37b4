package hostinstall

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
)

// recordDir is where it is kept what was changed on a host, a file an engine.
const recordDir = "/var/lib/gpuslice/install"

// record is what was done to a host for an engine.
type record struct {
	Version int          `json:"version"`
	Engine  string       `json:"engine"`
	Files   []fileRecord `json:"files"`
}

// fileRecord is what was done to one file.
type fileRecord struct {
	Path string `json:"path"`
	// Format is "json" or "toml"; empty for a file that is ours as a whole.
	Format string `json:"format,omitempty"`
	// Seed is what the file began with if it was made.
	Seed *string `json:"seed,omitempty"`
	// Own is a table that was made, and how many of the tables around it were there.
	Own       []string `json:"own,omitempty"`
	OwnTables int      `json:"ownTables,omitempty"`
	// OwnValues is what was put into it.
	OwnValues []change `json:"ownValues,omitempty"`
	Changes   []change `json:"changes,omitempty"`
	// SHA256 is of a file that is ours as a whole.
	SHA256 string `json:"sha256,omitempty"`
}

const recordVersion = 1

var formats = map[string]format{"json": jsonFormat{}, "toml": tomlFormat{}}

func formatName(f format) string {
	if _, ok := f.(jsonFormat); ok {
		return "json"
	}
	return "toml"
}

func recordPath(engine string) string { return path.Join(recordDir, engine+".json") }

func decodeRecord(data []byte) (r record, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("its version is %d, and this gpuslice knows %d: use the gpuslice that wrote it", r.Version, recordVersion)
	}
	return r, nil
}

func (r record) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// add records what is done to a file, on top of what was done to it before.
func (r *record) add(f fileRecord) {
	i := slices.IndexFunc(r.Files, func(have fileRecord) bool { return have.Path == f.Path })
	if i < 0 {
		r.Files = append(r.Files, f)
		return
	}
	have := &r.Files[i]
	if f.Seed != nil { // it had vanished: what was known of it is no more
		*have = f
		return
	}
	have.SHA256, have.OwnValues = f.SHA256, f.OwnValues
	if len(have.Own) == 0 {
		have.Own, have.OwnTables = f.Own, f.OwnTables
	}
	for _, c := range f.Changes {
		at := slices.IndexFunc(have.Changes, func(old change) bool { return slices.Equal(old.Key, c.Key) })
		if at < 0 {
			c.Tables = have.theirs(c)
			have.Changes = append(have.Changes, c)
			continue
		}
		old := &have.Changes[at]
		if c.Was == nil || *c.Was != old.Set {
			old.Was = c.Was // somebody else has set it since: that is what it goes back to
		}
		old.Set = c.Set
	}
}

// theirs is how many of the tables that lead to a new value we have not made earlier.
func (f fileRecord) theirs(c change) int {
	tables := c.Tables
	for _, old := range append(slices.Clone(f.Changes), change{Key: f.Own, Tables: f.OwnTables}) {
		if old.Tables < common(old.Key, c.Key) {
			tables = min(tables, old.Tables)
		}
	}
	return tables
}

// assumed is the record of a plan whose record is lost: what has our name is ours.
func assumed(engine string, p plan, h fs.FS) record {
	r := record{Version: recordVersion, Engine: engine}
	for _, t := range p.targets {
		f := fileRecord{Path: t.path}
		if t.format == nil {
			f.SHA256 = sum(t.whole)
		} else {
			f.Format = formatName(t.format)
			// Tables around what is ours are left, but in a file that we have made.
			tables := func(key []string) int { return max(len(key)-1, 0) }
			if data, err := readFile(h, t.path); err == nil && t.isSeeded(data) {
				f.Seed = &t.seed
				tables = func([]string) int { return 0 }
			}
			f.Own, f.OwnTables = t.own, tables(t.own)
			for _, s := range t.settings {
				if raw, err := t.format.encode(s.value); err == nil && t.isNamed(s) {
					f.Changes = append(f.Changes, change{Key: s.key, Set: raw, Tables: tables(s.key)})
				}
			}
		}
		r.Files = append(r.Files, f)
	}
	return r
}
