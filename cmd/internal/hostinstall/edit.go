package hostinstall

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// edit is what is to be done to one file. A nil text is a file that isn't there.
type edit struct {
	path          string
	before, after []byte
	record        fileRecord
	// isOurs is of a file that nobody else has written: it needs no backup.
	isOurs bool
	// kept are settings that uninstall leaves, for somebody has changed them.
	kept [][]string
}

func (e edit) changes() bool {
	return (e.before == nil) != (e.after == nil) || !bytes.Equal(e.before, e.after)
}

// install works out the edit that makes a file as a target wants it.
func (t target) install(before []byte) (edit, error) {
	e := edit{path: t.path, before: before, after: before, record: fileRecord{Path: t.path}}
	if t.format == nil {
		e.after, e.record.SHA256 = t.whole, sum(t.whole)
		return e, nil
	}
	text := before
	if before == nil {
		text, e.record.Seed = []byte(t.seed), &t.seed
	}
	d, err := t.format.parse(text)
	if err != nil {
		return e, fmt.Errorf("%s can't be read, so that it is left alone: %w", t.path, err)
	}
	e.record.Format = formatName(t.format)
	if len(t.own) > 0 {
		if _, there := lookup(d.tree(), t.own); !there || t.isOurs(d) {
			e.record.Own, e.record.OwnTables = t.own, tablesOf(d.tree(), t.own)
		}
		if e.record.OwnValues, err = t.ownValues(); err != nil {
			return e, err
		}
	}
	if e.record.Changes, err = apply(t.format, d, t.settings); err != nil {
		return e, fmt.Errorf("%s: %w", t.path, err)
	}
	if len(e.record.Changes) > 0 {
		e.after = d.text()
	}
	return e, nil
}

// ownValues are what the table that is ours holds.
func (t target) ownValues() (values []change, err error) {
	for _, s := range t.settings {
		if !isPrefix(t.own, s.key) {
			continue
		}
		raw, err := t.format.encode(s.value)
		if err != nil {
			return nil, fmt.Errorf("%s: set %s: %w", t.path, dotted(s.key), err)
		}
		values = append(values, change{Key: s.key, Set: raw})
	}
	return values, nil
}

// isOurs says whether the table that should be ours already runs our binary: it was
// put there by an install whose record is lost.
func (t target) isOurs(d document) bool {
	for _, s := range t.settings {
		if last := s.key[len(s.key)-1]; isPrefix(t.own, s.key) && (last == "path" || last == "BinaryName") {
			have, _ := lookup(d.tree(), s.key)
			return equal(have, s.value)
		}
	}
	return false
}

// isSeeded says whether a file begins as one that we have made.
func (t target) isSeeded(text []byte) bool {
	return strings.HasPrefix(t.seed, "#") && bytes.HasPrefix(text, []byte(t.seed))
}

// uninstall works out the edit that takes back what was done to a file.
func (f fileRecord) uninstall(before []byte) (edit, error) {
	e := edit{path: f.Path, before: before, after: before}
	switch {
	case before == nil:
		return e, nil
	case f.Format == "":
		if sum(before) == f.SHA256 {
			e.after, e.isOurs = nil, true
		} else {
			e.kept = append(e.kept, nil)
		}
		return e, nil
	}
	format, known := formats[f.Format]
	if !known {
		return e, fmt.Errorf("the record of %s: unknown format %q", f.Path, f.Format)
	}
	d, err := format.parse(before)
	if err != nil {
		return e, fmt.Errorf("%s can't be read, so that it is left alone: %w", f.Path, err)
	}
	was := d.text()
	changes := f.Changes
	if len(f.Own) > 0 {
		asMade, err := f.ownAsMade(format, d)
		if err != nil {
			return e, err
		}
		if asMade {
			err = removeTable(d, f.Own, f.OwnTables)
		} else {
			// As a whole: a runtime without its path would keep the engine from starting.
			e.kept = append(e.kept, f.Own)
			changes = slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return isPrefix(f.Own, c.Key) })
		}
		if err != nil {
			return e, fmt.Errorf("%s: take out %s: %w", f.Path, dotted(f.Own), err)
		}
	}
	kept, err := undo(format, d, changes)
	if err != nil {
		return e, fmt.Errorf("%s: %w", f.Path, err)
	}
	e.kept = append(e.kept, kept...)
	undone := !bytes.Equal(was, d.text())
	if undone {
		e.after = d.text()
	}
	// What began as {} may be somebody else's {} by now; a headline is ours.
	if f.Seed != nil && (undone || strings.HasPrefix(*f.Seed, "#")) && bytes.Equal(squeeze(d.text()), squeeze([]byte(*f.Seed))) {
		e.after, e.isOurs = nil, true
	}
	return e, nil
}

// ownAsMade says whether the table that is ours holds what was put there and nothing
// else. Where it isn't known what was put there, all of it was.
func (f fileRecord) ownAsMade(format format, d document) (bool, error) {
	have, there := lookup(d.tree(), f.Own)
	if !there || len(f.OwnValues) == 0 {
		return true, nil
	}
	want := map[string]any{}
	for _, v := range f.OwnValues {
		value, err := format.decode(v.Set)
		if err != nil {
			return false, fmt.Errorf("the record of %s: %s: %w", f.Path, dotted(v.Key), err)
		}
		put(want, v.Key, value)
	}
	made, _ := lookup(want, f.Own)
	return equal(have, made), nil
}

// squeeze leaves white space out.
func squeeze(text []byte) []byte { return bytes.Join(bytes.Fields(text), nil) }

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func sortedSet(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
