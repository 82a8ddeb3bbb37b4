package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// options are the agent's flags.
type options struct {
	ConfigFile  string
	NodeName    string
	StateDir    string
	LibraryDir  string
	Library     string
	LimiterMode string
	Graphics    bool

	NRISocket          string
	PodResourcesSocket string
	NVMLLibrary        string
	InventoryInterval  time.Duration
	IgnoreXIDs         []uint

	DeviceInjection        string
	CDISpecDirs            []string
	NvidiaRuntimeHandlers  []string
	DefaultRuntimeIsNvidia bool

	DevicePluginDir  string
	ResourceName     string
	AllocationPolicy string
	GDSEnabled       bool
	MOFEDEnabled     bool
	GDRCopyEnabled   bool
	PassDeviceSpecs  bool

	ResourceProfile string
	MIGStrategy     string
	NodeConfigFile  string

	KubernetesAPI   string
	Kubeconfig      string
	RegisterFormat  string
	GaiaModelLabel  bool
	AnswerHandshake bool

	ResourceNames          []string
	SplitCount             int
	MemoryScaling          float64
	CoresScaling           float64
	ContextMemoryMiB       int
	DisableCoreLimit       bool
	CorePolicy             string
	UnlimitedCoreFloor     int
	GrantPublicKeyFile     string
	UnscheduledPolicy      string
	ExemptNamespaces       []string
	SwitchNamespaces       []string
	HighPriorityNamespaces []string
	HealthAddress          string
	MetricsAddress         string
	LegacyMetrics          []string
	AuditInterval          time.Duration
	OnViolation            string
	ViolationGrace         time.Duration
	LogLevel, LogFormat    string

	Retire bool
}

// aliases are variables that HAMi's manifests set.
var aliases = config.Aliases{
	"node-name":             {"NODE_NAME", "NodeName"},
	"device-split-count":    {"DEVICE_SPLIT_COUNT"},
	"device-memory-scaling": {"DEVICE_MEMORY_SCALING"},
	"device-cores-scaling":  {"DEVICE_CORES_SCALING"},
	"disable-core-limit":    {"DISABLE_CORE_LIMIT"},
	"resource-name":         {"RESOURCE_NAME"},
	"gds-enabled":           {"GDS_ENABLED"},
	"mofed-enabled":         {"MOFED_ENABLED"},
	"gdrcopy-enabled":       {"GDRCOPY_ENABLED"},
	"pass-device-specs":     {"PASS_DEVICE_SPECS"},
	"mig-strategy":          {"MIG_STRATEGY"},
	"kubeconfig":            {"KUBECONFIG"},
}

