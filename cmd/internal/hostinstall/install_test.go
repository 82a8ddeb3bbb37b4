package hostinstall

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// mainFiles are what the engines' configuration is usually called.
var mainFiles = map[string]string{
	"docker":     "/etc/docker/daemon.json",
	"containerd": "/etc/containerd/config.toml",
	"podman":     "/etc/containers/containers.conf.d/gpuslice.conf",
}

// testHost is a host's root directory with the programs in it.
type testHost struct {
	t    *testing.T
	root string
}

func newTestHost(t *testing.T) testHost {
	h := testHost{t, t.TempDir()}
	h.put("/usr/bin/gpuslice-runtime", "#!/bin/sh\n")
	require.NoError(t, os.Chmod(h.path("/usr/bin/gpuslice-runtime"), 0o755))
	h.put("/var/lib/gpuslice/lib/libvgpu-0123456789abcdef.so", "")
	return h
}

func (h testHost) path(file string) string { return filepath.Join(h.root, file) }

func (h testHost) put(file, text string) {
	require.NoError(h.t, os.MkdirAll(filepath.Dir(h.path(file)), 0o755))
	require.NoError(h.t, os.WriteFile(h.path(file), []byte(text), 0o644))
}

func (h testHost) read(file string) string {
	data, err := os.ReadFile(h.path(file))
	require.NoError(h.t, err)
	return string(data)
}

// files are all files of the host with their content.
func (h testHost) files() map[string]string {
	all := map[string]string{}
	require.NoError(h.t, filepath.WalkDir(h.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, h.root)] = string(data)
		return err
	}))
	return all
}

func (h testHost) backups(file string) []string {
	found, err := filepath.Glob(h.path(file) + ".gpuslice-backup-*")
	require.NoError(h.t, err)
	return found
}

func (h testHost) options(engine string) Options {
	return Options{
		Engine: engine, Root: h.root, RuntimePath: "/usr/bin/gpuslice-runtime", ContainerdVersion: "2.4.2",
		Library: h.path("/none.so"), LibraryDir: "/var/lib/gpuslice/lib", Hooks: true,
		ExemptNamespaces: []string{"gpuslice-system"}, StateDir: "/run/gpuslice",
		HookFiles: fstest.MapFS{"gpuslice-precreate.json": {Data: []byte("{\n  \"version\": \"1.0.0\",\n  \"hook\": {\"path\": \"/usr/bin/gpuslice-runtime\", \"args\": [\"gpuslice-runtime\", \"hook\"]}\n}\n")}},
	}
}

func (h testHost) install(o Options) (string, error) {
	var out bytes.Buffer
	err := Install(h.t.Context(), o, &out)
	return out.String(), err
}

func (h testHost) uninstall(o Options) (string, error) {
	var out bytes.Buffer
	err := Uninstall(h.t.Context(), o, &out)
	return out.String(), err
}

func TestRoundTrip(t *testing.T) {
	for engine, main := range mainFiles {
		fixtures, err := filepath.Glob(filepath.Join("testdata", engine, "*"))
		require.NoError(t, err)
		require.NotEmpty(t, fixtures)
		for _, fixture := range fixtures {
			for _, setDefault := range []bool{false, true} {
				t.Run(engine+"/"+filepath.Base(fixture), func(t *testing.T) {
					text, err := os.ReadFile(fixture)
					require.NoError(t, err)
					h := newTestHost(t)
					h.put(main, string(text))
					o := h.options(engine)
					o.SetDefault = setDefault
					h.roundTrip(o)
				})
			}
		}
	}
}

