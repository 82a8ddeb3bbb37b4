//go:build root

package hostinstall

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/install"
	"github.com/gpuslice/gpuslice/test/harness"
)

// dump is the configuration as a containerd reads it.
func dump(t *testing.T, containerd, file string) map[string]any {
	var config map[string]any
	text, err := harness.Run(t.Context(), nil, containerd, "--config", file, "config", "dump")
	require.NoError(t, err)
	require.NoError(t, toml.Unmarshal([]byte(text), &config))
	return config
}

// containerd 1 and 2 read the written files, in every layout that they support, and keep their other handlers.
func TestRealContainerd(t *testing.T) {
	newest, err := harness.Tool("containerd")
	require.NoError(t, err)
	const old = "/usr/bin/containerd" // Debian's
	fixtures, err := filepath.Glob("testdata/containerd/*.toml")
	require.NoError(t, err)
	// containerd does not know the test's root directory: imports are relative to the file.
	local := strings.NewReplacer("/etc/containerd/conf.d", "conf.d", "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d", "conf.d")
	const none, byDefault = "none", "config default"
	for _, fixture := range append(fixtures, none, byDefault) {
		for _, c := range []struct{ path, version, cri string }{{newest, "2.4.2", doctor.PluginCRI}, {old, "1.6.20", doctor.PluginCRIv2}} {
			text := ""
			switch fixture {
			case none:
			case byDefault:
				text, err = harness.Run(t.Context(), nil, c.path, "config", "default")
				require.NoError(t, err)
			default:
				data, err := os.ReadFile(fixture)
				require.NoError(t, err)
				text = string(data)
			}
			if fixture != none && c.path == old && !strings.Contains(text, "version = 2") {
				continue // it reads no newer version
			}
			text = local.Replace(text)
			t.Run(filepath.Base(fixture)+" "+c.version, func(t *testing.T) {
				h := newTestHost(t)
				main := h.path(containerdTOML)
				var before map[string]any
				if fixture != none {
					h.put(containerdTOML, text)
					before = dump(t, c.path, main)
				}
				files := h.files()
				o := h.options("containerd")
				o.ContainerdVersion = c.version
				_, err = h.install(o)
				require.NoError(t, err)
				after := dump(t, c.path, main)
				at := func(keys ...string) any {
					v, _ := lookup(after, append([]string{"plugins"}, keys...))
					return v
				}
				assert.Equal(t, o.RuntimePath, at(c.cri, "containerd", "runtimes", "gpuslice", "options", "BinaryName"))
				assert.Equal(t, shim, at(c.cri, "containerd", "runtimes", "gpuslice", "runtime_type"))
				handlers, _ := lookup(before, []string{"plugins", c.cri, "containerd", "runtimes"})
				if handlers == nil {
					handlers = map[string]any{"runc": nil} // what it has by default
				}
				for name := range handlers.(map[string]any) {
					assert.NotNil(t, at(c.cri, "containerd", "runtimes", name), "other pods' handler")
				}
				if c.path == newest {
					assert.Equal(t, false, at(doctor.PluginNRI, "disable"))
					assert.NotContains(t, after["disabled_plugins"], doctor.PluginNRI)
					assert.Equal(t, true, at(doctor.PluginNRI, "default_validator", "enable"))
					assert.Equal(t, tolerance, at(doctor.PluginNRI, "default_validator", "tolerate_missing_plugins_annotation"))
					_, err := harness.Run(t.Context(), nil, c.path, "--config", main, "config", "migrate")
					assert.NoError(t, err)
					doctorAgrees(t, h)
				}
				_, err = h.uninstall(o)
				require.NoError(t, err)
				if fixture != none {
					assert.Equal(t, before, dump(t, c.path, main))
				}
				left := h.files()
				for _, backup := range h.backups(containerdTOML) {
					delete(left, strings.TrimPrefix(backup, h.root))
				}
				assert.Equal(t, files, left, "the same text, and no file more")
				if fixture != byDefault {
					return // TestRoundTrip has it
				}
				for _, setDefault := range []bool{false, true} {
					h := newTestHost(t)
					h.put(containerdTOML, text)
					o := h.options("containerd")
					o.ContainerdVersion, o.SetDefault = c.version, setDefault
					h.roundTrip(o)
				}
			})
		}
	}
}

