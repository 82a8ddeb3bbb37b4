package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

var options = Options{
	RuntimeSocket: "/run/containerd/containerd.sock",
	RuntimeConfig: "/etc/containerd/config.toml",
	KubeletDir:    "/var/lib/kubelet",
	StateDir:      "/run/gpuslice",
	LibraryDir:    "/var/lib/gpuslice/lib",
	CDISpecDirs:   []string{"/etc/cdi", "/var/run/cdi"},
	HealthAddress: "127.0.0.1:9396",
}

// agentPID is the process that holds the agent's lock.
const agentPID = 1234

// host is a node on paper.
type host struct {
	fstest.MapFS
	filesystems     map[string]Filesystem
	name, version   string // what CRI answers; no name: it doesn't
	containerdPrint string // what `containerd --version` prints; empty: there is none
	status          int    // of /readyz; 0: no answer
	body            string
	user            bool  // not root
	elsewhere       bool  // the agent has a network of its own
	closed          error // why its network can't be looked at
	notEntered      error // or entered
}

func (h *host) IsRoot() bool { return !h.user }

func (h *host) Filesystem(path string) (Filesystem, error) {
	f, ok := h.filesystems[path]
	if !ok {
		return f, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return f, nil
}

func (h *host) RuntimeVersion(context.Context, string) (string, string, error) {
	if h.name == "" {
		return "", "", errors.New("connection refused")
	}
	return h.name, h.version, nil
}

func (h *host) Output(context.Context, string, ...string) (string, error) {
	if h.containerdPrint == "" {
		return "", errors.New("containerd: not found")
	}
	return h.containerdPrint, nil
}

func (h *host) Network(pid int) (string, error) {
	switch {
	case pid == 0:
		return "net:[1]", nil
	case pid == agentPID && h.elsewhere:
		return "net:[2]", h.closed
	}
	return "net:[1]", h.closed
}

func (h *host) Get(_ context.Context, pid int, url string) (int, string, error) {
	want, its := "http://127.0.0.1:9396/readyz", 0
	if h.elsewhere {
		want, its = "http://127.0.0.1:9777/readyz", agentPID
	}
	if pid != 0 && h.notEntered != nil {
		return 0, "", h.notEntered
	}
	if h.status == 0 || url != want || pid != its {
		return 0, "", errors.New("connection refused")
	}
	return h.status, h.body, nil
}

// put writes a file of the host.
func (h *host) put(path, content string) {
	h.MapFS[name(path)] = &fstest.MapFile{Data: []byte(content)}
}

func (h *host) remove(paths ...string) {
	for _, path := range paths {
		delete(h.MapFS, name(path))
	}
}

const (
	validatorOn = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n"
	nvidiaV3    = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n  BinaryName = '/usr/bin/nvidia-container-runtime'\n"
	barrierV3   = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n  BinaryName = '/usr/bin/gpuslice-runtime'\n"
	spec        = `{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {"mounts": [{"hostPath": "/usr/lib/libcuda.so.575", "containerPath": "/usr/lib/libcuda.so.575"}]},
	"devices": [{"name": "` + nodetest.H200 + `", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}, {"name": "` + nodetest.T4 + `", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}}]}`
)

// goodHost has all that gpuslice wants.
func goodHost(t *testing.T) *host {
	n := nodetest.File()
	n.Node.GPUs[1].Minor = 1
	state := t.TempDir()
	require.NoError(t, node.Write(state, n))
	published, err := os.ReadFile(filepath.Join(state, "node.json"))
	require.NoError(t, err)
	device, socket := &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice}, &fstest.MapFile{Mode: fs.ModeSocket}
	dir := func(mode fs.FileMode, dev uint64) *fstest.MapFile {
		return &fstest.MapFile{Mode: fs.ModeDir | mode, Sys: &syscall.Stat_t{Dev: dev}}
	}
	h := &host{
		MapFS: fstest.MapFS{
			"var/lib/kubelet":                              dir(0o755, 1),
			"var/run/nri/nri.sock":                         socket,
			"var/lib/kubelet/device-plugins/kubelet.sock":  socket,
			"var/lib/kubelet/pod-resources/kubelet.sock":   socket,
			"dev/nvidiactl":                                device,
			"dev/nvidia-uvm":                               device,
			"dev/nvidia0":                                  device,
			"dev/nvidia1":                                  device,
			"run":                                          dir(0o755, 24),
			"run/gpuslice":                                 dir(0o711, 0x1a),
			"run/gpuslice/agent.lock":                      {Sys: &syscall.Stat_t{Dev: unix.Mkdev(0, 0x1a), Ino: 5678}},
			"var/lib/gpuslice/lib/ld.so.preload":           {},
			"var/lib/gpuslice/lib/libvgpu-0123456789ab.so": {},
			"var/lib/gpuslice/lib/libvgpu-cuda-0123456789ab.so": {},
			"usr/lib/libcuda.so.575":                            {},
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":        {},
		},
		filesystems: map[string]Filesystem{
			"/sys/fs/cgroup":        {Type: unix.CGROUP2_SUPER_MAGIC},
			"/run/gpuslice":         {Type: unix.TMPFS_MAGIC, FreeBytes: 1 << 30, FreeInodes: 65000},
			"/var/lib/gpuslice/lib": {Type: unix.EXT4_SUPER_MAGIC},
		},
		name: "containerd", version: "v2.4.2", status: 200, body: "ok",
	}
	h.put("/etc/containerd/config.toml", "version = 3\n"+validatorOn)
	h.put("/etc/cdi/nvidia.yaml", spec)
	h.put("/run/gpuslice/node.json", string(published))
	h.put("/var/lib/gpuslice/lib/verify/report.json", verified("575.57.08", "ok"))
	h.put("/proc/modules", "xfs 1 0 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\n")
	h.put("/proc/locks", "1: POSIX  ADVISORY  READ 12 00:1a:5678 0 EOF\n2: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF\n")
	h.put("/etc/ld.so.cache", "glibc-ld.so.cache1.1\x00libnvidia-ml.so.1\x00/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\x00")
	return h
}

// verified is a report of gpuslice verify with one check.
func verified(driver, state string) string {
	outcome := map[string]string{"ok": "verified", "failed": "failed", "not run": "incomplete"}[state]
	return fmt.Sprintf(`{"version":1,"program":"v1.0.0","at":"2026-11-26T01:02:03Z","driver":%q,"model":"NVIDIA H200","outcome":%q,"checks":[{"check":"limiter","state":%q}]}`, driver, outcome, state)
}

// badHost has what a freshly set up node with the GPU operator may have.
func badHost(t *testing.T) *host {
	h := goodHost(t)
	h.version = "1.7.24~ds1"
	h.put("/etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"nvidia\"\n")
	h.put("/proc/modules", "xfs 1 0 - Live 0x0\n")
	h.remove("/dev/nvidia-uvm", "/proc/locks", "/var/lib/gpuslice/lib/ld.so.preload", "/etc/cdi/nvidia.yaml")
	h.filesystems["/sys/fs/cgroup"] = Filesystem{Type: unix.TMPFS_MAGIC}
	h.MapFS["run"].Sys = &syscall.Stat_t{Dev: 0x1a}
	return h
}

