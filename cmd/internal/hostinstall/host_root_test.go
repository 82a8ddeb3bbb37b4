//go:build root

package hostinstall

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/test/harness"
)

// A link is followed, below the host's root, and stays one; mode and owner stay too.
func TestLinkModeAndOwner(t *testing.T) {
	h := newTestHost(t)
	h.put("/srv/config/daemon.json", "{}\n")
	real := h.path("/srv/config/daemon.json")
	require.NoError(t, os.Chmod(real, 0o640))
	require.NoError(t, os.Chown(real, 1234, 4321), "the test runs as root")
	require.NoError(t, unix.Setxattr(real, "trusted.gpuslice-test", []byte("x"), 0))
	require.NoError(t, os.Mkdir(h.path("/etc"), 0o755))
	require.NoError(t, os.Symlink("/srv/config", h.path("/etc/docker"))) // absolute: of the host, not of this machine

	out, err := h.install(h.options("docker"))
	require.NoError(t, err)
	assert.Contains(t, out, "(backup: /srv/config/daemon.json.gpuslice-backup-")
	backups := h.backups("/srv/config/daemon.json")
	require.Len(t, backups, 1)
	for _, file := range []string{real, backups[0]} {
		info, err := os.Lstat(file)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o640), info.Mode(), file)
		owner := info.Sys().(*syscall.Stat_t)
		assert.Equal(t, []uint32{1234, 4321}, []uint32{owner.Uid, owner.Gid}, file)
		value := make([]byte, 8)
		n, err := unix.Getxattr(file, "trusted.gpuslice-test", value)
		require.NoError(t, err)
		assert.Equal(t, "x", string(value[:n]))
	}
	info, err := os.Lstat(h.path("/etc/docker"))
	require.NoError(t, err)
	assert.Equal(t, fs.ModeSymlink, info.Mode().Type())

	// The file itself is a link.
	require.NoError(t, os.Symlink("/etc/docker/daemon.json", h.path("/etc/other.json")))
	o := h.options("docker")
	o.Config, o.SetDefault = "/etc/other.json", true
	_, err = h.install(o)
	require.NoError(t, err)
	assert.Contains(t, h.read("/srv/config/daemon.json"), "default-runtime")
	info, err = os.Lstat(h.path("/etc/other.json"))
	require.NoError(t, err)
	assert.Equal(t, fs.ModeSymlink, info.Mode().Type())
}

