package hostinstall

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shaper writes random configurations: the tables that install cares for, each written
// in any of the ways that TOML has, with comments anywhere.
type shaper struct {
	*rand.Rand
	comments int
}

// node is a table, with nodes or texts as values, in order.
type node struct {
	names  []string
	values []any
}

func (s *shaper) table(depth int) *node {
	n := &node{}
	names := []string{"plugins", "'io.containerd.grpc.v1.cri'", `"io.containerd.cri.v1.runtime"`, "'io.containerd.nri.v1.nri'", "containerd", "runtimes", "gpuslice", "runc", "options", "default_validator", "engine", "x"}
	leaves := []string{"disable = true", "enable = false", "BinaryName = '/x'", "runtime_type = 'io.containerd.runc.v2'", "plugin_request_timeout = \"1m\"", "disabled_plugins = [ 'io.containerd.nri.v1.nri' ]", "default_runtime_name = '''runc'''", "y = [1,\n  2, # two\n]"}
	for _, i := range s.Perm(len(leaves))[:s.IntN(3)] {
		name, value, _ := strings.Cut(leaves[i], " = ")
		n.names, n.values = append(n.names, name), append(n.values, value)
	}
	if depth > 0 {
		for _, i := range s.Perm(len(names))[:1+s.IntN(3)] {
			n.names, n.values = append(n.names, names[i]), append(n.values, s.table(depth-1))
		}
	}
	return n
}

// path is a table that holds the way to one of ours, so that shapes meet settings.
func (s *shaper) path() *node {
	paths := [][]string{
		{"plugins", "'io.containerd.grpc.v1.cri'", "containerd", "runtimes", "gpuslice", "options"},
		{"plugins", "'io.containerd.cri.v1.runtime'", "containerd", "runtimes", "runc"},
		{"plugins", "'io.containerd.nri.v1.nri'", "default_validator"},
		{"engine", "runtimes"},
	}
	path := paths[s.IntN(len(paths))]
	root := s.table(0)
	at := root
	for _, name := range path[:1+s.IntN(len(path))] {
		next := s.table(s.IntN(2))
		at.names, at.values = append(at.names, name), append(at.values, next)
		at = next
	}
	return root
}

func (s *shaper) comment() string {
	s.comments++
	return fmt.Sprintf(" # c%d", s.comments)
}

func (s *shaper) maybeComment() string {
	if s.IntN(2) == 0 {
		return ""
	}
	return s.comment()
}

// write writes what a table holds into the section that is open: its values, the
// tables made by dots and inline ones; and returns the sections that follow.
func (s *shaper) write(out *strings.Builder, n *node, section, prefix []string) (later []func()) {
	for i, name := range n.names {
		key := append(append([]string{}, prefix...), name)
		inner, isTable := n.values[i].(*node)
		if !isTable {
			fmt.Fprintf(out, "%s%s = %s%s\n", strings.Repeat(" ", s.IntN(3)), strings.Join(key, "."), n.values[i], s.maybeComment())
			continue
		}
		switch s.IntN(3) {
		case 0:
			fmt.Fprintf(out, "%s = %s%s\n", strings.Join(key, "."), s.inline(inner), s.maybeComment())
		case 1:
			later = append(later, s.write(out, inner, section, key)...)
		default:
			later = append(later, func() {
				full := append(append([]string{}, section...), key...)
				fmt.Fprintf(out, "%s[%s]%s\n", strings.Repeat("\n", s.IntN(2)), strings.Join(full, "."), s.maybeComment())
				for _, l := range s.write(out, inner, full, nil) {
					l()
				}
			})
		}
	}
	return later
}

func (s *shaper) inline(n *node) string {
	var parts []string
	for i, name := range n.names {
		value := fmt.Sprint(n.values[i])
		if inner, isTable := n.values[i].(*node); isTable {
			value = s.inline(inner)
		}
		parts = append(parts, name+" = "+value)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Any shape of the tables that install writes to: it is given back as it was.
func TestAnyShape(t *testing.T) {
	valid, edited := 0, 0
	for seed := range uint64(300) {
		s := &shaper{Rand: rand.New(rand.NewPCG(seed, 5))}
		var out strings.Builder
		fmt.Fprintf(&out, "%s\nversion = %d\n", s.comment(), 2+s.IntN(3))
		for _, later := range s.write(&out, s.path(), nil, nil) {
			later()
		}
		text := []byte(out.String())
		if _, err := parseTOML(text); err != nil {
			continue // two ways that TOML doesn't have for one table
		}
		valid++
		roundTrip(t, "containerd", text)
		roundTripOfPlan(t, "containerd", text)
		roundTripOfPlan(t, "podman", text)
		if d, err := parseTOML(text); err == nil {
			if _, err := apply(d, fuzzSettings()); err == nil {
				edited++
			}
		}
		if t.Failed() {
			require.Fail(t, "the first shape that is not given back", "seed %d:\n%s", seed, text)
		}
	}
	require.Greater(t, valid, 200)
	require.Greater(t, edited, valid/3, "the others have inline tables or keys with dots: they are refused")
}
