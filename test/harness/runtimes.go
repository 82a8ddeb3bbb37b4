package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/template"
)

// CRIRuntimeEnv is the variable that chooses the container runtime of the tests' nodes: containerd (the default), containerd-1.7
// or cri-o.
const CRIRuntimeEnv = "GPUSLICE_TEST_RUNTIME"

// criRuntime is what differs between the container runtimes.
type criRuntime struct {
	// name is as in CRI.
	name string
	// tools is setup.sh's option that prints the programs' directory.
	tools, program string
	config         *template.Template
	// flags are the program's, in a directory.
	flags func(dir string) []string
	// load imports an image archive.
	load func(ctx context.Context, c *Containerd, archive string) error
	// bundles is the directory of the containers' bundles below the runtime's; pidFile is a file in a bundle, or below it.
	bundles, pidFile string
	// mergesVariables: a variable that an image has twice is in a container once.
	mergesVariables bool
	// cleanUp ends what monitors containers of a runtime that was stopped.
	cleanUp func(c *Containerd) error
}

func containerdFlags(dir string) []string {
	return []string{"--config", filepath.Join(dir, "config.toml")}
}

func loadByCtr(ctx context.Context, c *Containerd, archive string) error {
	_, err := c.Ctr(ctx, "images", "import", archive)
	return err
}

func endShims(c *Containerd) error { return killShims(c.Socket()) }

const containerdBundles = "state/io.containerd.runtime.v2.task/k8s.io"

var criRuntimes = map[string]criRuntime{
	"containerd": {
		name: "containerd", tools: "--where", program: "containerd", config: containerdConfig, flags: containerdFlags,
		load: loadByCtr, bundles: containerdBundles, pidFile: "init.pid", cleanUp: endShims,
	},
	"containerd-1.7": {
		name: "containerd", tools: "--where-containerd", program: "containerd", config: containerd17Config, flags: containerdFlags,
		load: loadByCtr, bundles: containerdBundles, pidFile: "init.pid", cleanUp: endShims,
	},
	"cri-o": {
		name: "cri-o", tools: "--where-crio", program: "crio", config: crioConfig,
		flags: func(dir string) []string {
			return []string{"--config", filepath.Join(dir, "config.toml"), "--config-dir", filepath.Join(dir, "none")}
		},
		load: loadByPodman, bundles: "state/overlay-containers", pidFile: "userdata/pidfile", mergesVariables: true, cleanUp: endMonitors,
	},
}

// use sets the container runtime.
func (c *Containerd) use(name string) error {
	var known bool
	if c.runtime, known = criRuntimes[name]; !known {
		return fmt.Errorf("container runtime %q: it is containerd, containerd-1.7 or cri-o (%s)", name, CRIRuntimeEnv)
	}
	program, err := tool(c.runtime.tools, c.runtime.program)
	c.tools = filepath.Dir(program)
	return err
}

// Tools is the directory of the runtime's programs.
func (c *Containerd) Tools() string { return c.tools }

// HasCtr reports whether ctr works with the runtime.
func (c *Containerd) HasCtr() bool { return c.runtime.name == "containerd" }

// runtimePath is the file that has the runtime's name, for Attach.
func (c *Containerd) runtimePath() string { return filepath.Join(c.Dir, "runtime") }

// MergesVariables reports whether a variable that an image has twice is in a container once.
func (c *Containerd) MergesVariables() bool { return c.runtime.mergesVariables }

