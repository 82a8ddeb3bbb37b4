package cdihook

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeHost notes how ldconfig is called.
type fakeHost struct {
	isDebian bool
	none     bool
	args     []string
	root     string
}

func (f *fakeHost) find(path string) (string, error) {
	if f.none {
		return "", fs.ErrNotExist
	}
	return path, nil
}
func (f *fakeHost) run(_ string, root *os.File, args []string) error {
	f.root, f.args = root.Name(), args
	return nil
}
func (f *fakeHost) debian() bool { return f.isDebian }

func TestUpdateLDCacheCall(t *testing.T) {
	const include = "include /etc/ld.so.conf.d/*.conf\n"
	base := []string{"-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache"}
	for _, test := range []struct {
		name  string
		host  fakeHost
		files map[string]string
		dirs  []string
		args  []string // after base
		conf  string   // of our file; empty: none
	}{
		{
			name: "an image without /etc is given one, and the directory by argument",
			dirs: []string{"/opt/driver"}, args: []string{"/opt/driver"}, conf: "/opt/driver\n",
		},
		{
			name: "an image that includes ld.so.conf.d gets a file there", files: map[string]string{"etc/ld.so.conf": include},
			dirs: []string{"/opt/driver", "/opt/driver/", "/opt/other"}, conf: "/opt/driver\n/opt/other\n",
		},
		{
			name: "a relative include", files: map[string]string{"etc/ld.so.conf": "include ld.so.conf.d/*.conf"},
			dirs: []string{"/opt/driver"}, conf: "/opt/driver\n",
		},
		{
			name: "what the image names keeps its rank",
			files: map[string]string{
				"etc/ld.so.conf":                         include,
				"etc/ld.so.conf.d/x86_64-linux-gnu.conf": "# Multiarch support\n/usr/local/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu/ # the driver too\n",
			},
			dirs: []string{"/usr/lib/x86_64-linux-gnu"},
		},
		{name: "system directories are looked into anyway", dirs: []string{"/usr/lib64", "/lib"}},
		{
			name: "includes that include one another end", files: map[string]string{"etc/ld.so.conf": "include /etc/ld.so.conf"},
			dirs: []string{"/opt/driver"}, args: []string{"/opt/driver"}, conf: "/opt/driver\n",
		},
		{
			name:  "our own file of the last start changes nothing",
			files: map[string]string{"etc/ld.so.conf": include, "etc/ld.so.conf.d/00-gpuslice.conf": "/opt/driver\n"},
			dirs:  []string{"/opt/driver"}, conf: "/opt/driver\n",
		},
		{
			name: "Debian's ldconfig in a Fedora", host: fakeHost{isDebian: true}, files: map[string]string{"usr/lib64/": "", "lib64": "->/usr/lib64"},
			dirs: []string{"/usr/lib64"}, args: []string{"/lib64", "/usr/lib64"},
		},
		{
			name: "Debian's ldconfig in a Debian", host: fakeHost{isDebian: true}, files: map[string]string{"etc/debian_version": "12.1", "lib64/": ""},
		},
		{
			name: "Debian's ldconfig in a distroless image without lib64", host: fakeHost{isDebian: true},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := image(t, test.files)
			r, err := openRoot(dir)
			require.NoError(t, err)
			defer r.close()
			host := test.host
			require.NoError(t, (&updateLDCache{dirs: test.dirs, ldconfig: "/sbin/ldconfig", host: &host}).run(r, slog.Default()))
			require.Equal(t, append(base[:len(base):len(base)], test.args...), host.args)
			require.Equal(t, dir, host.root)
			conf, err := os.ReadFile(filepath.Join(dir, ldConfOurs))
			if test.conf == "" {
				require.ErrorIs(t, err, fs.ErrNotExist)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.conf, string(conf))
			require.Equal(t, fs.FileMode(0o644), mode(t, filepath.Join(dir, ldConfOurs)))
		})
	}
}

func TestHostWithoutLdconfig(t *testing.T) {
	root := image(t, nil)
	status, stderr := call(state(t, root), "update-ldcache", "--ldconfig-path", "/nowhere/ldconfig", "--folder", "/opt")
	require.Zero(t, status)
	require.Contains(t, stderr, "no ldconfig")
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left)
}