// roundTrip installs and uninstalls: installed, the configuration has our runtime and means else what it
// meant; a second time changes nothing; uninstalled it is what it was, to the byte.
func (h testHost) roundTrip(o Options) {
	t, main := h.t, mainFiles[o.Engine]
	before := h.files()
	text := before[main]

	dry := o
	dry.DryRun = true
	shown, err := h.install(dry)
	require.NoError(t, err)
	assert.Contains(t, shown, "+")
	assert.Equal(t, before, h.files(), "--dry-run changes nothing")

	_, err = h.install(o)
	require.NoError(t, err)
	installed := h.files()
	for path, content := range before {
		if path != main {
			assert.Equal(t, content, installed[path])
		}
	}
	out, err := h.install(o)
	require.NoError(t, err)
	assert.Contains(t, out, "unchanged")
	assert.Equal(t, installed, h.files(), "the second time changes nothing")

	_, err = h.uninstall(o)
	require.NoError(t, err)
	if strings.Contains(text, "{}") { // white space in it may go
		assert.Equal(t, string(squeeze([]byte(text))), string(squeeze([]byte(h.read(main)))))
	} else {
		assert.Equal(t, text, h.read(main))
	}
	for path := range h.files() {
		if _, was := before[path]; !was {
			assert.Contains(t, path, ".gpuslice-backup-")
		}
	}
	out, err = h.uninstall(o)
	require.NoError(t, err)
	assert.NotRegexp(t, `(?m)^(changed|created|removed|note)`, out)
}

// A host without any configuration gets it, and is without again.
func TestNothingThere(t *testing.T) {
	for engine, main := range mainFiles {
		for description, forget := range map[string]bool{"with the record": false, "the record is lost": true} {
			t.Run(engine+" "+description, func(t *testing.T) {
				h := newTestHost(t)
				before := h.files()
				o := h.options(engine)
				out, err := h.install(o)
				require.NoError(t, err)
				assert.Contains(t, out, "created    "+main)
				assert.Empty(t, h.backups(main))
				if forget {
					require.NoError(t, os.RemoveAll(h.path(recordDir)))
				}
				_, err = h.uninstall(o)
				require.NoError(t, err)
				if forget && engine != "podman" {
					assert.NotContains(t, h.read(main), "/usr/bin/gpuslice-runtime")
					return // without the record, only what has gpuslice's name is removed
				}
				after := h.files()
				for _, backup := range h.backups(main) { // of a drop-in file without a record
					delete(after, strings.TrimPrefix(backup, h.root))
				}
				assert.Equal(t, before, after)
			})
		}
	}
}

// Settings that were changed since the install are kept.
func TestLaterEditsStay(t *testing.T) {
	h := newTestHost(t)
	h.put(mainFiles["docker"], `{"default-runtime": "runc"}`)
	o := h.options("docker")
	o.SetDefault = true
	_, err := h.install(o)
	require.NoError(t, err)
	text := strings.Replace(h.read(mainFiles["docker"]), `"default-runtime": "gpuslice"`, `"default-runtime": "crun", "debug": true`, 1)
	text = strings.Replace(text, `"gpuslice":{`, `"crun": {"path": "crun"}, "gpuslice":{`, 1)
	h.put(mainFiles["docker"], text)
	out, err := h.uninstall(o)
	require.NoError(t, err)
	assert.Contains(t, out, "daemon.json default-runtime was changed since the install and was not removed")
	assert.JSONEq(t, `{"default-runtime": "crun", "debug": true, "runtimes": {"crun": {"path": "crun"}}}`, h.read(mainFiles["docker"]))
}

// Uninstall works after another tool rewrote the file without comments and in another order.
func TestRewrittenByAnotherTool(t *testing.T) {
	h := newTestHost(t)
	h.put(mainFiles["containerd"], "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = true # off\n")
	o := h.options("containerd")
	_, err := h.install(o)
	require.NoError(t, err)
	h.put(mainFiles["containerd"], `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
runtimes.nvidia.runtime_type = "io.containerd.runc.v2"
runtimes.runc = { runtime_type = "io.containerd.runc.v2", options.SystemdCgroup = true }
runtimes.gpuslice = { runtime_type = "io.containerd.runc.v2", options.BinaryName = "/usr/bin/gpuslice-runtime" }
[plugins."io.containerd.nri.v1.nri"]
disable = false
plugin_request_timeout = "2s"
`)
	out, err := h.uninstall(o)
	require.NoError(t, err)
	assert.Contains(t, out, "runtimes.runc was changed since", "others rely on the handler by now")
	assert.Equal(t, `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
runtimes.nvidia.runtime_type = "io.containerd.runc.v2"
runtimes.runc = { runtime_type = "io.containerd.runc.v2", options.SystemdCgroup = true }
[plugins."io.containerd.nri.v1.nri"]
disable = true
`, h.read(mainFiles["containerd"]))
}