func (o *options) bind(f *pflag.FlagSet) {
	f.SortFlags = false // the manual has them in this order
	f.StringVar(&o.ConfigFile, "config", "", "YAML `file` with these options by name")
	f.StringVar(&o.NodeName, "node-name", hostName(), "this node's `name` in Kubernetes, as grants name it")
	f.StringVar(&o.StateDir, "state-dir", "/run/gpuslice", "`directory` of the ledger and of the containers' limits and usage files; should be on a tmpfs")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "`directory` that the limiter is installed to; not on a noexec mount")
	f.StringVar(&o.Library, "library", "/usr/lib/gpuslice/libvgpu.so", "the limiter's `file`, to be installed")
	f.StringVar(&o.LimiterMode, "limiter-mode", string(oci.LimiterAuto), "`how` the limiter comes into containers: preload (by /etc/ld.so.preload, which glibc alone reads), library (in front of the driver's libraries, for every libc; needs the CDI spec) or auto (both, or the one that can be)")

	f.StringVar(&o.NRISocket, "nri-socket", "/var/run/nri/nri.sock", "the container runtime's NRI `socket`")
	f.StringVar(&o.PodResourcesSocket, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources `socket`, asked for the order of a pod's containers when several have HAMi's positional grants; empty refuses such pods")
	f.StringVar(&o.NVMLLibrary, "nvml-library", "libnvidia-ml.so.1", "the driver's management library, a `name` or a path")
	f.DurationVar(&o.InventoryInterval, "inventory-interval", 30*time.Second, "time between two looks at the GPUs, at least 1s")
	f.UintSliceVar(&o.IgnoreXIDs, "ignore-xids", nil, "XIDs that don't make a GPU unhealthy, by `number`, besides those that programs cause (13, 31, 43, 45, 68, 109)")

	f.StringVar(&o.DeviceInjection, "device-injection", string(oci.InjectAuto), "`how` a container gets its GPUs: cdi (by the nvidia.com/gpu CDI spec), envvar (by the nvidia runtime) or auto (the first of these that works)")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "`directories` of CDI specs; a later one wins over an earlier one")
	f.BoolVar(&o.Graphics, "graphics", false, "give containers the driver's libraries for OpenCL, OpenGL, Vulkan and OptiX too; what programs use by them is not limited")
	f.StringSliceVar(&o.NvidiaRuntimeHandlers, "nvidia-runtime-handlers", []string{"nvidia"}, "runtime handlers (of RuntimeClasses) that are nvidia-container-runtime, by `name`")
	f.BoolVar(&o.DefaultRuntimeIsNvidia, "default-runtime-is-nvidia", false, "the default runtime is nvidia-container-runtime")

	f.StringVar(&o.DevicePluginDir, "device-plugin-dir", "/var/lib/kubelet/device-plugins", "the kubelet's `directory` of device plugins; empty offers the GPUs to no kubelet")
	f.StringVar(&o.ResourceName, "resource-name", deviceplugin.DefaultResource, "extended resource that the kubelet is offered, by `name`: --device-split-count of it for each GPU")
	f.StringVar(&o.AllocationPolicy, "allocation-policy", string(deviceplugin.Packed), "`which` GPUs the kubelet is to take first: packed (the fullest) or spread (the emptiest); several are of distinct GPUs")
	f.BoolVar(&o.GDSEnabled, "gds-enabled", false, "containers that get a GPU get GPUDirect Storage too: by the CDI device nvidia.com/gds=all or, with the nvidia runtime, NVIDIA_GDS=enabled")
	f.BoolVar(&o.MOFEDEnabled, "mofed-enabled", false, "containers that get a GPU get Mellanox OFED too: by the CDI device nvidia.com/mofed=all or, with the nvidia runtime, NVIDIA_MOFED=enabled")
	f.BoolVar(&o.GDRCopyEnabled, "gdrcopy-enabled", false, "containers that get a GPU get GDRCopy too: by the CDI device nvidia.com/gdrcopy=all or, with the nvidia runtime, NVIDIA_GDRCOPY=enabled")
	f.BoolVar(&o.PassDeviceSpecs, "pass-device-specs", false, "where NVIDIA's runtime injects the GPUs, name their device nodes in the container's spec too, so that an update of the container (the kubelet's CPU manager makes one) does not take them away; the device plugin itself passes none: that would give a GPU without its limits")
	f.StringVar(&o.ResourceProfile, "resource-profile", string(profileHAMi), "`which` resources the kubelet is offered: hami (--resource-name) or tencent (tencent.com/vcuda-core, 100 a GPU, and tencent.com/vcuda-memory, blocks of 256 MiB)")
	f.StringVar(&o.MIGStrategy, "mig-strategy", string(nvidia.MIGNone), "`how` MIG devices are offered: none (not at all), single (as --resource-name; all GPUs of the node need one profile) or mixed (each profile as a resource of its own, such as nvidia.com/mig-1g.10gb)")
	f.StringVar(&o.NodeConfigFile, "node-config-file", nodeconfig.DefaultPath, "HAMi's JSON `file` of options by node, followed when it changes; what it sets for this node wins over the options here; the default one need not be there; empty reads none")

	f.StringVar(&o.KubernetesAPI, "kubernetes-api", string(apiAuto), "`whether` schedulers are told of the GPUs by annotations and labels of the node: on, off, or auto (on with --kubeconfig or in a pod with a service account); the node is guarded all the same")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; empty is the pod's service account")
	f.StringVar(&o.RegisterFormat, "register-format", registerJSON, "`form` of the annotation hami.io/node-nvidia-register: json (as HAMi has it now) or csv (as its older schedulers read it)")
	f.BoolVar(&o.AnswerHandshake, "answer-handshake", true, "answer the question in hami.io/node-handshake that HAMi's older schedulers drop a node without; newer ones look at the node's devices, and without answers write and are written to less")
	f.BoolVar(&o.GaiaModelLabel, "gaia-model-label", false, "label the node with gaia.tencent.com/gpu-model, as gpu-manager does")

	f.StringSliceVar(&o.ResourceNames, "resource-names", []string{deviceplugin.DefaultResource}, "extended resources whose devices count as a container's GPUs, by `name`; --resource-name always does")
	f.IntVar(&o.SplitCount, "device-split-count", 10, "`containers` that may share one GPU, 1 to 1000")
	f.Float64Var(&o.MemoryScaling, "device-memory-scaling", 1, "grantable memory as a multiple of the GPU's, 0.01 to 100; above 1 oversubscribes")
	f.Float64Var(&o.CoresScaling, "device-cores-scaling", 1, "grantable compute time as a multiple of the GPU's, 0.01 to 100")
	f.IntVar(&o.ContextMemoryMiB, "context-memory-mib", -1, "device memory that a CUDA context is charged with, in MiB; -1 goes by the GPU's model, 0 charges none")
	f.StringVar(&o.CorePolicy, "core-policy", string(oci.CoreDefault), "`when` shares of compute time are enforced: default (while others use the GPU), force (always) or disable (never)")
	f.IntVar(&o.UnlimitedCoreFloor, "unlimited-core-floor", 1, "minimum `percent` of a GPU's time, 1 to 100, for a container without a share of compute time (no nvidia.com/gpucores) while others use their shares; it also gets the time that these leave unused, and all of it while no share is in use")
	f.BoolVar(&o.DisableCoreLimit, "disable-core-limit", false, "do not enforce shares of compute time, as --core-policy=disable")
	f.StringVar(&o.GrantPublicKeyFile, "grant-public-key-file", "", "`file` with the public keys that verify grants: one or two Ed25519 keys in PEM; only root may write it; it is read again when it changes; with keys, HAMi's annotations are refused, because they can't be signed; empty: unsigned grants are accepted")
	f.StringVar(&o.UnscheduledPolicy, "unscheduled-policy", string(nriplugin.UnscheduledDeny), "`what` a container gets whose pod no GPU scheduler annotated: deny (no GPU) or share (for each device that the kubelet gave it, the GPU's memory and compute time divided by --device-split-count)")
	f.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", nil, "`namespaces` whose pods are left alone: they may use whole GPUs without a grant")
	f.StringSliceVar(&o.SwitchNamespaces, "disable-control-namespaces", nil, "`namespaces` whose pods may switch their limiter off by CUDA_DISABLE_CONTROL=true, * for all; such a container gets the GPUs of its grant and is held to nothing; each is logged")
	f.StringSliceVar(&o.HighPriorityNamespaces, "high-priority-namespaces", nil, "`namespaces` whose containers others stand back for while they are at work on a GPU; what a container says of its own priority is not believed")
	f.DurationVar(&o.AuditInterval, "audit-interval", 5*time.Second, "time between two comparisons of what runs on the GPUs, by NVML and the kernel, with what was granted, at least 1s; 0 makes none")
	f.StringVar(&o.OnViolation, "on-violation", violationReport, "`action` on a violation (a GPU in use without a grant, no limiter, forged limits, more memory than granted by NVML's count, a damaged usage file, locks on the limiter's files): report (metric, event, log) or kill (report, and after --violation-grace SIGKILL to the processes, except processes of the host or of exempt namespaces)")
	f.DurationVar(&o.ViolationGrace, "violation-grace", 30*time.Second, "time that a violation may last before --on-violation=kill ends it, 0 to 24h")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "`host:port` of /healthz and /readyz; empty serves none")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":9394", "`host:port` of /metrics, for Prometheus, of a page for people, and of /api/v1/view, the node as JSON; whoever reaches it sees the names of pods and what they use; empty serves none")
	f.StringSliceVar(&o.LegacyMetrics, "legacy-metrics", nil, "`programs` by whose metrics' names and units the same is told again at --metrics-address, so that their dashboards go on: hami, gpu-manager (also at /metric)")
	f.StringVar(&o.LogLevel, "log-level", "info", "the least `level` of the agent's own log: debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "the log's `format`: text or json")
	f.BoolVar(&o.Retire, "retire", false, "guard nothing, and take away what agents have left on this node: state, libraries, sockets, and what the Node object says of its GPUs; then wait to be told to end. For before gpuslice is uninstalled. Containers that run keep what they have, and nobody gets a GPU")
}

