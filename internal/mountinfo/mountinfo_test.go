package mountinfo

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const table = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /run rw,nosuid shared:2 - tmpfs tmpfs rw
24 23 0:22 /a\040b /run/c\134d\011 rw - tmpfs tmpfs rw
25 22 254:2 /lower /srv rw - ext4 /dev/vdb rw
26 22 254:3 / /srv rw - ext4 /dev/vdc rw
`

func all(t *testing.T, text string) (mounts []Mount) {
	require.NoError(t, Scan(strings.NewReader(text), func(m Mount) bool { mounts = append(mounts, m); return true }))
	return mounts
}

func TestScan(t *testing.T) {
	mounts := all(t, table)
	require.Len(t, mounts, 5)
	assert.Equal(t, Mount{22, 1, Source{"254:1", "/"}, "/"}, mounts[0])
	assert.Equal(t, Mount{24, 23, Source{"0:22", "/a b"}, "/run/c\\d\t"}, mounts[2])

	n := 0
	require.NoError(t, Scan(strings.NewReader(table), func(Mount) bool { n++; return n < 2 }))
	assert.Equal(t, 2, n)
	for _, wrong := range []string{"\n", "1 2 3\n", "x 1 0:1 / / rw\n", "1 x 0:1 / / rw\n", strings.Repeat("x", 64<<10+1)} {
		assert.Error(t, Scan(strings.NewReader(wrong), func(Mount) bool { return true }), wrong[:1])
	}
	assert.ErrorContains(t, Scan(broken{}, func(Mount) bool { return true }), "broken")
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestLocate(t *testing.T) {
	mounts := all(t, table)
	for path, want := range map[string]Source{
		"/":            {"254:1", "/"},
		"/runner/x":    {"254:1", "/runner/x"},
		"/run":         {"0:21", "/"},
		"/run/x/y":     {"0:21", "/x/y"},
		"/run/c\\d\t/": {"0:22", "/a b"},
		"/srv/x":       {"254:3", "/x"}, // what was mounted last
	} {
		got, known := Locate(mounts, path)
		assert.True(t, known, path)
		assert.Equal(t, want, got, path)
	}
	_, known := Locate(nil, "/x")
	assert.False(t, known)
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(table))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = Scan(strings.NewReader(string(data)), func(m Mount) bool {
			if m.Point == "" || m.Source.Root == "" {
				t.Fatalf("a mount without a place: %+v", m)
			}
			return true
		})
	})
}

func TestScanOfThisProcess(t *testing.T) {
	file, err := os.Open("/proc/self/mountinfo")
	require.NoError(t, err)
	defer file.Close()
	roots := 0
	require.NoError(t, Scan(file, func(m Mount) bool {
		if m.Point == "/" {
			roots++
		}
		return true
	}))
	assert.Positive(t, roots)
}
