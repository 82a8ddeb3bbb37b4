package doctor

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// containerd's configuration, as people and programs write it: read to its end, however it
// imports itself, each file once.
func FuzzReadRuntimeConfig(f *testing.F) {
	f.Add("version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\n", "version = 3\nimports = [\"../config.toml\"]\n", "containerd github.com/containerd/containerd v1.7.24~ds1")
	f.Add("disabled_plugins = [\"nri\"]\n[plugins]\na = 1\n", "[plugins.a]\nb=2\n", "2.0.0")
	f.Add("imports = [\"*\", \"[\"]", "", "")
	f.Fuzz(func(t *testing.T, main, imported, version string) {
		shown, v := parseVersion(version)
		require.True(t, shown != "" || !v.known())
		h := fstest.MapFS{"etc/containerd/config.toml": {Data: []byte(main)}, "etc/containerd/conf.d/a.toml": {Data: []byte(imported)}}
		c := readContainerd(h, "/etc/containerd/config.toml", v)
		require.LessOrEqual(t, len(c.Files), 2)
		if c.err == nil {
			require.NotEmpty(t, c.Files)
		}
	})
}
