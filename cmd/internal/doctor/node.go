package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

func checkCgroup(_ context.Context, e *exam, v *verdict) {
	const root = "/sys/fs/cgroup"
	f, err := e.Filesystem(root)
	switch {
	case err != nil:
		v.warn("unknown: "+oneLine(err), "mount cgroup2 on "+root)
	case f.Type == unix.CGROUP2_SUPER_MAGIC:
		v.ok("version 2")
	case e.needsOnlyEngines():
		v.ok("version 1")
	default:
		v.warn("version 1: supported by gpuslice, but not by the kubelet from Kubernetes 1.35 on (failCgroupV1)",
			"on the kernel's command line, then reboot: systemd.unified_cgroup_hierarchy=1")
	}
}

func checkKubelet(_ context.Context, e *exam, v *verdict) {
	plugins := path.Join(e.o.KubeletDir, "device-plugins", "kubelet.sock")
	if e.exists(plugins) {
		v.ok("device plugin socket " + plugins)
	} else {
		v.fail("no "+plugins+": the kubelet does not run, or has another directory", "systemctl start kubelet, or set --kubelet-dir to its --root-dir")
	}
	resources := path.Join(e.o.KubeletDir, "pod-resources", "kubelet.sock")
	if e.exists(resources) {
		v.ok("PodResources socket " + resources)
	} else {
		v.warn("no "+resources+": pods with several containers with HAMi's positional grants are refused",
			"systemctl start kubelet (its feature gate KubeletPodResources, on since 1.15, must be on)")
	}
	var others []string
	files, _ := fs.Glob(e.Host, path.Join(strings.TrimPrefix(e.o.KubeletDir, "/"), "device-plugins", "*"))
	for _, file := range files {
		if api.OtherPlugin(file) {
			others = append(others, "/"+file)
		}
	}
	if len(others) > 0 {
		v.fail("another device plugin offers this node's GPUs: "+strings.Join(others, ", ")+": the kubelet uses the one that registered last",
			"kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false --overwrite  # NVIDIA's GPU operator; otherwise keep that plugin off this node",
			"rm "+strings.Join(others, " ")+"  # if no such plugin runs: left by one that was killed")
	}
}

func checkModules(_ context.Context, e *exam, v *verdict) {
	data, err := fs.ReadFile(e.Host, "proc/modules")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // missing: a kernel without modules
		v.fail("unknown: "+oneLine(err), asRoot)
		return
	}
	var missing []string
	for _, module := range []string{"nvidia", "nvidia_uvm"} {
		// A built-in driver is only in /sys/module.
		if !bytes.HasPrefix(data, []byte(module+" ")) && !bytes.Contains(data, []byte("\n"+module+" ")) && !e.exists("/sys/module/"+module) {
			missing = append(missing, module)
		}
	}
	if len(missing) == 0 {
		v.ok("nvidia and nvidia_uvm are loaded")
		return
	}
	v.fail("not loaded: "+strings.Join(missing, ", "), "modprobe -a nvidia nvidia_uvm  # if the modules do not exist, install NVIDIA's driver", "printf 'nvidia\\nnvidia_uvm\\n' > /etc/modules-load.d/nvidia.conf  # at every boot")
}

func checkDevices(_ context.Context, e *exam, v *verdict) {
	wanted := []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}
	if n, err := e.readNode(); err == nil && len(n.Node.GPUs) > 0 {
		for _, c := range n.Node.GPUs {
			wanted = append(wanted, c.DevicePath())
		}
	} else if gpus, _ := fs.Glob(e.Host, "dev/nvidia[0-9]*"); len(gpus) == 0 {
		wanted = append(wanted, "/dev/nvidia0")
	} else {
		for _, c := range gpus {
			wanted = append(wanted, "/"+c)
		}
	}
	var missing, fix []string
	for _, device := range wanted {
		info, err := e.stat(device)
		if err == nil && info.Mode()&fs.ModeCharDevice != 0 {
			continue
		}
		missing = append(missing, device)
		switch device {
		case "/dev/nvidiactl":
			fix = append(fix, "nvidia-modprobe")
		case "/dev/nvidia-uvm":
			fix = append(fix, "nvidia-modprobe -u -c 0")
		default:
			fix = append(fix, "nvidia-modprobe -c "+strings.TrimPrefix(device, "/dev/nvidia"))
		}
	}
	if len(missing) > 0 {
		v.fail("no character device: "+strings.Join(missing, ", "), append(fix, "systemctl enable --now nvidia-persistenced  # keeps the device nodes")...)
		return
	}
	v.ok(strings.Join(wanted, ", "))
}

