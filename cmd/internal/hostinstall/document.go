package hostinstall

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// document is the text of a configuration file, and what it means. An edit changes
// the bytes of one setting and no others.
type document interface {
	text() []byte
	// tree is what the text means: tables are map[string]any.
	tree() map[string]any
	// raw is the text of a value that is written as one; false for a table that is
	// made of others' keys, and for what is not there.
	raw(key []string) (string, bool)
	// section says whether a table has a section of its own in the text, and whether no value is in that.
	section(table []string) (there, empty bool)
	// set writes a value, and the tables that lead to it.
	set(key []string, raw string) error
	// remove takes out a value, or a table that is empty.
	remove(key []string) error
}

// format is a language of documents.
type format interface {
	// parse refuses what the engine would refuse, and says where.
	parse(text []byte) (document, error)
	encode(value any) (string, error)
	decode(raw string) (any, error)
}

// setting is a value that a document should have.
type setting struct {
	key   []string
	value any
	// alone is of a setting that others in its table may rely on: it is taken out only
	// while there are none.
	alone bool
}

// change is what was done to a document for one setting, so that it can be undone.
type change struct {
	Key []string `json:"key"`
	// Set is the value's text as it was written.
	Set string `json:"set"`
	// Was is the text that it replaced; nil if there was none.
	Was *string `json:"was,omitempty"`
	// Tables is how many of the tables that lead to the value were there before.
	Tables int `json:"tables"`
	// Section says that the value's table got a section of its own for it.
	Section bool `json:"section,omitempty"`
	// Alone is the setting's.
	Alone bool `json:"alone,omitempty"`
}

var errUnproven = errors.New("the edited text does not mean what was meant: the file is left alone")

func dotted(key []string) string { return strings.Join(key, ".") }

// apply makes a document have the settings. What it has already is left alone.
func apply(f format, d document, settings []setting) (changes []change, err error) {
	before := d.tree()
	for _, s := range settings {
		table := s.key[:len(s.key)-1]
		had, _ := d.section(table)
		c, changed, err := applyOne(f, d, s)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", dotted(s.key), err)
		}
		if changed {
			c.Tables = tablesOf(before, s.key) // not those that another setting has made
			has, _ := d.section(table)
			c.Section = has && !had
			changes = append(changes, c)
		}
	}
	return changes, nil
}

func applyOne(f format, d document, s setting) (c change, changed bool, err error) {
	raw, err := f.encode(s.value)
	if err != nil {
		return c, false, err
	}
	want, err := f.decode(raw) // the value as the format's parser sees it
	if err != nil {
		return c, false, err
	}
	have, there := lookup(d.tree(), s.key)
	if there && equal(have, want) {
		return c, false, nil
	}
	if _, isTable := have.(map[string]any); isTable {
		return c, false, errors.New("there is a table of that name")
	}
	c = change{Key: s.key, Set: raw, Alone: s.alone}
	if n := tablesOf(d.tree(), s.key); n < len(s.key)-1 {
		if _, taken := lookup(d.tree(), s.key[:n+1]); taken {
			return c, false, fmt.Errorf("%s is not a table", dotted(s.key[:n+1]))
		}
	}
	if was, ok := d.raw(s.key); ok {
		c.Was = &was
	}
	return c, true, proven(d, func() error { return d.set(s.key, raw) }, func(tree map[string]any) { put(tree, s.key, want) })
}

// proven edits a document and compares what it means then with what it should mean.
func proven(d document, edit func() error, meant func(tree map[string]any)) error {
	want := clone(d.tree())
	meant(want)
	if err := edit(); err != nil {
		return err
	}
	if !equal(want, d.tree()) {
		return errUnproven
	}
	return nil
}

// undo takes changes back, the newest first. A value that somebody has changed since
// is theirs: its key is returned.
func undo(f format, d document, changes []change) (kept [][]string, err error) {
	for _, c := range slices.Backward(changes) {
		have, there := lookup(d.tree(), c.Key)
		if !there {
			continue
		}
		set, err := f.decode(c.Set)
		if err != nil {
			return nil, fmt.Errorf("the record of %s: %w", dotted(c.Key), err)
		}
		table, _ := lookup(d.tree(), c.Key[:len(c.Key)-1])
		if !equal(have, set) || c.Alone && len(table.(map[string]any)) > 1 {
			kept = append(kept, c.Key)
			continue
		}
		if c.Was != nil {
			err = restore(f, d, c)
		} else if err = removeValue(d, c.Key); err == nil {
			err = prune(d, c.Key[:len(c.Key)-1], c.Tables)
		}
		if err == nil && c.Section {
			err = removeSection(d, c.Key[:len(c.Key)-1])
		}
		if err != nil {
			return nil, fmt.Errorf("take back %s: %w", dotted(c.Key), err)
		}
	}
	return kept, nil
}