// doctorAgrees checks that doctor wants nothing more of the configuration.
func doctorAgrees(t *testing.T, h testHost) {
	machine, err := doctor.NewMachine(h.root)
	require.NoError(t, err)
	defer machine.Close()
	report := doctor.Examine(t.Context(), machine, doctor.Options{
		RuntimeConfig: containerdTOML, RuntimeSocket: "/none", KubeletDir: "/none", StateDir: "/none", LibraryDir: "/none",
	})
	seen := 0
	for _, r := range report.Results {
		switch r.Check {
		case "runtime-config", "nri-timeout", "nri-validator", "barrier":
			seen++
			assert.Equal(t, doctor.OK, r.State, "%s: %s", r.Check, r.Found)
		case "nri":
			seen++
			assert.Contains(t, r.Found, "NRI is on", "its socket is of a containerd that runs")
		}
	}
	assert.Equal(t, 5, seen)
}

// A running dockerd adds the runtime when it is reloaded, and removes it again.
func TestRealDocker(t *testing.T) {
	for _, setDefault := range []bool{false, true} {
		t.Run(fmt.Sprint("default ", setDefault), func(t *testing.T) {
			h := newTestHost(t)
			h.put(daemonJSON, "{\n  \"debug\": true,\n  \"default-runtime\": \"other\",\n  \"runtimes\": {\"other\": {\"path\": \"/usr/sbin/runc\"}}\n}\n")
			d := startDocker(t, h.path(daemonJSON))
			o := h.options("docker")
			o.SetDefault = setDefault
			_, err := h.install(o)
			require.NoError(t, err)
			d.reload(func(i dockerInfo) bool {
				return i.Runtimes["gpuslice"].Path == o.RuntimePath && i.Runtimes["other"].Path != "" && setDefault == (i.DefaultRuntime == Name)
			})
			_, err = h.uninstall(o)
			require.NoError(t, err)
			d.reload(func(i dockerInfo) bool {
				return i.Runtimes["gpuslice"].Path == "" && i.Runtimes["other"].Path != "" && i.DefaultRuntime == "other"
			})
		})
	}
}

// docker is a dockerd of the test's own.
type docker struct {
	t       *testing.T
	process *harness.Process
	client  *http.Client
}

type dockerInfo struct {
	DefaultRuntime string
	Runtimes       map[string]struct{ Path string }
}

func startDocker(t *testing.T, config string) docker {
	dir, err := os.MkdirTemp("/tmp", "hi") // short: a socket's path has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "d.sock")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	d := docker{t: t, client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
	// It ends if its containerd takes longer than 15 s to start, as on a busy machine. The next one finds that running.
	for range 4 {
		d.process, err = harness.StartProcess(dir, "dockerd", nil, "dockerd", "--config-file", config, "--iptables=false", "--ip6tables=false",
			"--bridge=none", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
			"--storage-driver", "vfs", "-H", "unix://"+socket)
		require.NoError(t, err, "Debian's package docker.io has dockerd: test/setup.sh installs it")
		process := d.process
		t.Cleanup(func() { assert.NoError(t, process.Stop(harness.StopPatience)) })
		if err = d.becomes(func(dockerInfo) bool { return true }); err == nil {
			return d
		}
	}
	require.NoError(t, err, d.process.LogTail(20))
	return d
}

func (d docker) reload(done func(dockerInfo) bool) {
	require.NoError(d.t, d.process.Signal(syscall.SIGHUP)) // what `systemctl reload docker` sends
	require.NoError(d.t, d.becomes(done), d.process.LogTail(20))
}