const managementLibrary = "libnvidia-ml.so.1"

func checkDriverLibrary(_ context.Context, e *exam, v *verdict) {
	// The cache contains the paths, separated by NUL.
	cache, _ := fs.ReadFile(e.Host, "etc/ld.so.cache")
	for entry := range bytes.SplitSeq(cache, []byte{0}) {
		if found := string(entry); strings.HasPrefix(found, "/") && path.Base(found) == managementLibrary && e.exists(found) {
			v.ok(found)
			return
		}
	}
	for _, pattern := range []string{"usr/lib*/" + managementLibrary, "usr/lib/*/" + managementLibrary} {
		if found, _ := fs.Glob(e.Host, pattern); len(found) > 0 {
			v.ok("/" + found[0])
			return
		}
	}
	for _, pattern := range []string{"run/nvidia/driver/usr/lib*/" + managementLibrary, "run/nvidia/driver/usr/lib/*/" + managementLibrary} {
		if found, _ := fs.Glob(e.Host, pattern); len(found) > 0 {
			v.warn("only in a driver container: /"+found[0], "start the agent with --nvml-library /"+found[0])
			return
		}
	}
	v.fail(managementLibrary+" not found", "install the driver's libraries (Debian: libnvidia-ml1; RHEL: nvidia-driver-cuda-libs), then run ldconfig; or start the agent with --nvml-library PATH")
}

const cdiGenerate = "nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml"

// checkComputeSource reports how the agent measures the use of the GPUs' time.
func checkComputeSource(_ context.Context, e *exam, v *verdict) {
	n, err := e.readNode()
	if err != nil {
		v.ok("not known before the agent's first start")
		return
	}
	gpus := map[nvidia.TimeSource][]string{}
	for _, gpu := range n.Node.GPUs {
		gpus[n.ComputeSource[gpu.UUID]] = append(gpus[n.ComputeSource[gpu.UUID]], fmt.Sprintf("GPU %d", gpu.Index))
	}
	for _, source := range slices.Sorted(maps.Keys(gpus)) {
		of := strings.Join(gpus[source], ", ")
		switch source {
		case "":
			v.ok(of + ": no container has used it yet, or it has MIG")
		case nvidia.TimesByLimiter:
			v.warn(of+": NVML does not show which processes use the GPU's time; it is known from the containers' limiters only",
				"if violations of compute shares must be found, use a driver with which `nvidia-smi pmon -c 1` shows the sm of processes that work")
		default:
			v.ok(of + ": " + string(source))
		}
	}
	if len(gpus) == 0 {
		v.ok("no GPU")
	}
}

