package hostinstall

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	containerdTOML = "/etc/containerd/config.toml"
	dropInFile     = "/etc/containerd/conf.d/zz-gpuslice.toml"
)

// containerd's versions and shapes: which file is changed, and its content.
func TestContainerd(t *testing.T) {
	const (
		v2 = "version = 2\n"
		v3 = "version = 3\nimports = [\"conf.d/*.toml\"]\n"
	)
	for _, test := range []struct {
		description, version string
		files                map[string]string
		changed              string // the file
		contains             []string
		lacks                []string
		out                  string
	}{
		{"nothing there, containerd 2", "2.1.0", nil, dropInFile,
			[]string{"version = 3\n", "'io.containerd.cri.v1.runtime'.containerd.runtimes.gpuslice.options]\n  BinaryName = '/usr/bin/gpuslice-runtime'"},
			[]string{"default_validator", "runtimes.runc"}, "created    /etc/containerd/config.toml"},
		{"nothing there, containerd 1.7", "containerd containerd.io 1.7.24", nil, containerdTOML,
			[]string{"version = 2\n", "'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n", "[plugins.'io.containerd.nri.v1.nri']\n  disable = false"},
			[]string{"default_validator"}, "gets no GPU from the runtime handler gpuslice"},
		{"no NRI before 1.7", "1.6.20~ds1", nil, containerdTOML, []string{"version = 2\n"}, []string{"nri"}, "containerd 1.6.20~ds1 has no NRI"},
		{"a directory is imported", "2.4.2", map[string]string{containerdTOML: v3}, dropInFile,
			[]string{"version = 3\n", "runtimes.gpuslice.options]"}, nil, "created"},
		{"version 2 imports a directory: 1.x would drop the main file's section", "", map[string]string{containerdTOML: v2 + "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"}, containerdTOML,
			[]string{"runtimes.gpuslice.options]"}, nil, "changed"},
		{"one file is imported", "2.4.2", map[string]string{containerdTOML: "version = 3\nimports = [\"/etc/containerd/other.toml\"]\n", "/etc/containerd/other.toml": "version = 3\n"}, dropInFile,
			[]string{"runtimes.gpuslice.options]"}, nil, "changed    /etc/containerd/config.toml"},
		{"the handler has the default runtime's settings", "1.7.24", map[string]string{containerdTOML: v2 + "[plugins.'io.containerd.grpc.v1.cri'.containerd]\n default_runtime_name = 'nvidia'\n" +
			"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n runtime_type = 'io.containerd.runc.v2'\n pod_annotations = ['a/*']\n runtime_engine = 'x'\n options = { BinaryName = '/n', SystemdCgroup = true, IoUid = 0 }\n"}, containerdTOML,
			[]string{"pod_annotations = ['a/*']\n  runtime_type = 'io.containerd.runc.v2'\n\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.gpuslice.options]\n  BinaryName = '/usr/bin/gpuslice-runtime'\n  SystemdCgroup = true\n"},
			[]string{"runtime_engine = 'x'\n\n", "IoUid = 0\n", "runtimes.runc"}, "changed"},
		{"a default of another shim is not taken after", "2.4.2", map[string]string{containerdTOML: "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n default_runtime_name = 'kata'\n" +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n runtime_type = 'io.containerd.kata.v2'\n pod_annotations = ['a']\n" +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n runtime_type = 'io.containerd.runc.v2'\n snapshotter = 'zfs'\n"}, dropInFile,
			[]string{"runtimes.gpuslice]\n  runtime_type = 'io.containerd.runc.v2'\n  snapshotter = 'zfs'\n\n"}, nil, "changed"},
		{"a timeout that works is left", "2.4.2", map[string]string{containerdTOML: "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n plugin_request_timeout = '9s' # slow\n"}, dropInFile,
			[]string{"plugin_registration_timeout"}, []string{"plugin_request_timeout"}, "changed"},
		{"one that doesn't is not", "2.4.2", map[string]string{containerdTOML: "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n plugin_request_timeout = '90s' # slow\n disable_connections = true\n"}, dropInFile,
			[]string{"plugin_request_timeout = '2s'", "disable_connections = false"}, nil, "changed"},
		{"CRI is disabled", "2.4.2", map[string]string{containerdTOML: "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.nri.v1.nri']\n"}, containerdTOML,
			[]string{"disabled_plugins = ['io.containerd.grpc.v1.cri']\n"}, nil, "disables CRI (disabled_plugins)"},
		{"NRI is disabled where no drop-in can help", "2.4.2", map[string]string{containerdTOML: v3 + "disabled_plugins = ['io.containerd.nri.v1.nri'] # off\n"}, containerdTOML,
			[]string{"disabled_plugins = [] # off\n"}, []string{"gpuslice"}, "created    /etc/containerd/conf.d/zz-gpuslice.toml"},
	} {
		t.Run(test.description, func(t *testing.T) {
			h := newTestHost(t)
			for file, text := range test.files {
				h.put(file, text)
			}
			before := h.files()
			o := h.options("containerd")
			o.ContainerdVersion = test.version
			out, err := h.install(o)
			require.NoError(t, err)
			assert.Contains(t, out, test.out)
			text := h.read(test.changed)
			for _, part := range test.contains {
				assert.Contains(t, text, part)
			}
			for _, part := range test.lacks {
				assert.NotContains(t, text, part)
			}
			_, err = h.uninstall(o)
			require.NoError(t, err)
			for file, content := range before {
				assert.Equal(t, content, h.read(file))
			}
			for file := range h.files() {
				_, was := before[file]
				assert.True(t, was || strings.Contains(file, ".gpuslice-backup-"), file)
			}
		})
	}
}