func restore(f format, d document, c change) error {
	was, err := f.decode(*c.Was)
	if err != nil {
		return err
	}
	return proven(d, func() error { return d.set(c.Key, *c.Was) }, func(tree map[string]any) { put(tree, c.Key, was) })
}

// removeSection takes out an empty section, the table of which may have others below it.
func removeSection(d document, table []string) error {
	if _, empty := d.section(table); !empty {
		return nil
	}
	if v, _ := lookup(d.tree(), table); len(v.(map[string]any)) == 0 {
		return removeValue(d, table)
	}
	return proven(d, func() error { return d.remove(table) }, func(map[string]any) {})
}

// removeValue takes a value out. Its tables stay, if the format can keep them.
func removeValue(d document, key []string) error {
	want := clone(d.tree())
	drop(want, key)
	if err := d.remove(key); err != nil {
		return err
	}
	// A table that only this value made is gone with it in TOML; prune says the same
	// of both, so that the comparison does.
	have := clone(d.tree())
	for n := len(key) - 1; n > 0; n-- {
		if t, ok := lookup(want, key[:n]); ok && len(t.(map[string]any)) == 0 {
			drop(want, key[:n])
			drop(have, key[:n])
		}
	}
	if !equal(want, have) {
		return errUnproven
	}
	return nil
}

// prune takes out tables that are empty, from the innermost, and leaves so many of
// the outermost.
func prune(d document, table []string, leave int) error {
	for ; len(table) > leave; table = table[:len(table)-1] {
		v, there := lookup(d.tree(), table)
		if !there {
			continue
		}
		if inner, ok := v.(map[string]any); !ok || len(inner) > 0 {
			return nil
		}
		if err := removeValue(d, table); err != nil {
			return err
		}
	}
	return nil
}

// removeTable takes a table out with all that is in it, and what it leaves empty
// above it beyond so many tables.
func removeTable(d document, table []string, leave int) error {
	v, there := lookup(d.tree(), table)
	inner, ok := v.(map[string]any)
	if !there || !ok {
		return nil
	}
	if _, written := d.raw(table); !written {
		for _, k := range slices.Sorted(maps.Keys(inner)) {
			key := append(slices.Clone(table), k)
			var err error
			if _, isTable := inner[k].(map[string]any); isTable {
				err = removeTable(d, key, len(key))
			} else {
				err = removeValue(d, key)
			}
			if err != nil {
				return err
			}
		}
	}
	if _, there := lookup(d.tree(), table); there {
		if err := removeValue(d, table); err != nil {
			return err
		}
	}
	return prune(d, table[:len(table)-1], leave)
}

// lookup finds a value in a tree.
func lookup(tree map[string]any, key []string) (any, bool) {
	var at any = tree
	for _, k := range key {
		table, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = table[k]; !ok {
			return nil, false
		}
	}
	return at, true
}

// tablesOf counts the tables that are there on the way to a key.
func tablesOf(tree map[string]any, key []string) int {
	for n := 1; n < len(key); n++ {
		v, _ := lookup(tree, key[:n])
		if _, ok := v.(map[string]any); !ok {
			return n - 1
		}
	}
	return len(key) - 1
}

// put sets a value in a tree.
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

// drop takes a value out of a tree.
func drop(tree map[string]any, key []string) {
	parent, _ := lookup(tree, key[:len(key)-1])
	if table, ok := parent.(map[string]any); ok {
		delete(table, key[len(key)-1])
	}
}

// clone copies a tree's tables; its values are never changed.
func clone(tree map[string]any) map[string]any {
	c := maps.Clone(tree)
	for k, v := range c {
		if table, ok := v.(map[string]any); ok {
			c[k] = clone(table)
		}
	}
	return c
}

// equal compares values of trees. Unlike reflect.DeepEqual it finds a NaN equal to itself.
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
