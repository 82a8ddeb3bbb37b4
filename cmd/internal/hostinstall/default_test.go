package hostinstall

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// An uninstall fails if an administrator made gpuslice the default runtime by hand.
func TestDefaultOfAnAdministrator(t *testing.T) {
	for engine, by := range map[string]struct{ before, from, to string }{
		"docker":     {"{}\n", "{", "{\n\"default-runtime\": \"gpuslice\","},
		"containerd": {"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"overlayfs\"\n", "  snapshotter", "  default_runtime_name = \"gpuslice\"\n  snapshotter"},
		"podman":     {"", "", ""},
	} {
		t.Run(engine, func(t *testing.T) {
			h := newTestHost(t)
			file := mainFiles[engine]
			if by.before != "" {
				h.put(file, by.before)
			}
			_, err := h.install(h.options(engine))
			require.NoError(t, err)
			if engine == "podman" {
				file = "/etc/containers/containers.conf"
				h.put(file, "[engine]\nruntime = \"gpuslice\"\n")
			} else {
				h.put(file, strings.Replace(h.read(file), by.from, by.to, 1))
			}
			before := h.files()
			_, err = h.uninstall(h.options(engine))
			require.ErrorContains(t, err, file)
			require.ErrorContains(t, err, "set another default runtime first")
			require.Equal(t, before, h.files())

			h.put(file, strings.Replace(h.read(file), `"gpuslice"`, `"runc"`, 1))
			_, err = h.uninstall(h.options(engine))
			require.NoError(t, err)
		})
	}
}

// A runtime that was changed since the install is not removed.
func TestRuntimeThatWasChangedStays(t *testing.T) {
	for engine, by := range map[string]struct{ before, from, to, name string }{
		"docker": {"{}\n", `"path": "/usr/bin/gpuslice-runtime"`, `"path": "/opt/wrapper", "runtimeArgs": ["--debug"]`, "runtimes.gpuslice"},
		"containerd": {"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"overlayfs\"\n",
			`BinaryName = '/usr/bin/gpuslice-runtime'`, "# ours\nBinaryName = \"/opt/wrapper\"", "containerd.runtimes.gpuslice"},
	} {
		t.Run(engine, func(t *testing.T) {
			h := newTestHost(t)
			file := mainFiles[engine]
			h.put(file, by.before)
			_, err := h.install(h.options(engine))
			require.NoError(t, err)
			require.Contains(t, h.read(file), by.from)
			h.put(file, strings.Replace(h.read(file), by.from, by.to, 1))
			out, err := h.uninstall(h.options(engine))
			require.NoError(t, err)
			require.Contains(t, out, by.name+" was changed since the install and was not removed")
			require.Contains(t, h.read(file), by.to)
		})
	}
}

// A default that was set between two installs is what uninstall goes back to.
func TestNewerDefaultComesBack(t *testing.T) {
	h := newTestHost(t)
	file := mainFiles["docker"]
	h.put(file, "{\"default-runtime\": \"crun\"}\n")
	o := h.options("docker")
	o.SetDefault = true
	_, err := h.install(o)
	require.NoError(t, err)
	h.put(file, strings.Replace(h.read(file), `"default-runtime": "gpuslice"`, `"default-runtime": "nvidia"`, 1))
	_, err = h.install(o)
	require.NoError(t, err)
	require.Contains(t, h.read(file), `"default-runtime": "gpuslice"`)
	_, err = h.install(o) // which changes nothing
	require.NoError(t, err)
	_, err = h.uninstall(o)
	require.NoError(t, err)
	require.JSONEq(t, `{"default-runtime": "nvidia"}`, h.read(file))
}

// A backup in a directory that is imported as a whole would be configuration.
func TestBackupsAreNoConfiguration(t *testing.T) {
	h := newTestHost(t)
	h.put(mainFiles["containerd"], "version = 3\nimports = [\"/etc/containerd/conf.d/*\"]\n")
	h.put("/etc/containerd/conf.d/10-other.toml", "version = 3\n")
	o := h.options("containerd")
	_, err := h.install(o)
	require.NoError(t, err)
	require.Contains(t, h.read("/etc/containerd/gpuslice.d/zz-gpuslice.toml"), "gpuslice-runtime", "to a directory without that import")
	require.Contains(t, h.read(mainFiles["containerd"]), "imports = ['/etc/containerd/conf.d/*', 'gpuslice.d/zz-gpuslice*.toml']\n")
	require.Contains(t, h.containerd().Handlers(doctor.IsOurRuntime), Name)

	h = newTestHost(t)
	h.put(mainFiles["containerd"], "version = 3\nimports = [\"/etc/containerd/*\"]\n")
	_, err = h.install(h.options("containerd"))
	require.ErrorContains(t, err, "would read the backups")
}