// becomes waits until the daemon reports what is wanted, or ends.
func (d docker) becomes(done func(dockerInfo) bool) error {
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	go func() {
		select {
		case <-d.process.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	return harness.Until(ctx, harness.StartPatience, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/info", nil)
		if err != nil {
			return err
		}
		response, err := d.client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var info dockerInfo
		if err := json.NewDecoder(response.Body).Decode(&info); err != nil {
			return err
		}
		if !done(info) {
			return fmt.Errorf("dockerd reports %+v", info)
		}
		return nil
	})
}

// podman finds the runtime, by its name and as the default, beside those that it had.
func TestRealPodman(t *testing.T) {
	for description, config := range map[string]string{"a file of its own": "", "the main file": "/etc/containers/containers.conf"} {
		t.Run(description, func(t *testing.T) {
			h := newTestHost(t)
			h.put("/etc/containers/containers.conf", "[engine]\ncgroup_manager = \"cgroupfs\" # no systemd\nevents_logger = \"file\"\nruntime = \"runc\"\n")
			h.put("/etc/containers/policy.json", "{}")
			o := h.options("podman")
			o.Config, o.RuntimePath = config, "/etc/containers/gpuslice-runtime"
			require.NoError(t, os.Symlink("/usr/sbin/runc", h.path(o.RuntimePath)))
			h.put("/usr/sbin/runc", "")
			require.NoError(t, os.Chmod(h.path("/usr/sbin/runc"), 0o755))
			_, err := h.install(o)
			require.NoError(t, err)
			runc := podman(t, h, "--runtime", "runc") // where podman finds it
			assert.NotEqual(t, o.RuntimePath, runc)
			assert.Equal(t, o.RuntimePath, podman(t, h, "--runtime", "gpuslice"))
			assert.Equal(t, runc, podman(t, h))
			o.SetDefault = true
			_, err = h.install(o)
			require.NoError(t, err)
			assert.Equal(t, o.RuntimePath, podman(t, h))
			_, err = h.uninstall(o)
			require.NoError(t, err)
			assert.Equal(t, runc, podman(t, h))
		})
	}
}

// podman runs the hooks as they are installed, at every stage. One that it could not
// read would keep it from making any container.
func TestRealPodmanHooks(t *testing.T) {
	h := newTestHost(t)
	o := h.options("podman")
	o.RuntimePath = "/etc/containers/hook"
	h.put(o.RuntimePath, "#!/bin/sh\necho $2 >>/etc/containers/log\nif [ $2 = precreate ]; then cat; else cat >/dev/null; fi\n")
	require.NoError(t, os.Chmod(h.path(o.RuntimePath), 0o755))
	// Without CAP_SYS_RESOURCE the usual limits can't be set.
	h.put("/etc/containers/containers.conf", "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n")
	h.put("/rootfs/bin/none", "")
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(h.path("/rootfs/bin/true"), busybox, 0o755))
	o.HookFiles, err = install.Hooks()
	require.NoError(t, err)
	_, err = h.install(o)
	require.NoError(t, err)
	inContainers(t, h, "--runtime", "/usr/sbin/runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--hooks-dir", h.path(podmanHooksDir),
		"run", "--rm", "--network", "none", "--rootfs", h.path("/rootfs"), "/bin/true")
	assert.Equal(t, []string{"precreate", "createRuntime", "poststop"}, strings.Fields(h.read("/etc/containers/log")))
	_, err = h.uninstall(o)
	require.NoError(t, err)
	left, err := os.ReadDir(h.path(podmanHooksDir))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// podman returns the runtime that podman uses with the host's configuration.
func podman(t *testing.T, h testHost, args ...string) string {
	return strings.TrimSpace(inContainers(t, h, append(args, "info", "--format", "{{.Host.OCIRuntime.Path}}")...))
}

// inContainers runs a podman that has the host's /etc/containers.
func inContainers(t *testing.T, h testHost, args ...string) string {
	dir, err := os.MkdirTemp("/tmp", "hi") // short: podman wants at most 50 characters
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	script := `mount --bind "$1" /etc/containers && shift && exec podman "$@"`
	command := append([]string{"-m", "sh", "-c", script, "sh", h.path("/etc/containers"), "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}, args...)
	out, err := harness.Run(t.Context(), nil, "unshare", command...)
	require.NoError(t, err, "Debian's package podman has it: test/setup.sh installs it")
	return out
}