// A second install with another path does not lose the settings from before the first.
func TestInstalledAgainWithOtherOptions(t *testing.T) {
	h := newTestHost(t)
	h.put(mainFiles["docker"], `{"runtimes": {"gpuslice": {"path": "/old"}}}`)
	o := h.options("docker")
	for _, path := range []string{"/usr/bin/gpuslice-runtime", "/opt/gpuslice-runtime"} {
		h.put(path, "")
		require.NoError(t, os.Chmod(h.path(path), 0o755))
		o.RuntimePath = path
		_, err := h.install(o)
		require.NoError(t, err)
		assert.Contains(t, h.read(mainFiles["docker"]), path)
	}
	_, err := h.uninstall(o)
	require.NoError(t, err)
	assert.Equal(t, `{"runtimes": {"gpuslice": {"path": "/old"}}}`, h.read(mainFiles["docker"]))
}

// An option that is added later leaves nothing behind either.
func TestInstalledInTwoSteps(t *testing.T) {
	for engine, main := range mainFiles {
		h := newTestHost(t)
		before := h.files()
		o := h.options(engine)
		_, err := h.install(o)
		require.NoError(t, err)
		o.SetDefault = true
		_, err = h.install(o)
		require.NoError(t, err)
		if engine == "containerd" {
			assert.Contains(t, h.read("/etc/containerd/conf.d/zz-gpuslice.toml"), "default_runtime_name")
		} else {
			assert.Regexp(t, `default.runtime|runtime =`, h.read(main))
		}
		_, err = h.uninstall(o)
		require.NoError(t, err)
		after := h.files()
		for _, backup := range h.backups(main) {
			delete(after, strings.TrimPrefix(backup, h.root))
		}
		assert.Equal(t, before, after, engine)
	}
}

// Installs at the same time have the same result as one after the other.
func TestAtOnce(t *testing.T) {
	h := newTestHost(t)
	h.put(mainFiles["docker"], "{\"debug\": true}\n")
	var group errgroup.Group
	for i := range 8 {
		o := h.options("docker")
		o.SetDefault = i == 5
		group.Go(func() error { return Install(t.Context(), o, io.Discard) })
	}
	require.NoError(t, group.Wait())
	assert.Contains(t, h.read(mainFiles["docker"]), "default-runtime")
	_, err := h.uninstall(h.options("docker"))
	require.NoError(t, err)
	assert.Equal(t, "{\"debug\": true}\n", h.read(mainFiles["docker"]))
}

// After an install that was interrupted before it wrote the file, uninstall changes nothing.
func TestCutOff(t *testing.T) {
	h := newTestHost(t)
	o := h.options("docker")
	_, err := h.install(o)
	require.NoError(t, err)
	h.put(mainFiles["docker"], "{}\n")
	_, err = h.uninstall(o)
	require.NoError(t, err)
	assert.Equal(t, "{}\n", h.read(mainFiles["docker"]))
	assert.NoFileExists(t, h.path("/var/lib/gpuslice/install/docker.json"))
}