// The whole report, as people and programs see it.
func TestPrint(t *testing.T) {
	for description, h := range map[string]*host{"good": goodHost(t), "bad": badHost(t)} {
		t.Run(description, func(t *testing.T) {
			report := Examine(t.Context(), h, options)
			var out bytes.Buffer
			require.NoError(t, report.Print(&out, term.Style{}))
			golden.Check(t, filepath.Join("testdata", description+".txt"), out.String())
		})
	}
}

// Every check, by what is wrong with the node.
func TestChecks(t *testing.T) {
	type edit func(*host)
	config := func(text string) edit { return func(h *host) { h.put("/etc/containerd/config.toml", text) } }
	runtime := func(version string) edit { return func(h *host) { h.version = version } }
	without := func(paths ...string) edit { return func(h *host) { h.remove(paths...) } }
	put := func(path, text string) edit { return func(h *host) { h.put(path, text) } }
	filesystem := func(path string, f Filesystem) edit { return func(h *host) { h.filesystems[path] = f } }
	mode := func(path string, mode fs.FileMode) edit {
		return func(h *host) { h.MapFS[name(path)].Mode = mode }
	}
	both := func(edits ...edit) edit {
		return func(h *host) {
			for _, e := range edits {
				e(h)
			}
		}
	}
	defaults := without("/etc/containerd/config.toml")
	scaled := func(h *host) { // the T4's memory twice
		n := nodetest.File()
		n.Devices[1].MemoryMiB *= 2
		data, err := n.Encode()
		require.NoError(t, err)
		h.put("/run/gpuslice/node.json", string(data))
	}
	nvidiaDefault := "[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'nvidia'\n"
	sources := func(of map[string]nvidia.TimeSource) edit {
		return func(h *host) {
			n := nodetest.File()
			n.ComputeSource = of
			data, err := n.Encode()
			require.NoError(t, err)
			h.put("/run/gpuslice/node.json", string(data))
		}
	}
	crio := func(version string) edit { return func(h *host) { h.name, h.version = "cri-o", version } }
	agent := func(args ...string) edit {
		return put("/proc/1234/cmdline", strings.Join(append([]string{"/usr/local/bin/gpuslice-agent"}, args...), "\x00")+"\x00")
	}
	chartPod := both(func(h *host) { h.elsewhere = true }, put("/proc/1234/cgroup", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope\n"),
		agent("--health-address=:1", "--node-name=node-7", "--health-address", ":9777"))
	agentEnv := func(env ...string) edit {
		return both(chartPod, put("/proc/1234/environ", strings.Join(env, "\x00")+"\x00"))
	}
	unstarted := func(age time.Duration, mode fs.FileMode) edit {
		const id, root = "0123456789abcdef", "/run/docker/runtime-runc/moby"
		return both(put("/run/gpuslice/containers/pod/grant.json", "{}"),
			put("/run/gpuslice/containers/"+id+"/runtime.json", `{"nonce": "N", "roots": ["`+root+`"], "runtime": "/usr/sbin/runc"}`),
			func(h *host) {
				h.MapFS[name(root+"/"+id+"/exec.fifo")] = &fstest.MapFile{Mode: mode, ModTime: time.Now().Add(-age)}
			})
	}
	bundle := func(state, id, sandbox string, bytes int) edit {
		return put(state+"/io.containerd.runtime.v2.task/k8s.io/"+id+"/config.json", fmt.Sprintf(`{"process": {"args": ["true"], "env": ["LARGE=%s"]}, "mounts": [{"destination": "/proc"}],
			"annotations": {"io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.sandbox-namespace": "tenant", "io.kubernetes.cri.sandbox-id": %q, "io.kubernetes.cri.container-name": "main"}}`,
			strings.Repeat("x", bytes), sandbox))
	}
	toolkit := func(text string) edit {
		return both(config("version = 3\n"+nvidiaV3), put("/etc/nvidia-container-runtime/config.toml", text))
	}

	for _, test := range []struct {
		description string
		check       string
		edit        edit
		state       State
		found       string // a part of it
		fix         string // a part of it
	}{
		{"no runtime", "runtime", func(h *host) { h.name = "" }, Fail, "connection refused; containerd: not found", "--runtime-socket"},
		{"by its program", "runtime", func(h *host) {
			h.name, h.containerdPrint = "", "containerd github.com/containerd/containerd/v2 v2.2.1 dea7da592f5d"
		}, OK, `containerd v2.2.1 (row "containerd 2.2 before 2.2.6, 2.3 before 2.3.3"`, ""},
		{"no version", "runtime", runtime("unknown"), Fail, `invalid version "unknown"`, ""},
		{"1.6", "runtime", runtime("1.6.20"), Fail, "has no NRI", "2.2"},
		{"1.7 before its synchronisation was fixed", "runtime", runtime("1.7.25"), Warn, "while it connects", "1.7.26"},
		{"2.0 before its synchronisation was fixed", "runtime", runtime("2.0.2"), Warn, "while it connects", "2.0.3"},
		{"1.7", "runtime", runtime("1.7.34"), Warn, "no validation", "2.2"},
		{"2.1", "runtime", runtime("v2.1.4"), Warn, "no validation", "2.2"},
		{"2.2", "runtime", runtime("2.2.0"), OK, "containerd 2.2.0", ""},
		{"an old CRI-O", "runtime", crio("1.33.2"), Warn, "CRI-O 1.33.2", "1.34"},
		{"CRI-O", "runtime", crio("1.36.3"), OK, `CRI-O 1.36.3 (row "CRI-O 1.34 or newer"`, ""},
		{"CRI-O without NRI", "runtime", crio("1.25.0"), Fail, "no NRI", "1.34"},
		{"CRI-O's validator is off", "nri-validator", crio("1.36.3"), Warn, "is off", "nri_enable_default_validator = true"},
		{"CRI-O's validator is on", "nri-validator", both(crio("1.36.3"), put("/etc/crio/crio.conf.d/10.conf", "[crio.nri.default_validator]\nnri_enable_default_validator = true\n")), OK, "is on", ""},
		{"CRI-O's validator rejects hooks", "nri-validator", both(crio("1.36.3"), put("/etc/crio/crio.conf", "[crio.nri.default_validator]\nnri_enable_default_validator = true\n"),
			put("/etc/crio/crio.conf.d/10.conf", "[crio.nri.default_validator]\nnri_validator_reject_oci_hook_adjustment = true\n")), Fail, "rejects hooks", "= false"},
		{"CRI-O's damaged file", "nri-validator", both(crio("1.36.3"), put("/etc/crio/crio.conf", "[")), Fail, "/etc/crio/crio.conf: toml", "fix the file"},
		{"an old CRI-O's validator", "nri-validator", crio("1.33.2"), Warn, "before 1.34", "1.34"},
		{"another runtime", "runtime", func(h *host) { h.name = "docker" }, Fail, "docker", "containerd"},

		{"defaults", "runtime-config", defaults, OK, "uses its defaults", ""},
		{"CRI-O's configuration", "runtime-config", crio("1.34.0"), OK, "not checked", ""},
		{"not TOML", "runtime-config", config("version = \n"), Fail, "/etc/containerd/config.toml: toml", "fix"},
		{"a missing import", "runtime-config", config("version = 3\nimports = ['nope.toml']\n"), Fail, "etc/containerd/nope.toml", "fix"},
		{"imports", "runtime-config", both(config("version = 3\nimports = ['conf.d/*.toml', '/etc/containerd/config.toml']\n"), put("/etc/containerd/conf.d/a.toml", "version = 3\n")),
			OK, "/etc/containerd/config.toml, /etc/containerd/conf.d/a.toml (version 3)", ""},
		{"version 1", "runtime-config", config("oom_score = 0\n"), Fail, "version 0", "config migrate"},
		{"docker's package", "runtime-config", config("version = 2\ndisabled_plugins = ['cri']\n"), Fail, "cri is disabled", "disabled_plugins in /etc"},

		{"1.7's default", "nri", both(runtime("1.7.34"), defaults), Fail, "NRI is off", "version = 2"},
		{"1.7, switched on", "nri", both(runtime("1.7.34"), config("version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = false\n")), OK, "/var/run/nri/nri.sock", ""},
		{"2.x's default", "nri", defaults, OK, "/var/run/nri/nri.sock", ""},
		{"switched off", "nri", config("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"), Fail, "NRI is off", "  disable = false"},
		{"a disabled plugin", "nri", config("version = 3\ndisabled_plugins = ['io.containerd.nri.v1.nri']\n"), Fail, "NRI is off", ""},
		{"no connections", "nri", config("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable_connections = true\n"), Fail, "accepts no connections", "disable_connections = false"},
		{"no socket", "nri", without("/var/run/nri/nri.sock"), Fail, "does not exist", "restart"},
		{"not a socket", "nri", put("/var/run/nri/nri.sock", ""), Fail, "not a socket", "remove"},
		{"none", "unstarted", func(*host) {}, OK, "were started", ""},
		{"just made", "unstarted", unstarted(9*time.Minute, fs.ModeNamedPipe), OK, "were started", ""},
		{"forgotten", "unstarted", unstarted(11*time.Minute, fs.ModeNamedPipe), Warn, "never started, and keep their shares: 0123456789ab (for 11m0s)", "/usr/sbin/runc --root /run/docker/runtime-runc/moby delete --force 0123456789abcdef"},
		{"no fifo", "unstarted", unstarted(11*time.Minute, 0), OK, "were started", ""},
		{"a damaged record", "unstarted", both(unstarted(11*time.Minute, fs.ModeNamedPipe), put("/run/gpuslice/containers/0123456789abcdef/runtime.json", "{")), OK, "were started", ""},

		{"no containers", "large-containers", func(*host) {}, OK, "no Kubernetes containers in /run/containerd/", ""},
		{"small", "large-containers", bundle("/run/containerd", "0123456789abcdef", "s", 300_000), OK, "no container over 384 KiB, no pod over 768 KiB", ""},
		{"large", "large-containers", bundle("/run/containerd", "0123456789abcdef", "s", 1_100_000), Fail, "container 0123456789ab (main) of pod tenant/p has 1074 KiB", "kubectl delete pod"},
		{"a large pod", "large-containers", both(bundle("/run/containerd", "a", "s", 300_000), bundle("/run/containerd", "b", "s", 300_000), bundle("/run/containerd", "c", "s", 300_000)),
			Fail, "the containers of pod tenant/p have 879 KiB", "kubectl delete pod"},
		{"several pods", "large-containers", both(bundle("/run/containerd", "a", "s", 300_000), bundle("/run/containerd", "b", "s", 300_000), bundle("/run/containerd", "c", "t", 300_000)), OK, "no container", ""},
		{"another state directory", "large-containers", both(config("version = 3\nstate = '/run/k3s'\n"), bundle("/run/k3s", "0123456789abcdef", "s", 1_100_000)), Fail, "tenant/p", ""},
		{"half written", "large-containers", put("/run/containerd/io.containerd.runtime.v2.task/k8s.io/a/config.json", "{"), OK, "no container", ""},

		{"another socket", "nri", both(config("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  socket_path = '/run/x.sock'\n"), func(h *host) { h.MapFS["run/x.sock"] = &fstest.MapFile{Mode: fs.ModeSocket} }), OK, "/run/x.sock", ""},
		{"CRI-O's socket", "nri", both(crio("1.34.0"), without("/var/run/nri/nri.sock")), Fail, "does not exist", ""},
		{"an unreadable configuration", "nri", config("="), Fail, "not checked", "runtime-config"},

		{"short", "nri-timeout", config("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  plugin_request_timeout = '200ms'\n"), Warn, "200ms", "2s"},
		{"long", "nri-timeout", config("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  plugin_request_timeout = '1m'\n"), Warn, "1m0s", "2s"},
		{"not a time", "nri-timeout", config("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  plugin_request_timeout = 'soon'\n"), Fail, "soon", "2s"},
		{"CRI-O's timeout", "nri-timeout", crio("1.34.0"), OK, "not checked", ""},

		{"off", "nri-validator", defaults, Warn, "is off", "enable = true"},
		{"in a drop-in", "nri-validator", both(config("version = 2\nimports = ['conf.d/*.toml']\n"), put("/etc/containerd/conf.d/nri.toml", "version = 3\n"+validatorOn)), OK, "is on", ""},
		{"too old", "nri-validator", runtime("2.1.0"), Warn, "before 2.2", "2.2"},
		{"hooks refused", "nri-validator", config("version = 3\n" + validatorOn + "reject_oci_hook_adjustment = true\n"), Fail, "no container gets a GPU", "reject_oci_hook_adjustment = false"},
		{"everybody needs us", "nri-validator", config("version = 3\n" + validatorOn + "required_plugins = ['gpuslice']\n"), Warn, "the agent's too", "tolerate_missing_plugins_annotation"},
		{"all but some need us", "nri-validator", config("version = 3\n" + validatorOn + "required_plugins = ['gpuslice']\ntolerate_missing_plugins_annotation = 'a/b'\n"), OK, "without the annotation a/b", ""},

		{"nvidia by default", "runtime-handlers", config("version = 3\n" + nvidiaDefault), OK, "--default-runtime-is-nvidia", ""},
		{"nvidia by default, by its program", "runtime-handlers", config("version = 3\n" + nvidiaV3 + "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n  BinaryName = '/usr/bin/nvidia-container-runtime'\n"), OK, "default runtime is runc: start", ""},
		{"NVIDIA's handler", "barrier", config("version = 3\n" + nvidiaV3), Fail, "handlers nvidia run NVIDIA's runtime directly", "gpuslice install containerd && systemctl restart containerd"},
		{"nvidia by default", "barrier", config("version = 3\n" + nvidiaDefault), Fail, "handlers nvidia run", ""},
		{"nvidia by default, in version 2", "barrier", config("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n  default_runtime_name = 'nvidia'\n"), Fail, "handlers nvidia run", ""},
		{"only required plugins", "barrier", both(toolkit(""), config("version = 3\n"+nvidiaV3+validatorOn+"required_plugins = ['gpuslice']\n")), Fail, "handlers nvidia run", acceptsEnv + " = false"},
		{"only variables ignored", "barrier", toolkit(acceptsEnv + " = false\n"), Fail, "handlers nvidia run", "--require-agent"},
		{"both", "barrier", both(toolkit(acceptsEnv+" = false\n"), config("version = 3\n"+nvidiaV3+validatorOn+"required_plugins = ['gpuslice']\n")), OK, "no pod starts without the agent", ""},
		{"our runtime in front", "barrier", both(config("version = 3\n"+barrierV3), put("/etc/gpuslice/runtime.yaml", "exemptNamespaces: [gpuslice-system]\n")), OK, "in front of NVIDIA's runtime (nvidia); exempt: gpuslice-system", ""},
		{"our runtime in front, and containerd not restarted", "barrier", both(config("version = 3\n"+barrierV3), put("/etc/gpuslice/runtime.yaml", "exemptNamespaces: [gpuslice-system]\n"), agentEnv("NVIDIA_VISIBLE_DEVICES=all")), Fail, "the agent's container was created without it", "systemctl restart containerd"},
		{"our runtime in front, and in effect", "barrier", both(config("version = 3\n"+barrierV3), put("/etc/gpuslice/runtime.yaml", "exemptNamespaces: [gpuslice-system]\n"), agentEnv("NVIDIA_VISIBLE_DEVICES=all", ociruntime.BarrierEnv+"=1")), OK, "in front of NVIDIA's runtime (nvidia); exempt: gpuslice-system", ""},
		{"our runtime in front, and an agent that doesn't use it", "barrier", both(config("version = 3\n"+barrierV3), put("/etc/gpuslice/runtime.yaml", "exemptNamespaces: [gpuslice-system]\n"), agentEnv("A=b")), OK, "in front of NVIDIA's runtime", ""},
		{"our runtime in front, and no exempt namespace", "barrier", config("version = 3\n" + barrierV3), Warn, "no namespace is exempt", "exemptNamespaces: [gpuslice-system]"},
		{"our runtime in front, and a bad config", "barrier", both(config("version = 3\n"+barrierV3), put("/etc/gpuslice/runtime.yaml", "exempt: []\n")), Fail, "no such key", "fix /etc/gpuslice/runtime.yaml"},
		{"our runtime in front of one handler only", "barrier", config("version = 3\n" + barrierV3 + strings.ReplaceAll(nvidiaV3, ".nvidia.", ".nvidia-cdi.")), Fail, "handlers nvidia-cdi run", ""},
		{"a handler", "runtime-handlers", config("version = 3\n" + nvidiaV3), OK, "NVIDIA's handlers: nvidia", ""},

		{"the toolkit's default", "nvidia-toolkit", toolkit("#accept = 1\n"), Warn, "is true", "unprivileged = false"},
		{"no file", "nvidia-toolkit", config("version = 3\n" + nvidiaV3), Warn, "is true", "unprivileged = false"},
		{"true", "nvidia-toolkit", toolkit("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n"), Warn, "is true", ""},
		{"a variable of its own", "nvidia-toolkit", toolkit(acceptsEnv + " = false\naccept-nvidia-visible-devices-as-volume-mounts = true\nswarm-resource = 'DOCKER_RESOURCE_GPU,MY_GPU'\n"), Warn, "swarm-resource names MY_GPU:", "swarm-resource"},
		{"the usual variable", "nvidia-toolkit", toolkit(acceptsEnv + " = false\naccept-nvidia-visible-devices-as-volume-mounts = true\nswarm-resource = 'DOCKER_RESOURCE_GPU'\n"), OK, "is false", ""},
		{"false", "nvidia-toolkit", toolkit(acceptsEnv + " = false\naccept-nvidia-visible-devices-as-volume-mounts = true\n"), OK, "is false", ""},
		{"false, and no mounts", "nvidia-toolkit", toolkit(acceptsEnv + " = false\n"), Warn, "volume mounts are not read", "as-volume-mounts = true"},
		{"true behind our runtime", "nvidia-toolkit", both(toolkit(acceptsEnv+" = true\n"), config("version = 3\n"+barrierV3)), OK, "no runtime handler runs NVIDIA's runtime directly", ""},
		{"not TOML", "nvidia-toolkit", toolkit("=\n"), Fail, "toml", "fix"},

		{"version 1", "cgroup", filesystem("/sys/fs/cgroup", Filesystem{Type: unix.TMPFS_MAGIC}), Warn, "version 1", "unified_cgroup_hierarchy"},
		{"none", "cgroup", func(h *host) { delete(h.filesystems, "/sys/fs/cgroup") }, Warn, "unknown", "mount"},

		{"no kubelet", "kubelet", without("/var/lib/kubelet/device-plugins/kubelet.sock"), Fail, "does not run", "--kubelet-dir"},
		{"no PodResources", "kubelet", without("/var/lib/kubelet/pod-resources/kubelet.sock"), Warn, "positional grants", "KubeletPodResources"},
		{"NVIDIA's device plugin", "kubelet", put("/var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""), Fail, "/var/lib/kubelet/device-plugins/nvidia-gpu.sock: the kubelet uses the one that registered last", "nvidia.com/gpu.deploy.device-plugin=false"},
		{"gpu-manager's", "kubelet", both(put("/var/lib/kubelet/device-plugins/vcore.sock", ""), put("/var/lib/kubelet/device-plugins/vmemory.sock", "")), Fail, "vcore.sock, /var/lib/kubelet/device-plugins/vmemory.sock", "rm /var/lib/kubelet/device-plugins/vcore.sock"},
		{"another vendor's", "kubelet", put("/var/lib/kubelet/device-plugins/amd.com_gpu", ""), OK, "device plugin socket", ""},

		{"uvm is missing", "driver-modules", put("/proc/modules", "nvidia 2 1 - Live 0x0\n"), Fail, "not loaded: nvidia_uvm", "modprobe -a nvidia nvidia_uvm"},
		{"a like name", "driver-modules", put("/proc/modules", "nvidia_uvm 2\nnvidia_drm 2\n"), Fail, "not loaded: nvidia", ""},
		{"a kernel without modules", "driver-modules", without("/proc/modules"), Fail, "not loaded: nvidia, nvidia_uvm", ""},
		{"built in", "driver-modules", both(without("/proc/modules"), put("/sys/module/nvidia/x", ""), put("/sys/module/nvidia_uvm/x", "")), OK, "are loaded", ""},

		{"no control node", "driver-devices", without("/dev/nvidiactl"), Fail, "/dev/nvidiactl", "nvidia-modprobe"},
		{"no uvm", "driver-devices", without("/dev/nvidia-uvm"), Fail, "/dev/nvidia-uvm", "nvidia-modprobe -u -c 0"},
		{"enough for memory scaling", "host-memory", both(scaled, put("/proc/meminfo", "MemTotal:       18432000 kB\nMemFree: 5 kB\n")), OK, "grants 15360 MiB more than the GPUs have, and the host has 18000 MiB", ""},
		{"too little", "host-memory", both(scaled, put("/proc/meminfo", "MemTotal:       9216000 kB\n")), Fail, "and the host has only 9000 MiB", "--device-memory-scaling"},
		{"unknown", "host-memory", scaled, Warn, "the host's memory is unknown", "/proc/meminfo"},
		{"unreadable", "host-memory", both(scaled, put("/proc/meminfo", "MemTotal: much\n")), Warn, "no MemTotal", "/proc/meminfo"},
		{"a GPU of node.json", "driver-devices", without("/dev/nvidia1"), Fail, "no character device: /dev/nvidia1", "nvidia-modprobe -c 1"},
		{"a file in a device's place", "driver-devices", put("/dev/nvidia0", ""), Fail, "/dev/nvidia0", "nvidia-modprobe -c 0"},
		{"before the agent's first run", "driver-devices", without("/run/gpuslice/node.json"), OK, "/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidia1", ""},
		{"no GPU at all", "driver-devices", without("/run/gpuslice/node.json", "/dev/nvidia0", "/dev/nvidia1"), Fail, "/dev/nvidia0", "nvidia-modprobe -c 0"},

		{"with this driver", "verification", func(*host) {}, OK, "verified on 2026-11-26T01:02:03Z with driver 575.57.08, gpuslice v1.0.0, NVIDIA H200", ""},
		{"never", "verification", without("/var/lib/gpuslice/lib/verify/report.json"), Warn, "has not run", "helm test gpuslice"},
		{"with another driver", "verification", put("/var/lib/gpuslice/lib/verify/report.json", verified("570.1", "ok")), Warn, "the driver is 575.57.08 now; last run on 2026-11-26T01:02:03Z with driver 570.1", "helm test"},
		{"the driver that is loaded", "verification", put("/sys/module/nvidia/version", "580.2\n"), Warn, "the driver is 580.2 now", "helm test"},
		{"the driver is not known", "verification", without("/run/gpuslice/node.json"), Warn, "version is not known", "helm test"},
		{"failed", "verification", put("/var/lib/gpuslice/lib/verify/report.json", verified("575.57.08", "failed")), Fail, "failed: limiter; run on", "report.json"},
		{"not all of it", "verification", put("/var/lib/gpuslice/lib/verify/report.json", verified("575.57.08", "not run")), Warn, "not all checks ran", "helm test"},
		{"damaged", "verification", put("/var/lib/gpuslice/lib/verify/report.json", "{"), Warn, "read verify/report.json: ", "helm test"},

		{"not in the loader's cache", "driver-library", without("/etc/ld.so.cache"), OK, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", ""},
		{"none", "driver-library", without("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), Fail, "not found", "ldconfig"},
		{"a driver container's", "driver-library", both(without("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), put("/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "")), Warn, "driver container", "--nvml-library /run/nvidia/driver/usr/lib64/libnvidia-ml.so.1"},

		{"nothing measured yet", "compute-source", sources(nil), OK, "no container has used it yet", ""},
		{"one by NVML, one by the limiter", "compute-source", sources(map[string]nvidia.TimeSource{nodetest.H200: nvidia.TimesByLimiter, nodetest.T4: nvidia.TimesByInfo}), Warn,
			"GPU 0: NVML does not show which processes use the GPU's time; it is known from the containers' limiters only; GPU 1: nvmlDeviceGetProcessesUtilizationInfo", "nvidia-smi pmon"},
		{"no agent yet", "compute-source", without("/run/gpuslice/node.json"), OK, "not known before", ""},

		{"no spec", "cdi", without("/etc/cdi/nvidia.yaml"), Fail, "no nvidia.com/gpu devices", "nvidia-ctk cdi generate"},
		{"no spec, with NVIDIA's runtime", "cdi", both(without("/etc/cdi/nvidia.yaml"), config("version = 3\n"+nvidiaV3)), Warn, "only with NVIDIA's runtime handler", "nvidia-ctk cdi generate"},
		{"another vendor's", "cdi", put("/etc/cdi/nvidia.yaml", strings.ReplaceAll(spec, "nvidia.com/gpu", "example.com/gpu")), Fail, "no nvidia.com/gpu devices", ""},
		{"a GPU is missing", "cdi", put("/etc/cdi/nvidia.yaml", strings.ReplaceAll(spec, nodetest.T4, "1")), Fail, "no device of " + nodetest.T4, "nvidia-ctk"},
		{"another driver's", "cdi", without("/usr/lib/libcuda.so.575"), Fail, "does not match this driver: /usr/lib/libcuda.so.575", "--output /etc/cdi/nvidia.yaml"},
		{"not a spec", "cdi", put("/var/run/cdi/x.json", "{"), Fail, "/var/run/cdi/x.json", "fix or remove"},
		{"no content", "cdi", put("/var/run/cdi/x.yaml", "null\n"), Fail, "/var/run/cdi/x.yaml: the file has no CDI spec", "fix or remove"},
		{"another version's node.json", "cdi", func(h *host) { h.put("/run/gpuslice/node.json", `{"version":1}`) }, Warn, "its version is 1", "restart gpuslice-agent"},
		{"before the agent's first run", "cdi", without("/run/gpuslice/node.json"), OK, "2 nvidia.com/gpu devices", ""},
		{"off in containerd", "cdi", config("version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n"), OK, "containerd's CDI is off", ""},
		{"1.7's default", "cdi", runtime("1.7.34"), OK, "containerd's CDI is off", ""},
		{"CRI-O's", "cdi", crio("1.34.0"), OK, "CRI-O's CDI is on", ""},

		{"missing", "state-dir", without("/run/gpuslice", "/run/gpuslice/agent.lock", "/run/gpuslice/node.json"), Fail, "run/gpuslice", "run-gpuslice.mount"},
		{"on a disk", "state-dir", filesystem("/run/gpuslice", Filesystem{Type: unix.EXT4_SUPER_MAGIC, FreeBytes: 1 << 30, FreeInodes: 65000}), Warn, "not on a tmpfs", "run-gpuslice.mount"},
		{"in /run's tmpfs", "state-dir", func(h *host) { h.MapFS["run"].Sys = &syscall.Stat_t{Dev: 0x1a} }, Warn, "is on the tmpfs of /run", "run-gpuslice.mount"},
		{"others write", "state-dir", mode("/run/gpuslice", fs.ModeDir|0o777), Fail, "mode 0777", "chmod 0711 /run/gpuslice"},
		{"others list", "state-dir", mode("/run/gpuslice", fs.ModeDir|0o755), Warn, "mode 0755", "chmod 0711 /run/gpuslice"},
		{"of another user", "state-dir", func(h *host) { h.MapFS["run/gpuslice"].Sys = &syscall.Stat_t{Uid: 1000} }, Fail, "user 1000", "chown"},
		{"nearly full", "state-dir", filesystem("/run/gpuslice", Filesystem{Type: unix.TMPFS_MAGIC, FreeBytes: 1 << 20, FreeInodes: 65000}), Warn, "1 MiB", "remount"},
		{"few inodes", "state-dir", filesystem("/run/gpuslice", Filesystem{Type: unix.TMPFS_MAGIC, FreeBytes: 1 << 30, FreeInodes: 10}), Warn, "10 inodes", "remount"},
		{"full", "state-dir", filesystem("/run/gpuslice", Filesystem{Type: unix.TMPFS_MAGIC, FreeInodes: 10}), Fail, "no container can get a GPU", "remount"},

		{"missing", "library-dir", func(h *host) { delete(h.filesystems, "/var/lib/gpuslice/lib") }, Fail, "does not exist", "--library-dir"},
		{"noexec", "library-dir", filesystem("/var/lib/gpuslice/lib", Filesystem{NoExec: true}), Fail, "noexec", "remount,exec"},
		{"empty", "library-dir", without("/var/lib/gpuslice/lib/libvgpu-0123456789ab.so"), Fail, "no limiter", "start gpuslice-agent"},

		{"does not exist", "agent", without("/run/gpuslice/agent.lock"), Fail, "gpuslice-agent does not run", "journalctl"},
		{"has ended", "agent", put("/proc/locks", "1: FLOCK  ADVISORY  WRITE 1234 00:1a:9999 0 EOF\n"), Fail, "gpuslice-agent does not run", "journalctl"},
		{"hangs", "agent", func(h *host) { h.status = 0 }, Fail, "does not answer", "--health-address"},
		{"not ready", "agent", func(h *host) { h.status, h.body = 503, "nri: not connected\nGPUs: none" }, Fail, "not ready: nri: not connected; GPUs: none", "log"},
		{"ended, and it may be the chart's", "agent", without("/proc/locks"), Fail, "gpuslice-agent does not run", "\nif installed by the chart: kubectl -n gpuslice-system get pods -l app.kubernetes.io/component=agent"},
		{"in a pod", "agent", chartPod, OK, "running in a pod and ready", ""},
		{"in a pod without a network of its own", "agent", both(chartPod, func(h *host) { h.elsewhere = false }), OK, "running in a pod and ready", ""},
		{"in a network of its own", "agent", both(chartPod, without("/proc/1234/cgroup")), OK, "running and ready", ""},
		{"in a pod, and hangs", "agent", both(chartPod, func(h *host) { h.status = 0 }), Fail, "in a pod and does not answer", "spec.nodeName=node-7\nkubectl -n gpuslice-system delete pod"},
		{"in a pod, and not ready", "agent", both(chartPod, func(h *host) { h.status, h.body = 503, "nri: not connected" }), Fail, "in a pod and not ready: nri: not connected", "spec.nodeName=node-7\nkubectl -n gpuslice-system logs"},
		{"in a pod without health", "agent", both(chartPod, agent("--health-address=")), OK, "running in a pod; it has no health endpoint", ""},
		{"in a pod, asked without rights", "agent", both(chartPod, func(h *host) { h.closed = unix.EACCES }), Warn, "running in a pod; readiness unknown: permission denied", "as root"},
		{"in a pod, asked with few rights", "agent", both(chartPod, func(h *host) { h.notEntered = unix.EPERM }), Warn, "running in a pod; readiness unknown: operation not permitted", "as root"},
		{"of the node, asked without rights", "agent", both(agent(), func(h *host) { h.closed = unix.EACCES }), OK, "running and ready", ""},
	} {
		t.Run(test.check+"/"+test.description, func(t *testing.T) {
			h := goodHost(t)
			test.edit(h)
			results := Examine(t.Context(), h, options).Results
			require.True(t, slices.ContainsFunc(results, func(r Result) bool { return r.Check == test.check }))
			for _, r := range results {
				if r.Check != test.check {
					continue
				}
				fix := strings.Join(r.Fix, "\n")
				assert.Equal(t, test.state, r.State, "%s\n%s", r.Found, fix)
				assert.Contains(t, r.Found, test.found)
				assert.Contains(t, fix, test.fix)
				assert.Equal(t, r.State == OK, fix == "", "each problem has a remedy, and nothing else: %q", fix)
			}
		})
	}
}

// dockerHost is a host for docker, without an agent and before its first container.
func dockerHost(t *testing.T) *host {
	h := goodHost(t)
	h.remove("/var/lib/kubelet", "/var/lib/kubelet/device-plugins/kubelet.sock", "/var/lib/kubelet/pod-resources/kubelet.sock", "/etc/containerd/config.toml", "/var/run/nri/nri.sock",
		"/run/gpuslice", "/run/gpuslice/agent.lock", "/run/gpuslice/node.json", "/proc/locks")
	h.name = ""
	h.put(DockerConfig, `{"runtimes": {"gpuslice": {"path": "/usr/bin/gpuslice-runtime"}}}`)
	for _, program := range []string{"usr/bin/gpuslice-runtime", "usr/bin/podman", "usr/sbin/runc"} {
		h.MapFS[program] = &fstest.MapFile{Mode: 0o755}
	}
	return h
}

// A host for docker or podman is examined for what these need, and not for Kubernetes.
func TestChecksOfEngines(t *testing.T) {
	type edit func(*host)
	put := func(path, text string) edit { return func(h *host) { h.put(path, text) } }
	daemon := func(text string) edit { return put(DockerConfig, text) }
	const podmanConf = "[engine.runtimes]\ngpuslice = [\"/usr/bin/gpuslice-runtime\"]\n"
	const both = `{"runtimes": {"gpuslice": {"path": "/usr/bin/gpuslice-runtime"}, "nvidia": {"path": "nvidia-container-runtime"}}`
	for _, test := range []struct {
		description string
		edit        edit
		uses        []Use // of the options
		want        []Use
		check       string
		state       State
		found, fix  string
	}{
		{"installed", func(*host) {}, nil, []Use{Docker}, "docker", OK, "runtime gpuslice is /usr/bin/gpuslice-runtime", ""},
		{"no agent", func(*host) {}, nil, []Use{Docker}, "agent", Warn, WithoutAgent, "systemctl enable --now gpuslice-agent.service"},
		{"no container yet", func(*host) {}, nil, []Use{Docker}, "state-dir", OK, "the first container", ""},
		{"no driver's spec", func(h *host) { h.remove("/etc/cdi/nvidia.yaml") }, nil, []Use{Docker}, "cdi", Fail, "no nvidia.com/gpu devices", "gpuslice cdi generate --driver"},
		{"not verified", func(h *host) { h.remove("/var/lib/gpuslice/lib/verify/report.json") }, nil, []Use{Docker}, "verification", Warn, "has not run", "gpuslice verify"},
		{"no limiter", func(h *host) { h.remove("/var/lib/gpuslice/lib/ld.so.preload") }, nil, []Use{Docker}, "library-dir", Fail, "no limiter", "gpuslice install docker"},
		{"not installed", daemon(`{}`), nil, []Use{Docker, Podman}, "docker", Fail, "no runtime gpuslice", "gpuslice install docker"},
		{"named", daemon(`{}`), []Use{Podman}, []Use{Podman}, "podman", Fail, "does not exist", "gpuslice install podman"},
		{"damaged", daemon(`{`), []Use{Docker}, []Use{Docker}, "docker", Fail, "daemon.json: unexpected end", "fix the file"},
		{"no program", func(h *host) { h.remove("/usr/bin/gpuslice-runtime") }, nil, []Use{Docker}, "docker", Fail, "gpuslice-runtime", "--from"},
		{"NVIDIA's runtime beside", daemon(both + "}"), nil, []Use{Docker}, "docker", Warn, "the runtime nvidia is NVIDIA's", "runtimes.nvidia"},
		{"NVIDIA's runtime by default", daemon(both + `, "default-runtime": "nvidia"}`), nil, []Use{Docker}, "docker", Fail, "default runtime nvidia is NVIDIA's", "--set-default"},
		{"ours by default", daemon(`{"runtimes": {"gpuslice": {"path": "/usr/bin/gpuslice-runtime"}}, "default-runtime": "gpuslice"}`), nil, []Use{Docker}, "docker", OK, "it is the default", ""},
		{"NVIDIA's hook of docker run --gpus", func(h *host) { h.put("/usr/bin/nvidia-container-runtime-hook", "") }, nil, []Use{Docker}, "docker", Warn, "--gpus", "--set-default"},
		{"no configuration", func(*host) {}, nil, []Use{Docker}, "requests", OK, "does not exist", ""},
		{"a damaged configuration", put("/etc/gpuslice/runtime.yaml", "maximun: 1\n"), nil, []Use{Docker}, "requests", Fail, "no container is created: ", "fix /etc/gpuslice/runtime.yaml"},
		{"a maximum", put("/etc/gpuslice/runtime.yaml", "maximum: {memory: 8GiB}\n"), nil, []Use{Docker}, "requests", OK, "with a maximum; containers are created by /usr/sbin/runc", ""},
		{"no runc", func(h *host) { h.remove("/usr/sbin/runc") }, nil, []Use{Docker}, "requests", Fail, "runc, crun", "install runc"},
		{"podman", put(PodmanConfig, podmanConf), nil, []Use{Docker, Podman}, "podman", OK, "no hooks", ""},
		{"podman's hooks", func(h *host) {
			h.put(PodmanConfig, podmanConf)
			h.put("/usr/share/containers/oci/hooks.d/50-gpuslice-precreate.json", "{}")
		}, nil, []Use{Docker, Podman}, "podman", OK, "hooks for containers of other runtimes", ""},
		{"NVIDIA's hook of podman", func(h *host) {
			h.put(PodmanConfig, podmanConf)
			h.put("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "{}")
		}, nil, []Use{Docker, Podman}, "podman", Warn, "whole GPUs", "rm /usr/share"},
		{"podman's damaged file", put(PodmanConfig, "["), nil, []Use{Docker, Podman}, "podman", Fail, "toml", "gpuslice install podman"},
		{"with a kubelet", func(h *host) { h.MapFS["var/lib/kubelet"] = &fstest.MapFile{Mode: fs.ModeDir} }, nil, []Use{Kubernetes, Docker}, "runtime", Fail, "no container runtime", "start containerd"},
		{"nothing", func(h *host) { h.remove(DockerConfig, "/usr/bin/podman") }, nil, []Use{Kubernetes}, "kubelet", Fail, "kubelet", "kubelet"},
	} {
		t.Run(test.description, func(t *testing.T) {
			h, o := dockerHost(t), options
			test.edit(h)
			o.Uses = test.uses
			report := Examine(t.Context(), h, o)
			assert.Equal(t, test.want, report.For)
			i := slices.IndexFunc(report.Results, func(r Result) bool { return r.Check == test.check })
			require.GreaterOrEqual(t, i, 0, "%v", report.Results)
			r := report.Results[i]
			assert.Equal(t, test.state, r.State, r.Found)
			assert.Contains(t, r.Found, test.found)
			assert.Contains(t, strings.Join(r.Fix, "\n"), test.fix)
		})
	}
	report := Examine(t.Context(), dockerHost(t), options)
	assert.Equal(t, Warn, report.State, "no agent; else all is good: %v", report.Results)
	for _, r := range report.Results {
		assert.NotContains(t, []string{"kubelet", "nri", "runtime", "barrier"}, r.Check)
	}
}

// Missing rights are one finding.
func TestNotRootIsSaidOnce(t *testing.T) {
	h := goodHost(t)
	h.user = true
	for _, file := range []string{"run/gpuslice/containers", "etc/cdi/nvidia.yaml"} {
		h.MapFS[file] = &fstest.MapFile{Mode: 0}
	}
	h.closed = fs.ErrPermission
	h.remove("/proc/modules")
	h.filesystems = nil
	var out bytes.Buffer
	require.NoError(t, Examine(t.Context(), h, options).Print(&out, term.Style{}))
	assert.Equal(t, 1, strings.Count(out.String(), "as root"), out.String())
	assert.Contains(t, out.String(), "warn  user ")
}

// The table of the documents is that of the check.
func TestSupportTable(t *testing.T) {
	golden.Section(t, "../../../docs/FAULTS.md", "<!-- support: made by cmd/internal/doctor -->\n\n", "\n<!-- end of support -->", SupportTable())
}

func TestReachable(t *testing.T) {
	for address, want := range map[string]string{
		":9396": "127.0.0.1:9396", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.1.2.3:1": "10.1.2.3:1", "localhost:1": "localhost:1", "": "", "nonsense": "nonsense",
	} {
		assert.Equal(t, want, reachable(address), address)
	}
}

// Each problem has a remedy, whatever other problems there are, and a check that is ok has none.
func TestEveryFindingHasAFix(t *testing.T) {
	good := goodHost(t)
	paths := slices.Sorted(maps.Keys(good.MapFS))
	places := slices.Sorted(maps.Keys(good.filesystems))
	rapid.Check(t, func(t *rapid.T) {
		h := *good
		h.MapFS, h.filesystems = maps.Clone(good.MapFS), maps.Clone(good.filesystems)
		for _, path := range rapid.SliceOfNDistinct(rapid.SampledFrom(paths), 0, 6, rapid.ID[string]).Draw(t, "missing") {
			delete(h.MapFS, path)
		}
		for _, path := range rapid.SliceOfNDistinct(rapid.SampledFrom(paths), 0, 3, rapid.ID[string]).Draw(t, "spoilt") {
			h.MapFS[path] = &fstest.MapFile{Data: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "content"), Mode: fs.FileMode(rapid.Uint32Range(0, 0o777).Draw(t, "mode"))}
		}
		for _, place := range places {
			if rapid.Bool().Draw(t, "other file system") {
				h.filesystems[place] = Filesystem{Type: unix.TMPFS_MAGIC, NoExec: rapid.Bool().Draw(t, "noexec"), FreeBytes: rapid.Uint64().Draw(t, "bytes"), FreeInodes: rapid.Uint64Range(0, 5000).Draw(t, "inodes")}
			}
		}
		h.name = rapid.SampledFrom([]string{"", "containerd", "cri-o", "other"}).Draw(t, "runtime")
		h.version = rapid.SampledFrom([]string{"1.6.1", "1.7.24", "2.0.1", "2.1.0", "v2.4.2", "x"}).Draw(t, "version")
		h.status = rapid.SampledFrom([]int{0, 200, 503}).Draw(t, "status")
		for _, r := range Examine(context.Background(), &h, options).Results {
			if (r.State == OK) != (len(r.Fix) == 0) || r.Found == "" || slices.Contains(r.Fix, "") {
				t.Fatalf("%s is %s: %q, fix %q", r.Check, r.State, r.Found, r.Fix)
			}
		}
	})
}

// A problem that can be fixed automatically has its repair in the check's result; the others have none.
func TestRepairs(t *testing.T) {
	nri := func(text string) func(*host) {
		return func(h *host) {
			h.put("/etc/containerd/config.toml", "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  "+text+"\n"+validatorOn)
		}
	}
	for _, test := range []struct {
		description string
		edit        func(*host)
		check       string // the only one with it
		want        []Repair
	}{
		{"nothing", func(*host) {}, "", nil},
		{"NRI is off", nri("disable = true"), "nri", []Repair{RepairContainerd}},
		{"no connections", nri("disable_connections = true"), "nri", []Repair{RepairContainerd}},
		{"a short timeout", nri("plugin_request_timeout = '1ms'"), "nri-timeout", []Repair{RepairContainerd}},
		{"no timeout", nri("plugin_request_timeout = 'soon'"), "nri-timeout", []Repair{RepairContainerd}},
		{"no validator", func(h *host) { h.remove("/etc/containerd/config.toml") }, "nri-validator", []Repair{RepairContainerd}},
		{"everybody needs us", func(h *host) {
			h.put("/etc/containerd/config.toml", "version = 3\n"+validatorOn+"required_plugins = ['gpuslice']\n")
		}, "nri-validator", []Repair{RepairContainerd}},
		{"no socket: containerd has to be restarted", func(h *host) { h.remove("/var/run/nri/nri.sock") }, "", nil},
		{"others list the state", func(h *host) { h.MapFS["run/gpuslice"].Mode = fs.ModeDir | 0o755 }, "state-dir", []Repair{RepairStateDirMode}},
		{"state of another user", func(h *host) { h.MapFS["run/gpuslice"].Sys = &syscall.Stat_t{Uid: 1000} }, "state-dir", []Repair{RepairStateDirMode}},
		{"in /run's tmpfs", func(h *host) { h.MapFS["run"].Sys = &syscall.Stat_t{Dev: 0x1a} }, "state-dir", []Repair{RepairStateMount}},
		{"in /run's tmpfs, and the unit waits", func(h *host) {
			h.MapFS["run"].Sys = &syscall.Stat_t{Dev: 0x1a}
			h.put(StateMountUnit, "")
		}, "", nil},
		{"no driver", func(h *host) { h.remove("/proc/modules", "/dev/nvidiactl") }, "", nil},
	} {
		t.Run(test.description, func(t *testing.T) {
			h := goodHost(t)
			test.edit(h)
			report := Examine(t.Context(), h, options)
			assert.Equal(t, test.want, report.Repairs())
			for _, r := range report.Results {
				assert.Equal(t, r.Check == test.check, len(r.Repairs) > 0, r.Check)
				assert.False(t, len(r.Repairs) > 0 && len(r.Fix) == 0, "%s is fixed, and there is no problem", r.Check)
			}
		})
	}
}

func TestNoHealthAddress(t *testing.T) {
	o := options
	o.HealthAddress = ""
	report := Examine(t.Context(), goodHost(t), o)
	assert.Equal(t, OK, report.State)
	assert.Contains(t, report.Results[len(report.Results)-1].Found, "health not checked")
}

// The report's state is its worst check's.
func TestReportState(t *testing.T) {
	h := goodHost(t)
	assert.Equal(t, OK, Examine(t.Context(), h, options).State)
	h.filesystems["/sys/fs/cgroup"] = Filesystem{}
	assert.Equal(t, Warn, Examine(t.Context(), h, options).State)
	h.status = 0
	assert.Equal(t, Fail, Examine(t.Context(), h, options).State)
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]version{
		"v2.4.2": {2, 4, 2}, "2.4.2+unknown": {2, 4, 2}, "1.7.24~ds1": {1, 7, 24}, "v2.2.0-rc.1": {2, 2, 0}, "v2.2.1-k3s1": {2, 2, 1},
		"containerd github.com/containerd/containerd/v2 2.4.2+unknown ": {2, 4, 2},
		"containerd github.com/containerd/containerd 1.7.28 b98a3aace6": {1, 7, 28},
		"": {}, "2.4": {}, "99999.1.1": {},
	} {
		_, got := parseVersion(text)
		assert.Equal(t, want, got, "%q", text)
	}
}

// containerd 1.7 replaces a plugin's section by an import's, newer ones merge them.
func TestImportOfASection(t *testing.T) {
	files := fstest.MapFS{
		"etc/config.toml": {Data: []byte("version = 2\nimports = ['b.toml']\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n  socket_path = '/a'\n")},
		"etc/b.toml":      {Data: []byte("version = 2\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n")},
	}
	assert.Equal(t, "/a", readContainerd(files, "/etc/config.toml", version{2, 0, 0}).nriSocket())
	assert.Equal(t, "/var/run/nri/nri.sock", readContainerd(files, "/etc/config.toml", version{1, 7, 28}).nriSocket())
}