// containerd17Config is containerdConfig in version 2, for containerd 1.7.
var containerd17Config = template.Must(template.New("config.toml").Parse(`version = 2
root = "{{.Dir}}/root"
state = "{{.Dir}}/state"

[grpc]
  address = "{{.Dir}}/c.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.PauseImage}}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_cdi = true
  cdi_spec_dirs = ["{{.Dir}}/no-cdi"]

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  options = { SystemdCgroup = {{.SystemdCgroup}} }
{{range $name, $binary := .Runtimes}}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{{$name}}]
  runtime_type = "io.containerd.runc.v2"
  options = { BinaryName = "{{$binary}}", SystemdCgroup = {{$.SystemdCgroup}} }
{{end}}
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{{.Dir}}/cni"

[plugins."io.containerd.nri.v1.nri"]
  disable = {{.DisableNRI}}
  socket_path = "{{.Dir}}/nri/nri.sock"
  plugin_path = "{{.Dir}}/nri/plugins"
  plugin_config_path = "{{.Dir}}/nri/conf.d"
  plugin_request_timeout = "{{.RequestTimeout}}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
`))

// crioConfig has no infra containers: the pods' namespaces need none.
var crioConfig = template.Must(template.New("config.toml").Parse(`[crio]
root = "{{.Dir}}/root"
runroot = "{{.Dir}}/state"
storage_driver = "overlay"
log_dir = "{{.Dir}}/crio-logs"
version_file = "{{.Dir}}/version"
version_file_persist = ""
clean_shutdown_file = "{{.Dir}}/clean.shutdown"

[crio.api]
listen = "{{.Dir}}/c.sock"

[crio.runtime]
cgroup_manager = "{{if .SystemdCgroup}}systemd{{else}}cgroupfs{{end}}"
pinns_path = "{{.Tools}}/pinns"
namespaces_dir = "{{.Dir}}/namespaces"
container_exits_dir = "{{.Dir}}/exits"
container_attach_socket_dir = "{{.Dir}}/attach"
hooks_dir = []
cdi_spec_dirs = ["{{.Dir}}/no-cdi"]
default_ulimits = ["nofile=1024:1024"]
default_runtime = "runc"

[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_root = "{{.Dir}}/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
{{range $name, $binary := .Runtimes}}
[crio.runtime.runtimes.{{$name}}]
runtime_path = "{{$binary}}"
runtime_root = "{{$.Dir}}/{{$name}}"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
{{end}}
[crio.image]
pause_image = "{{.PauseImage}}"
signature_policy = "{{.Dir}}/policy.json"
short_name_mode = "disabled"

[crio.network]
network_dir = "{{.Dir}}/cni"
plugin_dirs = ["/usr/lib/cni"]

[crio.nri]
enable_nri = {{not .DisableNRI}}
nri_listen = "{{.Dir}}/nri/nri.sock"
nri_plugin_dir = "{{.Dir}}/nri/plugins"
nri_plugin_config_dir = "{{.Dir}}/nri/conf.d"
nri_plugin_request_timeout = "{{.RequestTimeout}}"

[crio.nri.default_validator]
nri_enable_default_validator = true
`))

// imagePolicy accepts every image: none is pulled.
const imagePolicy = `{"default": [{"type": "insecureAcceptAnything"}]}`

// loadByPodman imports images into the storage that CRI-O shares with podman.
func loadByPodman(ctx context.Context, c *Containerd, archive string) error {
	podman, err := debian("podman", "podman")
	if err != nil {
		return err
	}
	names, err := imagesOf(archive)
	if err != nil {
		return err
	}
	for _, image := range names { // podman takes one image of an OCI archive at a time
		_, err := Run(ctx, []string{debianPath}, podman, "--root", filepath.Join(c.Dir, "root"), "--runroot", filepath.Join(c.Dir, "state"),
			"--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
			"pull", "--quiet", "--signature-policy", filepath.Join(c.Dir, "policy.json"), "oci-archive:"+archive+":"+image)
		if err != nil {
			return err
		}
	}
	return nil
}

// endMonitors ends what a CRI-O that was killed has lost track of: conmon, and containers that were not started yet.
func endMonitors(c *Containerd) error {
	pids, err := processesOf(filepath.Dir(c.Dir))
	pids = slices.DeleteFunc(pids, func(pid int) bool {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return !bytes.HasPrefix(name, []byte("conmon")) && !bytes.HasPrefix(name, []byte("runc"))
	})
	return errors.Join(err, killAll(pids))
}