// podman's hooks run the installed program. A hook that was changed since is kept.
func TestHooks(t *testing.T) {
	const hook = "/usr/share/containers/oci/hooks.d/gpuslice-precreate.json"
	h := newTestHost(t)
	o := h.options("podman")
	o.RuntimePath = "/opt/gpuslice-runtime"
	h.put(o.RuntimePath, "")
	require.NoError(t, os.Chmod(h.path(o.RuntimePath), 0o755))
	_, err := h.install(o)
	require.NoError(t, err)
	assert.Contains(t, h.read(hook), `"hook": {"path": "/opt/gpuslice-runtime", "args"`)
	h.put(hook, "{}\n")
	out, err := h.uninstall(o)
	require.NoError(t, err)
	assert.Contains(t, out, hook+" was changed since the install")
	assert.Equal(t, "{}\n", h.read(hook))

	h = newTestHost(t)
	o = h.options("podman")
	o.Hooks = false
	_, err = h.install(o)
	require.NoError(t, err)
	assert.NoFileExists(t, h.path(hook))
}

// The programs and the library are installed from a directory, and the host's own
// preload file is not touched, nor looked for.
func TestFrom(t *testing.T) {
	h := newTestHost(t)
	require.NoError(t, os.RemoveAll(h.path("/usr")))
	require.NoError(t, os.RemoveAll(h.path("/var")))
	h.put("/etc/ld.so.preload", "/usr/lib/other.so\n")
	before, err := os.Stat(h.path("/etc/ld.so.preload"))
	require.NoError(t, err)
	from := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(from, "bin"), 0o755))
	for _, program := range []string{"gpuslice", "gpuslice-runtime"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, "bin", program), self[:4096], 0o600))
	}
	libm, err := filepath.Glob("/lib/*/libm.so.6")
	require.NoError(t, err)
	require.NotEmpty(t, libm, "any shared object of this machine does")
	library, err := os.ReadFile(libm[0])
	require.NoError(t, err)
	for _, name := range []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), library, 0o600))
	}

	require.NoError(t, os.WriteFile(filepath.Join(from, "gpuslice-probe"), library, 0o600))

	for engine := range mainFiles {
		o := h.options(engine)
		_, err := h.install(o)
		assert.ErrorContains(t, err, "/usr/bin/gpuslice-runtime is not a program on this host: install it, set --runtime-path to its path, or copy it with --from")
		o.From = from
		_, err = h.install(o)
		require.NoError(t, err)
		for _, program := range []string{"/usr/bin/gpuslice", "/usr/bin/gpuslice-runtime", "/var/lib/gpuslice/lib/gpuslice-probe"} {
			info, err := os.Stat(h.path(program))
			require.NoError(t, err)
			assert.Equal(t, fs.FileMode(0o755), info.Mode())
		}
		installed, err := filepath.Glob(h.path("/var/lib/gpuslice/lib/libvgpu-*.so"))
		require.NoError(t, err)
		assert.Len(t, installed, 3)
		_, err = h.uninstall(o)
		require.NoError(t, err)
		assert.FileExists(t, h.path("/usr/bin/gpuslice-runtime"), "containers that run need it to end")
		require.NoError(t, os.Remove(h.path("/usr/bin/gpuslice-runtime")))
	}
	after, err := os.Stat(h.path("/etc/ld.so.preload"))
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after))
	assert.Equal(t, before.ModTime(), after.ModTime())
	assert.Equal(t, "/usr/lib/other.so\n", h.read("/etc/ld.so.preload"))
}

// A table that the operator's file has only by a table below it gets a section by install. Uninstall takes that out, too.
func TestUninstallLeavesNoEmptySection(t *testing.T) {
	const validator = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n"
	for name, before := range map[string]string{
		"NRI's validator":          "version = 2\n" + validator,
		"a handler":                "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n",
		"the operator's empty one": "version = 2\n[plugins.'io.containerd.nri.v1.nri']\n" + validator,
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.put(containerdTOML, before)
			o := h.options("containerd")
			o.SetDefault = true
			_, err := h.install(o)
			require.NoError(t, err)
			_, err = h.uninstall(o)
			require.NoError(t, err)
			assert.Equal(t, before, h.read(containerdTOML))
		})
	}
}