func checkCDI(_ context.Context, e *exam, v *verdict) {
	devices, broken := e.cdiDevices(v)
	cdiGenerate := cdiGenerate
	if e.needsOnlyEngines() {
		cdiGenerate = "gpuslice cdi generate --driver"
	}
	cri := "containerd's CDI is on"
	if e.needsOnlyEngines() {
		cri = "gpuslice-runtime reads them"
	} else if e.runtime.name == "cri-o" {
		cri = "CRI-O's CDI is on"
	} else if !setting(e.config, !e.runtime.version.before(2, 0, 0), PluginCRI, "enable_cdi") {
		cri = "containerd's CDI is off; gpuslice does not need it, because it reads the specs itself"
	}
	strategies := " --device-name-strategy=uuid --device-name-strategy=index"
	if e.needsOnlyEngines() {
		strategies = ""
	}
	where := strings.Join(e.o.CDISpecDirs, ", ")
	if len(devices) == 0 {
		if !broken && len(e.config.nvidiaHandlers()) > 0 {
			v.warn("no "+api.CDIKindDriver+" devices in "+where+": containers get GPUs only with NVIDIA's runtime handler", cdiGenerate)
			return
		}
		v.fail("no "+api.CDIKindDriver+" devices in "+where, cdiGenerate)
		return
	}
	n, err := e.readNode()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.warn("node.json: "+oneLine(err), "restart gpuslice-agent: it writes the file again")
		return
	}
	if err != nil {
		v.ok(fmt.Sprintf("%d %s devices in %s; the GPUs are known after the first start of the agent or of a container; %s", len(devices), api.CDIKindDriver, where, cri))
		return
	}
	var missing []string
	for _, d := range n.Devices {
		if !slices.Contains(devices, d.UUID) {
			missing = append(missing, d.UUID)
		}
	}
	if len(missing) > 0 {
		v.fail("no device of "+strings.Join(missing, ", ")+" in "+where, cdiGenerate+strategies)
		return
	}
	v.ok(fmt.Sprintf("all %d GPUs have a device in %s; %s", len(n.Devices), where, cri))
}

// cdiDevices returns the GPUs' names in CDI specs, and reports unusable specs.
func (e *exam) cdiDevices(v *verdict) (devices []string, broken bool) {
	for _, dir := range e.o.CDISpecDirs {
		entries, err := fs.ReadDir(e.Host, name(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			v.fail(oneLine(err), asRoot)
			broken = true
		}
		for _, entry := range entries {
			file := path.Join(dir, entry.Name())
			if extension := path.Ext(file); extension != ".yaml" && extension != ".json" {
				continue
			}
			data, err := fs.ReadFile(e.Host, name(file))
			if err != nil {
				v.fail(oneLine(err), asRoot)
				broken = true
				continue
			}
			spec, err := cdi.ParseSpec(data)
			if err == nil && spec == nil {
				err = errors.New("the file has no CDI spec")
			}
			if err != nil {
				v.fail(file+": "+oneLine(err), "fix or remove "+file)
				broken = true
				continue
			}
			if spec.Kind != api.CDIKindDriver {
				continue
			}
			for _, m := range spec.ContainerEdits.Mounts {
				if !e.exists(m.HostPath) {
					v.fail(file+" does not match this driver: "+m.HostPath+" does not exist", "nvidia-ctk cdi generate --output "+file)
					broken = true
					break
				}
			}
			for _, d := range spec.Devices {
				devices = append(devices, d.Name)
			}
		}
	}
	return devices, broken
}

// checkHostMemory applies to nodes that grant more memory than their GPUs have: the host's must hold the rest.
func checkHostMemory(_ context.Context, e *exam, v *verdict) {
	n, err := e.readNode()
	excess := n.HostMemoryMiB()
	if err != nil || excess == 0 {
		return
	}
	has, err := e.memoryMiB()
	switch granted := fmt.Sprintf("memory scaling grants %d MiB more than the GPUs have", excess); {
	case err != nil:
		v.warn(granted+"; the host's memory is unknown: "+err.Error(), "ls -l /proc/meminfo")
	case excess > has:
		v.fail(fmt.Sprintf("%s, and the host has only %d MiB", granted, has), "set --device-memory-scaling lower (memoryScaling in runtime.yaml)")
	default:
		v.ok(fmt.Sprintf("%s, and the host has %d MiB", granted, has))
	}
}

func (e *exam) memoryMiB() (mib int64, err error) {
	data, err := fs.ReadFile(e.Host, "proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &mib); err == nil {
			return mib / 1024, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

func (e *exam) readNode() (n node.File, err error) {
	data, err := fs.ReadFile(e.Host, name(path.Join(e.o.StateDir, api.NodeFileName)))
	if err != nil {
		return n, err
	}
	return node.Decode(data)
}