// Unsupported configurations are not changed, and the error contains what to do.
func TestContainerdRefused(t *testing.T) {
	for _, test := range []struct {
		description, version, want string
		files                      map[string]string
	}{
		{"version 1", "1.7.0", "has version 1, and gpuslice needs version 2 or newer: `containerd --config /etc/containerd/config.toml config migrate`", map[string]string{containerdTOML: "root = '/x'\n"}},
		{"an unknown version", "9.0.0", "has version 5, and this gpuslice supports none after 4", map[string]string{containerdTOML: "version = 5\n"}},
		{"no TOML", "2.4.2", "read containerd's configuration: /etc/containerd/config.toml: toml", map[string]string{containerdTOML: "version = \n"}},
		{"generated", "1.7.0", "is a generated file", map[string]string{containerdTOML: "# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.\nversion = 2\n"}},
		{"a later file wins", "2.4.2", "disable in /etc/containerd/conf.d/zz-gpuslice.toml has no effect: a file that containerd reads later sets it to true (it reads /etc/containerd/config.toml, /etc/containerd/conf.d/zz-gpuslice.toml, /etc/containerd/conf.d/zzz.toml): change that file, or set --config",
			map[string]string{containerdTOML: "version = 3\nimports = ['conf.d/*.toml']\n", "/etc/containerd/conf.d/zzz.toml": "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n"}},
		{"in 1.7 a later file's section wins as a whole", "1.7.24", "a file that containerd reads later",
			map[string]string{containerdTOML: "version = 2\nimports = ['z.toml']\n", "/etc/containerd/z.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n"}},
		{"an import that isn't there", "2.4.2", "read containerd's configuration", map[string]string{containerdTOML: "version = 3\nimports = ['none.toml']\n"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			h := newTestHost(t)
			for file, text := range test.files {
				h.put(file, text)
			}
			before := h.files()
			o := h.options("containerd")
			o.ContainerdVersion = test.version
			_, err := h.install(o)
			assert.ErrorContains(t, err, test.want)
			assert.Equal(t, before, h.files())
		})
	}
}

// The docker plan refuses what dockerd would not start with, and notes conflicting flags.
func TestDocker(t *testing.T) {
	h := newTestHost(t)
	h.put(daemonJSON, `{"runtimes": {"gpuslice": {"runtimeType": "io.containerd.kata.v2"}}}`)
	_, err := h.install(h.options("docker"))
	assert.ErrorContains(t, err, `has a runtime "gpuslice" of another kind (runtimeType)`)

	p, err := planDocker(fstest.MapFS{
		"proc/1/cmdline": {Data: []byte("/sbin/init\x00--add-runtime\x00")},
		"proc/7/cmdline": {Data: []byte("/usr/sbin/dockerd\x00--add-runtime\x00nvidia=/x\x00--config-file=/etc/d.json\x00")},
		"proc/8/cmdline": {Data: []byte("dockerd\x00--config-file\x00/etc/docker/daemon.json\x00--default-runtime=x\x00")},
	}, Options{RuntimePath: "/x", SetDefault: true})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"dockerd (process 7) has the flag --add-runtime and does not start if /etc/docker/daemon.json has the same setting: move the flag from the systemd unit to the file",
		"dockerd (process 7) reads /etc/d.json, not /etc/docker/daemon.json: set --config",
		"dockerd (process 8) has the flag --default-runtime and does not start if /etc/docker/daemon.json has the same setting: move the flag from the systemd unit to the file",
		"run `systemctl reload docker`: dockerd reads new runtimes without a restart",
	}, p.notes)
}

// A reloaded dockerd keeps its default runtime if the file has none. dockerd 20.10 then ends, because the runtime does
// not exist any more.
func TestDockerDefaultNeedsRestart(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                           "systemctl restart docker`;",
		`{"default-runtime": "other"}`: "systemctl reload docker`;",
	} {
		h := newTestHost(t)
		h.put(daemonJSON, text)
		o := h.options("docker")
		o.SetDefault = true
		_, err := h.install(o)
		require.NoError(t, err)
		out, err := h.uninstall(o)
		require.NoError(t, err)
		assert.Contains(t, out, want)
	}
}

// Wrong options.
func TestBadCalls(t *testing.T) {
	h := newTestHost(t)
	o := h.options("docker")
	o.Root = h.path("/none")
	_, err := h.install(o)
	assert.ErrorContains(t, err, "the host's root directory")
	o = h.options("docker")
	o.From = h.path("/none")
	_, err = h.install(o)
	assert.ErrorContains(t, err, " not found: set --from to the directory that `make build` creates, or to an unpacked release")
}
