package cdihook

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCreateSymlinks(t *testing.T) {
	outside := t.TempDir()
	for _, test := range []struct {
		name   string
		files  map[string]string
		link   string
		at     string // in the root directory, where the link is to be
		target string
	}{
		{"in a directory", map[string]string{"usr/lib/": ""}, "libcuda.so.1::/usr/lib/libcuda.so", "usr/lib/libcuda.so", "libcuda.so.1"},
		{"in a directory that is not there", nil, "libcuda.so.1::/usr/lib/libcuda.so", "usr/lib/libcuda.so", "libcuda.so.1"},
		{"a relative name", nil, "libcuda.so.1::usr/lib/libcuda.so", "usr/lib/libcuda.so", "libcuda.so.1"},
		{"to an absolute target", nil, "/run/driver/x::/usr/lib/x", "usr/lib/x", "/run/driver/x"},
		{"in place of a file", map[string]string{"lib/a.so": "old"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"in place of another link", map[string]string{"lib/a.so": "->a.so.0"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"in place of a dangling link", map[string]string{"lib/a.so": "->" + outside + "/nothing"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"there already", map[string]string{"lib/a.so": "->a.so.1"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"below a link of the image that is absolute", map[string]string{"usr/lib/": "", "lib": "->/usr/lib"}, "a.so.1::/lib/a.so", "usr/lib/a.so", "a.so.1"},
		{"below a link out of the root", map[string]string{"lib": "->" + outside, outside + "/": ""}, "a.so.1::/lib/a.so", outside + "/a.so", "a.so.1"},
		{"with dots", nil, "a.so.1::/../../../lib/a.so", "lib/a.so", "a.so.1"},
		{"below a link with dots", map[string]string{"lib": "->../../../../up", "up/": ""}, "a.so.1::/lib/a.so", "up/a.so", "a.so.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := image(t, test.files)
			for range 2 { // a container that restarts has its links already
				status, stderr := call(state(t, root), "create-symlinks", "--link", test.link)
				require.Zero(t, status, stderr)
				target, err := os.Readlink(filepath.Join(root, test.at))
				require.NoError(t, err)
				require.Equal(t, test.target, target)
			}
			requireNoTemporaries(t, root)
		})
	}
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is made outside the root directory")
}

func TestCreateSymlinksWhereADirIs(t *testing.T) {
	root := image(t, map[string]string{"lib/a.so/": ""})
	status, stderr := call(state(t, root), "create-symlinks", "--link", "a.so.1::/lib/a.so")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "/lib/a.so")
	require.DirExists(t, filepath.Join(root, "lib/a.so"))
	requireNoTemporaries(t, root)
}

func TestCreateSymlinksBelowALinkToNothing(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "made")
	root := image(t, map[string]string{"lib": "->" + outside})
	status, stderr := call(state(t, root), "create-symlinks", "--link", "a.so.1::/lib/a.so")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "directory /lib of the container")
	require.NoDirExists(t, outside)
}

func TestChmod(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	root := image(t, map[string]string{"dev/dri/": "", "dev/link": "->/dev/dri", "dev/out": "->" + outside})
	require.NoError(t, os.Chmod(filepath.Join(root, "dev/dri"), 0o700))

	status, stderr := call(state(t, root), "chmod", "--mode", "755", "--path", "/dev/link,/dev/absent", "--path", "/dev/out")
	require.Zero(t, status, stderr)
	require.Equal(t, fs.FileMode(0o755), mode(t, filepath.Join(root, "dev/dri")))
	require.Equal(t, fs.FileMode(0o600), mode(t, outside), "a link does not lead out of the root directory")
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

// requireNoTemporaries looks for what was made beside a path and not renamed.
func requireNoTemporaries(t *testing.T, root string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NotRegexp(t, `^\.`, d.Name(), path)
		return err
	}))
}

// hookEnv has this test's program be the hooks' program: a runtime calls it so.
const hookEnv = "GPUSLICE_TEST_CDI_HOOK"

func TestMain(m *testing.M) {
	if os.Getenv(hookEnv) != "" {
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestFirstProcfs(t *testing.T) {
	const mounts = `21 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw
22 1 0:21 / /proc/root rw - overlay overlay rw
23 22 0:22 / /proc/rooted rw - proc proc rw
24 22 0:23 / /proc/root/sys rw - sysfs sysfs rw
25 22 0:20 / /proc/root/a\040b\134c rw master:1 - proc proc rw
26 22 0:24 / /proc/root/proc rw - proc proc rw
`
	require.Equal(t, `/proc/root/a b\c`, firstProcfs(mounts, "/proc/root"))
	require.Equal(t, "/proc", firstProcfs(mounts, "/proc"))
	require.Empty(t, firstProcfs(mounts, "/proc/root/sys"))
	require.Empty(t, firstProcfs("garbage\n\n", "/"))
}

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
