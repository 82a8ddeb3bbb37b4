package procfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseStat(t *testing.T) {
	rest := "12 " + strings.Repeat("0 ", 17) + "4711 99 99\n"
	for text, want := range map[string]Status{
		"7 (sh) S " + rest:                 {"sh", 4711, 12, false},
		"7 (a) R 1 (sh) Z " + rest:         {"a) R 1 (sh", 4711, 12, true},
		"7 (new\nline ) ) S " + rest:       {"new\nline ) ", 4711, 12, false},
		"7 () X " + rest:                   {"", 4711, 12, true},
		"7 (sh) S 12 " + rest[:20]:         {},
		"":                                 {},
		") (":                              {},
		"7 (sh) S x" + rest[2:]:            {},
		"7 (sh) S 12 " + "" + "  \x00\x00": {},
	} {
		got, err := ParseStat([]byte(text))
		if want == (Status{}) {
			assert.Error(t, err, text)
			continue
		}
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
}

// A tenant chooses the names of its processes. No name moves the other fields of the line.
func FuzzStat(f *testing.F) {
	f.Add([]byte("python3"), uint64(12345), true)
	f.Add([]byte(") Z 1 1 1 1"), uint64(1), false)
	f.Add([]byte("a\nb) S ("), uint64(0), true)
	f.Fuzz(func(t *testing.T, comm []byte, started uint64, ended bool) {
		comm = comm[:min(len(comm), 15)]
		state := "S"
		if ended {
			state = "Z"
		}
		line := fmt.Sprintf("7 (%s) %s 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21 22\n", comm, state, started)
		s, err := ParseStat([]byte(line))
		require.NoError(t, err)
		require.Equal(t, Status{Name: string(comm), Start: started, Parent: 1, Zombie: ended}, s)
		_, _ = ParseStat(comm) // a line that is cut off
	})
}
