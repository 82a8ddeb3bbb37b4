package cdihook

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever stands around it, a procfs below the directory is found, and nothing outside.
func FuzzMountinfo(f *testing.F) {
	f.Add("22 1 0:21 / /proc rw - proc proc rw\n", "/proc")
	f.Add("", "a\u00a0b\v c\r")
	f.Add("1 2 3:4 / /jail/a\\040b rw shared:1 - tmpfs t rw\n", "/a b")
	f.Fuzz(func(t *testing.T, text, at string) {
		if found := firstProcfs(text, "/jail/root"); found != "" {
			require.True(t, found == "/jail/root" || strings.HasPrefix(found, "/jail/root/"), found)
			return
		}
		escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`, "#", `\043`).Replace(at)
		line := fmt.Sprintf("22 1 0:21 / /jail/root/%s rw,nosuid shared:5 - proc proc rw\n", escaped)
		require.NotEmpty(t, firstProcfs(text+"\n"+line, "/jail/root"))
	})
}

// The image's ld.so.conf ends, however it includes itself, and what is read of it is
// bounded.
func FuzzLdConf(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n/opt", "/usr/lib # x\nhwcap 1\n")
	f.Add("include ld.so.conf.d/* ld.so.c* ../etc/[", "include *\ninclude a")
	f.Fuzz(func(t *testing.T, conf, included string) {
		dir := image(t, map[string]string{"etc/ld.so.conf": "#\n" + conf, "etc/ld.so.conf.d/a.conf": "#\n" + included, "etc/ld.so.conf.d/b.conf": "#\n" + included})
		r, err := openRoot(dir)
		require.NoError(t, err)
		defer r.close()
		dirs, _ := readConf(r)
		require.LessOrEqual(t, len(dirs), len(conf)+2*len(included))
		for _, dir := range dirs {
			require.Equal(t, filepath.Clean(dir), dir)
		}
	})
}

// FuzzState: no state of a runtime's leads to a root but the one that its bundle names.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.2.0","id":"a","status":"creating","bundle":"/nowhere"}`))
	f.Add([]byte(`{"bundle":"x"}`))
	f.Add([]byte(`{"bundle":`))
	f.Fuzz(func(t *testing.T, state []byte) {
		root, err := rootDir("", strings.NewReader(string(state)))
		require.Error(t, err, "no bundle is here")
		require.Empty(t, root)
	})
}