// maxSocketPath is the length of the longest path of a Unix socket (unix(7)).
const maxSocketPath = 107

// hostName is the machine's name as the kubelet makes it the node's.
func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return "" // --node-name is refused then
	}
	return strings.ToLower(strings.TrimSpace(host))
}

// What names may look like: Kubernetes' documentation, "Object Names and IDs" (RFC
// 1123), and "Extended resources" (a domain, a slash, a name).
var (
	subdomainPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	labelPattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	resourcePattern  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

// The logs that can be asked for.
var (
	logLevels = map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	logHandlers = map[string]func(io.Writer, *slog.HandlerOptions) slog.Handler{
		"text": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) },
		"json": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) },
	}
)

// logger makes the log that the options, which are valid, ask for.
func (o *options) logger(w io.Writer) *slog.Logger {
	return slog.New(logHandlers[o.LogFormat](w, &slog.HandlerOptions{Level: logLevels[o.LogLevel]}))
}

// validate reports every bad value at once, each with its flag, in the manual's order.
func (o *options) validate() error {
	var c checks
	c.matches("node-name", subdomainPattern, "the node's name in Kubernetes (lower-case letters, digits, '-' and '.')", o.NodeName)
	c.absolute("state-dir", o.StateDir)
	c.absolute("library-dir", o.LibraryDir)
	c.absolute("library", o.Library)
	c.want("limiter-mode", slices.Contains(oci.LimiterModes, oci.LimiterMode(o.LimiterMode)), "preload, library or auto", o.LimiterMode)
	c.want("limiter-mode", o.LimiterMode != string(oci.LimiterLibrary) || o.DeviceInjection != string(oci.InjectEnvvar),
		"preload or auto with --device-injection=envvar: the nvidia runtime mounts the driver's libraries itself", o.LimiterMode)

	c.absolute("nri-socket", o.NRISocket)
	if o.PodResourcesSocket != "" {
		c.absolute("pod-resources-socket", o.PodResourcesSocket)
	}
	c.want("nvml-library", o.NVMLLibrary != "", "a library's name or path", o.NVMLLibrary)
	c.want("inventory-interval", o.InventoryInterval >= time.Second, "at least 1s", o.InventoryInterval)

	c.want("device-injection", slices.Contains([]oci.Injection{oci.InjectAuto, oci.InjectCDI, oci.InjectEnvvar}, oci.Injection(o.DeviceInjection)), "auto, cdi or envvar", o.DeviceInjection)
	c.absolute("cdi-spec-dirs", o.CDISpecDirs...)
	c.want("cdi-spec-dirs", len(o.CDISpecDirs) > 0 || o.DeviceInjection == string(oci.InjectEnvvar), "at least one directory, or --device-injection=envvar", o.CDISpecDirs)
	c.matches("nvidia-runtime-handlers", labelPattern, "names of runtime handlers", o.NvidiaRuntimeHandlers...)

	if o.DevicePluginDir != "" {
		c.absolute("device-plugin-dir", o.DevicePluginDir)
		for _, resource := range o.ordinaryResources() {
			socket := deviceplugin.SocketPath(o.DevicePluginDir, resource.Name)
			c.want("device-plugin-dir", len(socket) <= maxSocketPath, "a directory and a --resource-name that leave room for a socket's path", socket)
		}
	}
	c.matches("resource-name", resourcePattern, "a resource such as nvidia.com/gpu", o.ResourceName)
	c.want("allocation-policy", slices.Contains(deviceplugin.Policies, deviceplugin.Policy(o.AllocationPolicy)), "packed or spread", o.AllocationPolicy)

	c.want("resource-names", len(o.ResourceNames) > 0, "at least one resource", o.ResourceNames)
	c.matches("resource-names", resourcePattern, "resources such as nvidia.com/gpu", o.ResourceNames...)
	c.want("device-split-count", o.SplitCount >= 1 && o.SplitCount <= 1000, "1 to 1000 containers a GPU", o.SplitCount)
	// NaN is in no range.
	c.want("device-memory-scaling", o.MemoryScaling >= 0.01 && o.MemoryScaling <= 100, "0.01 to 100", o.MemoryScaling)
	c.want("device-cores-scaling", o.CoresScaling >= 0.01 && o.CoresScaling <= 100, "0.01 to 100", o.CoresScaling)
	c.want("context-memory-mib", o.ContextMemoryMiB >= -1 && o.ContextMemoryMiB <= 16384, "-1 to 16384", o.ContextMemoryMiB)
	if o.GrantPublicKeyFile != "" {
		c.absolute("grant-public-key-file", o.GrantPublicKeyFile)
	}
	o.validateOffer(&c)
	share := o.UnscheduledPolicy == string(nriplugin.UnscheduledShare)
	c.want("unscheduled-policy", share || o.UnscheduledPolicy == string(nriplugin.UnscheduledDeny), "deny or share", o.UnscheduledPolicy)
	// A share of no compute time would not be limited.
	c.want("unscheduled-policy", !share || int(grant.MaxCorePercent*o.CoresScaling) >= o.SplitCount,
		"deny, or a --device-split-count that leaves each share at least 1 % of compute time", o.UnscheduledPolicy)
	c.want("unscheduled-policy", !share || o.ResourceProfile != string(profileTencent),
		"deny with --resource-profile=tencent: the kubelet chooses cores and memory apart, maybe of different GPUs", o.UnscheduledPolicy)
	c.want("unlimited-core-floor", o.UnlimitedCoreFloor >= 1 && o.UnlimitedCoreFloor <= 100, "1 to 100", o.UnlimitedCoreFloor)
	c.want("core-policy", oci.CorePolicy(o.CorePolicy).Known(), "default, force or disable", o.CorePolicy)
	c.want("core-policy", !o.DisableCoreLimit || o.CorePolicy != string(oci.CoreForce), "another than force with --disable-core-limit", o.CorePolicy)
	c.matches("exempt-namespaces", labelPattern, "names of namespaces", o.ExemptNamespaces...)
	for _, namespace := range o.SwitchNamespaces {
		c.want("disable-control-namespaces", namespace == "*" || labelPattern.MatchString(namespace), "names of namespaces, or *", namespace)
	}
	c.matches("high-priority-namespaces", labelPattern, "names of namespaces", o.HighPriorityNamespaces...)
	o.validateAudit(&c)
	c.want("health-address", o.HealthAddress == "" || isAddress(o.HealthAddress), "host:port or nothing", o.HealthAddress)
	c.want("metrics-address", o.MetricsAddress == "" || isAddress(o.MetricsAddress), "host:port or nothing", o.MetricsAddress)
	for _, program := range o.LegacyMetrics {
		c.want("legacy-metrics", slices.Contains(metrics.Legacies, metrics.Legacy(program)), "hami or gpu-manager", program)
	}
	_, known := logLevels[o.LogLevel]
	c.want("log-level", known, "debug, info, warn or error", o.LogLevel)
	_, known = logHandlers[o.LogFormat]
	c.want("log-format", known, "text or json", o.LogFormat)
	return errors.Join(c.errs...)
}

// ignoredXIDs are the XIDs that say nothing about a GPU.
func (o *options) ignoredXIDs() []uint64 {
	xids := make([]uint64, len(o.IgnoreXIDs))
	for i, xid := range o.IgnoreXIDs {
		xids[i] = uint64(xid)
	}
	return xids
}

// settings are how containers get their GPUs.
func (o *options) settings(libraryPath, preloadPath string, fronts oci.Stubs) oci.Settings {
	s := oci.Settings{
		Injection:              oci.Injection(o.DeviceInjection),
		LibraryPath:            libraryPath,
		PreloadPath:            preloadPath,
		LimiterMode:            oci.LimiterMode(o.LimiterMode),
		Stubs:                  fronts,
		NvidiaHandlers:         o.NvidiaRuntimeHandlers,
		DefaultRuntimeIsNvidia: o.DefaultRuntimeIsNvidia,
		Graphics:               o.Graphics,
		CorePolicy:             oci.CorePolicy(o.CorePolicy),
	}
	if o.DisableCoreLimit {
		s.CorePolicy = oci.CoreDisable
	}
	return s
}