// What can't be written, or isn't a file, is refused, and nothing is lost.
func TestNotWritable(t *testing.T) {
	const text = "{\n  \"debug\": true\n}\n"
	mount := func(h testHost, flags uintptr, data string) {
		dir := h.path("/etc/docker")
		require.NoError(h.t, unix.Mount("tmpfs", dir, "tmpfs", flags, data), "the test runs as root")
		h.t.Cleanup(func() { assert.NoError(h.t, unix.Unmount(dir, unix.MNT_DETACH)) })
	}
	for _, test := range []struct {
		description, want string
		prepare           func(h testHost)
	}{
		{"a file system that is read-only", "read-only file system: its file system is read-only", func(h testHost) {
			mount(h, 0, "size=64k")
			h.put(daemonJSON, text)
			require.NoError(h.t, unix.Mount("", h.path("/etc/docker"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}},
		{"one that is full", "no space left on device: free some space", func(h testHost) {
			mount(h, 0, "size=16k")
			h.put(daemonJSON, text)
			assert.Error(h.t, os.WriteFile(h.path("/etc/docker/full"), make([]byte, 1<<20), 0o600))
		}},
		{"one without inodes", "no space left on device: free some space", func(h testHost) {
			mount(h, 0, "nr_inodes=2")
			h.put(daemonJSON, text)
		}},
		{"one with space for the backup only", "no space left on device: free some space", func(h testHost) {
			mount(h, 0, "nr_inodes=3")
			h.put(daemonJSON, text)
		}},
		{"a mount of its own", "is it a mount point?", func(h testHost) {
			h.put(daemonJSON, text)
			file := h.path(daemonJSON)
			require.NoError(h.t, unix.Mount(file, file, "", unix.MS_BIND, ""))
			h.t.Cleanup(func() { assert.NoError(h.t, unix.Unmount(file, unix.MNT_DETACH)) })
		}},
		{"a text that is no JSON", "/etc/docker/daemon.json: comments and trailing commas are not valid in JSON: it was not changed", func(h testHost) { h.put(daemonJSON, "{ // c\n}") }},
	} {
		t.Run(test.description, func(t *testing.T) {
			h := newTestHost(t)
			require.NoError(t, os.MkdirAll(h.path("/etc/docker"), 0o755))
			test.prepare(h)
			before := h.read(daemonJSON)
			_, err := h.install(h.options("docker"))
			assert.ErrorContains(t, err, test.want)
			assert.Equal(t, before, h.read(daemonJSON))
			entries, err := filepath.Glob(h.path("/etc/docker/.daemon*"))
			require.NoError(t, err)
			assert.Empty(t, entries, "no temporary file stays")
			_, err = h.uninstall(h.options("docker"))
			if test.description != "a text that is no JSON" {
				assert.NoError(t, err, "there is nothing to take out")
			}
			assert.Equal(t, before, h.read(daemonJSON))
		})
	}
	for description, prepare := range map[string]func(h testHost){
		"is not a regular file": func(h testHost) { require.NoError(t, unix.Mkfifo(h.path(daemonJSON), 0o600)) },
		"follow the link":       func(h testHost) { require.NoError(t, os.Symlink("/nowhere", h.path(daemonJSON))) },
	} {
		h := newTestHost(t)
		require.NoError(t, os.MkdirAll(h.path("/etc/docker"), 0o755))
		prepare(h)
		_, err := h.install(h.options("docker"))
		assert.ErrorContains(t, err, description)
	}
}

func TestRepairStateDirMode(t *testing.T) {
	h := newTestHost(t)
	dir := h.path("/run/gpuslice")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.Chown(dir, 1000, -1))
	mode := func() os.FileMode {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	o := h.repairs("")
	o.DryRun = true
	want := "-/run/gpuslice: owner 1000, mode 0777\n+/run/gpuslice: owner 0, mode 0711\n"
	assert.Equal(t, want+"nothing was changed (--dry-run)\n", h.repair(doctor.RepairStateDirMode, o))
	assert.Equal(t, os.FileMode(0o777), mode())
	o.DryRun = false
	assert.Equal(t, want, h.repair(doctor.RepairStateDirMode, o))
	assert.Equal(t, os.FileMode(0o711), mode())

	// A link that leads out of the host is followed inside its root, or not at all.
	outside := t.TempDir()
	require.NoError(t, os.Chmod(outside, 0o777))
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Symlink(outside, dir))
	require.Error(t, Repair(t.Context(), doctor.RepairStateDirMode, o, &strings.Builder{}))
	info, err := os.Stat(outside)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o777), info.Mode().Perm())
}

// Each handler that runs NVIDIA's runtime gets ours in front of it, and uninstall removes it.
func TestBarrierInFrontOfNvidiasRuntime(t *testing.T) {
	h := newTestHost(t)
	h.put(containerdTOML, mainV3)
	h.put("/etc/containerd/conf.d/99-nvidia.toml", nvidiaDropIn)
	before := h.files()
	o := h.options("containerd")
	o.ExemptNamespaces = []string{"gpuslice-system", "dcgm"}
	out, err := h.install(o)
	require.NoError(t, err)
	assert.Contains(t, out, "a pod without a grant gets no GPU from the runtime handlers nvidia, nvidia-cdi")

	assert.Empty(t, h.containerd().Handlers(doctor.IsNvidiaRuntime))
	nvidia, _ := lookup(h.containerd().Plugins, []string{doctor.PluginCRI, "containerd", "runtimes", "nvidia", "options"})
	assert.Equal(t, map[string]any{"BinaryName": o.RuntimePath, "SystemdCgroup": true}, nvidia, "the rest stays")
	newest, err := harness.Tool("containerd")
	require.NoError(t, err)
	real, _ := lookup(dump(t, newest, h.path(containerdTOML)), []string{"plugins", doctor.PluginCRI, "containerd", "runtimes"})
	for _, handler := range []string{"nvidia", "nvidia-cdi"} {
		binary, _ := lookup(real.(map[string]any), []string{handler, "options", "BinaryName"})
		assert.Equal(t, o.RuntimePath, binary, "containerd itself reads it so")
	}
	c, err := request.Parse(api.RuntimeConfig, []byte(h.read(api.RuntimeConfig)))
	require.NoError(t, err)
	assert.Equal(t, "/usr/local/nvidia/toolkit/nvidia-container-runtime", c.NvidiaRuntime)
	assert.Equal(t, []string{"gpuslice-system", "dcgm"}, c.ExemptNamespaces)

	installed := h.files()
	_, err = h.install(o)
	require.NoError(t, err)
	assert.Equal(t, installed, h.files(), "a second time changes nothing")

	_, err = h.uninstall(o)
	require.NoError(t, err)
	assert.Equal(t, before, h.files())
}
