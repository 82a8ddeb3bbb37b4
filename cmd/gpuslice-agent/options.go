package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
)

type options struct {
	ConfigFile  string
	NodeName    string
	StateDir    string
	LibraryDir  string
	Library     string
	LimiterMode string
	Memory      string
	NeedNative  bool
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

	ResourceAPI      string
	KubeletDir       string
	DevicePluginDir  string
	ResourceName     string
	AllocationPolicy string
	GDSEnabled       bool
	MOFEDEnabled     bool
	GDRCopyEnabled   bool
	IMEXChannelIDs   []string
	PassDeviceSpecs  bool

	ResourceProfile string
	MIGStrategy     string
	MIGOnRequest    bool
	NodeConfigFile  string

	KubernetesAPI   string
	Kubeconfig      string
	RegisterFormat  string
	GaiaModelLabel  bool
	NVIDIALabels    bool
	AnswerHandshake bool
	VolcanoRegister bool
	NodeCapacity    []string
	NodeCondition   bool

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
	PriorityNamespaces     []string
	HealthAddress          string
	MetricsAddress         string
	DebugAddress           string
	LegacyMetrics          []string
	AuditInterval          time.Duration
	OnViolation            string
	ViolationGrace         time.Duration
	LogLevel, LogFormat    string

	Retire bool
}

var variables = config.OfDaemon(aliases)

// aliases are variables in HAMi's manifests.
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
	f.SortFlags = false
	f.StringVar(&o.ConfigFile, "config", "", "YAML `FILE` with these options")
	f.StringVar(&o.NodeName, "node-name", hostName(), "`NAME` of this node in Kubernetes, as in grants")
	f.StringVar(&o.StateDir, "state-dir", "/run/gpuslice", "`DIRECTORY` of the ledger and of the containers' limits and usage files; should be on a tmpfs")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "`DIRECTORY` in which the limiter is installed; not on a noexec mount")
	f.StringVar(&o.Library, "library", "/usr/lib/gpuslice/libvgpu.so", "`FILE` of the limiter to install")
	f.StringVar(&o.LimiterMode, "limiter-mode", string(oci.LimiterAuto), "`MODE` of loading the limiter into containers: preload (by /etc/ld.so.preload, which only glibc reads), library (in front of the driver's libraries, for every libc; requires the CDI spec) or auto (both if possible)")
	f.StringVar(&o.Memory, "memory-enforcement", string(oci.MemoryLimiter), "`MODE` of limiting memory: limiter, native (by the driver, 615 or newer, for control groups of version 2; without the limiter), native+limiter, or auto (native+limiter if the driver keeps a limit that the agent sets on a scratch group, else limiter)")
	f.BoolVar(&o.NeedNative, "require-native", false, "with --memory-enforcement=auto, refuse a container that the driver can't limit, in place of limiter")

	f.StringVar(&o.NRISocket, "nri-socket", "/var/run/nri/nri.sock", "NRI `SOCKET` of the container runtime; empty: none, on a host for docker or podman, where the values of /etc/gpuslice/runtime.yaml replace the defaults of these options")
	f.StringVar(&o.PodResourcesSocket, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "PodResources `SOCKET` of the kubelet, read for the order of a pod's containers when several have HAMi's positional grants; empty: such pods are refused")
	f.StringVar(&o.NVMLLibrary, "nvml-library", "libnvidia-ml.so.1", "`FILE` of the driver's management library, a name or a path")
	f.DurationVar(&o.InventoryInterval, "inventory-interval", 30*time.Second, "`DURATION` between two readings of the GPUs, at least 1s")
	f.UintSliceVar(&o.IgnoreXIDs, "ignore-xids", nil, "`XIDS` that do not make a GPU unhealthy, in addition to those that programs cause (13, 31, 43, 45, 68, 109)")

	f.StringVar(&o.DeviceInjection, "device-injection", string(oci.InjectAuto), "`MODE` of adding GPUs to a container: cdi (by the nvidia.com/gpu CDI spec), envvar (by the nvidia runtime) or auto (the first of these that works)")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "`DIRECTORIES` of CDI specs; a later one overrides an earlier one")
	f.BoolVar(&o.Graphics, "graphics", false, "add the driver's libraries for OpenCL, OpenGL, Vulkan and OptiX to containers; GPU use through them is not limited")
	f.StringSliceVar(&o.NvidiaRuntimeHandlers, "nvidia-runtime-handlers", []string{"nvidia"}, "`NAMES` of the runtime handlers (of RuntimeClasses) that are nvidia-container-runtime")
	f.BoolVar(&o.DefaultRuntimeIsNvidia, "default-runtime-is-nvidia", false, "the default runtime is nvidia-container-runtime")

	f.StringVar(&o.ResourceAPI, "resource-api", resourceDevicePlugin, "`API` by which the node offers its GPUs to Kubernetes: device-plugin, or dra (ResourceClaims, with the scheduler of Kubernetes 1.36); with dra there is no device plugin, and no other GPU scheduler places pods on the node")
	f.StringVar(&o.KubeletDir, "kubelet-dir", api.KubeletDir, "`DIRECTORY` of the kubelet, for the sockets of --resource-api=dra")
	f.StringVar(&o.DevicePluginDir, "device-plugin-dir", "/var/lib/kubelet/device-plugins", "`DIRECTORY` of the kubelet for device plugins; empty: no device plugin")
	f.StringVar(&o.ResourceName, "resource-name", api.ResourceGPU, "`NAME` of the extended resource on the kubelet: --device-split-count of it for each GPU")
	f.StringVar(&o.AllocationPolicy, "allocation-policy", string(deviceplugin.Packed), "`POLICY` by which the kubelet chooses GPUs: packed (the fullest first) or spread (the emptiest first); several replicas are on different GPUs")
	f.BoolVar(&o.GDSEnabled, "gds-enabled", false, "add GPUDirect Storage to containers with a GPU: by the CDI device nvidia.com/gds=all or, with the nvidia runtime, NVIDIA_GDS=enabled")
	f.BoolVar(&o.MOFEDEnabled, "mofed-enabled", false, "add Mellanox OFED to containers with a GPU: by the CDI device nvidia.com/mofed=all or, with the nvidia runtime, NVIDIA_MOFED=enabled")
	f.BoolVar(&o.GDRCopyEnabled, "gdrcopy-enabled", false, "add GDRCopy to containers with a GPU: by the CDI device nvidia.com/gdrcopy=all or, with the nvidia runtime, NVIDIA_GDRCOPY=enabled")
	f.StringSliceVar(&o.IMEXChannelIDs, "imex-channel-ids", nil, "`CHANNELS` of NVIDIA's IMEX that containers with a GPU get, such as 0, for memory that GPUs of several nodes share (multi-node NVLink); a channel is no boundary between the containers that have it; nodes of which the driver has no IMEX add none")
	f.BoolVar(&o.PassDeviceSpecs, "pass-device-specs", false, "with NVIDIA's runtime, also add the GPUs' device nodes to the container's spec, so that an update of the container (such as by the kubelet's CPU manager) does not remove them; the device plugin itself passes none, because that would give a GPU without limits")
	f.StringVar(&o.ResourceProfile, "resource-profile", string(profileHAMi), "`PROFILE` of resources on the kubelet: hami (--resource-name) or tencent (tencent.com/vcuda-core, 100 per GPU, and tencent.com/vcuda-memory, blocks of 256 MiB)")
	f.StringVar(&o.MIGStrategy, "mig-strategy", string(nvidia.MIGNone), "`STRATEGY` for MIG devices: none (not offered), single (as --resource-name; requires one profile on all GPUs of the node) or mixed (one resource per profile, such as nvidia.com/mig-1g.10gb)")
	f.BoolVar(&o.MIGOnRequest, "mig-on-request", false, "on GPUs that are in MIG mode, make a MIG device when a ResourceClaim has one and destroy it afterwards; needs --resource-api=dra and --mig-strategy=mixed; MIG devices of others stay as they are, and the MIG mode is never changed")
	f.StringVar(&o.NodeConfigFile, "node-config-file", nodeconfig.DefaultPath, "HAMi's JSON `FILE` of options by node, read again when it changes; it overrides these options; the default file is optional; empty: none")

	f.StringVar(&o.KubernetesAPI, "kubernetes-api", string(apiAuto), "`MODE` of publishing the GPUs to schedulers, as annotations and labels of the node: on, off, or auto (on with --kubeconfig or in a pod with a service account); grants are applied in every mode")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for the API server; empty: the pod's service account")
	f.StringVar(&o.RegisterFormat, "register-format", registerJSON, "`FORMAT` of the annotation hami.io/node-nvidia-register: json (current HAMi) or csv (older HAMi schedulers)")
	f.StringSliceVar(&o.NodeCapacity, "node-capacity", nil, "`RESOURCES` of which the sums of all GPUs are written to the node's capacity, for autoscalers: memory=nvidia.com/gpumem, memory-percentage=nvidia.com/gpumem-percentage, cores=nvidia.com/gpucores; needs the right to patch nodes/status; the kubelet then rejects pods beyond a sum")
	f.BoolVar(&o.NodeCondition, "node-condition", false, "write conditions of the node: GPUShareIsolationVerified, the result of gpuslice verify, and with another --memory-enforcement than limiter GPUMemoryLimitedByDriver; needs the right to patch nodes/status")
	f.BoolVar(&o.AnswerHandshake, "answer-handshake", true, "answer the requests in hami.io/node-handshake; HAMi's older schedulers remove a node without answers; newer ones do not require them, and false saves writes to the API server")
	f.BoolVar(&o.VolcanoRegister, "volcano-register", false, "register the GPUs with Volcano's vGPU scheduling too (volcano.sh/node-vgpu-register, node-vgpu-handshake)")
	f.BoolVar(&o.NVIDIALabels, "nvidia-labels", false, "label the node as NVIDIA's feature discovery does (nvidia.com/gpu.product, .family, .memory, .count and others); labels that another program has written stay")
	f.BoolVar(&o.GaiaModelLabel, "gaia-model-label", false, "label the node with gaia.tencent.com/gpu-model, as gpu-manager does")

	f.StringSliceVar(&o.ResourceNames, "resource-names", []string{api.ResourceGPU}, "`NAMES` of the extended resources of which the devices count as GPUs of a container; --resource-name is always included")
	f.IntVar(&o.SplitCount, "device-split-count", 10, "`COUNT` of containers that can share one GPU, 1 to 1000")
	f.Float64Var(&o.MemoryScaling, "device-memory-scaling", 1, "`FACTOR` of grantable memory, as a multiple of the GPU's, 0.01 to 100; above 1 oversubscribes")
	f.Float64Var(&o.CoresScaling, "device-cores-scaling", 1, "`FACTOR` of grantable compute time, as a multiple of the GPU's, 0.01 to 100")
	f.IntVar(&o.ContextMemoryMiB, "context-memory-mib", -1, "`MIB` of memory to charge for a CUDA context; -1: by the GPU's model, 0: none")
	f.StringVar(&o.CorePolicy, "core-policy", string(oci.CoreDefault), "`POLICY` for enforcing compute shares: default (while others use the GPU), force (always) or disable (never)")
	f.IntVar(&o.UnlimitedCoreFloor, "unlimited-core-floor", 1, "minimum `PERCENT` of a GPU's time, 1 to 100, for a container without a compute share (no nvidia.com/gpucores) while others use their shares; it also gets the time that these leave unused, and all of it while no share is in use")
	f.BoolVar(&o.DisableCoreLimit, "disable-core-limit", false, "do not enforce compute shares, as --core-policy=disable")
	f.StringVar(&o.GrantPublicKeyFile, "grant-public-key-file", "", "`FILE` with the public keys that verify grants: one or two Ed25519 keys in PEM; only root may write it; it is read again when it changes; with keys, HAMi's annotations are rejected, because they can't be signed; empty: unsigned grants are accepted")
	f.StringVar(&o.UnscheduledPolicy, "unscheduled-policy", string(nriplugin.UnscheduledDeny), "`POLICY` for containers of pods without an annotation of a GPU scheduler: deny (no GPU) or share (for each device from the kubelet, the GPU's memory and compute time divided by --device-split-count)")
	f.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", nil, "`NAMESPACES` of which pods are not controlled: they can use whole GPUs without a grant")
	f.StringSliceVar(&o.SwitchNamespaces, "disable-control-namespaces", nil, "`NAMESPACES` of which pods can disable the limiter with CUDA_DISABLE_CONTROL=true, * for all; such a container gets the GPUs of its grant without limits, and is logged")
	f.StringSliceVar(&o.HighPriorityNamespaces, "high-priority-namespaces", nil, "`NAMESPACES` of which containers have priority on a GPU: others pause while they use it")
	f.StringSliceVar(&o.PriorityNamespaces, "requested-priority-namespaces", nil, "`NAMESPACES` of which containers can request this priority, by nvidia.com/priority: 0 or CUDA_TASK_PRIORITY=0, * for all; elsewhere such a request is ignored, because other containers pay for it")
	f.DurationVar(&o.AuditInterval, "audit-interval", 5*time.Second, "`DURATION` between two audits, which compare the processes on the GPUs (NVML, kernel) with the grants, at least 1s; 0: no audit")
	f.StringVar(&o.OnViolation, "on-violation", violationReport, "`ACTION` on a violation (a GPU in use without a grant, no limiter, forged limits, more memory than granted by NVML's count, a damaged usage file, locks on the limiter's files): report (metric, event, log) or kill (report, and after --violation-grace SIGKILL to the processes, except processes of the host or of exempt namespaces)")
	f.DurationVar(&o.ViolationGrace, "violation-grace", 30*time.Second, "`DURATION` of a violation before --on-violation=kill ends it, 0 to 24h")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "`HOST:PORT` of /healthz and /readyz; empty: none")
	f.StringVar(&o.DebugAddress, "debug-address", "", "`HOST:PORT` of /debug/pprof/, Go's profiles of the agent, which only clients at a loopback address get; empty: none")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":9394", "`HOST:PORT` of /metrics (Prometheus), a web page, and /api/v1/view (the node as JSON); every client can read the names of pods and their usage; empty: none")
	f.StringSliceVar(&o.LegacyMetrics, "legacy-metrics", nil, "`PROGRAMS` of which the metrics' names and units are served too at --metrics-address, for existing dashboards: hami, gpu-manager (also at /metric)")
	f.StringVar(&o.LogLevel, "log-level", "info", "lowest `LEVEL` of the agent's log: debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	f.BoolVar(&o.Retire, "retire", false, "remove everything that agents created on this node: state, libraries, sockets, and the annotations and labels of its Node object; then wait for a signal. Use it before gpuslice is uninstalled. Running containers keep their GPUs, and no new container gets one")
}

// maxSocketPath is Linux' limit (unix(7)).
const maxSocketPath = 107

// hostName is the node's default name, as in the kubelet.
func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(host))
}

// Sources: Kubernetes' "Object Names and IDs" (RFC 1123) and "Extended resources".
var (
	subdomainPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	labelPattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	resourcePattern  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

var (
	logLevels = map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	logHandlers = map[string]func(io.Writer, *slog.HandlerOptions) slog.Handler{
		"text": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) },
		"json": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) },
	}
)

func (o *options) logger(w io.Writer) *slog.Logger {
	return slog.New(logHandlers[o.LogFormat](w, &slog.HandlerOptions{Level: logLevels[o.LogLevel]}))
}

// validate returns all invalid values, in the manual's order.
func (o *options) validate() error {
	var c checks
	c.matches("node-name", o.namePattern(), "the node's name in Kubernetes (lower-case letters, digits, '-' and '.')", o.NodeName)
	c.absolute("state-dir", o.StateDir)
	c.absolute("library-dir", o.LibraryDir)
	c.absolute("library", o.Library)
	c.want("limiter-mode", slices.Contains(oci.LimiterModes, oci.LimiterMode(o.LimiterMode)), "preload, library or auto", o.LimiterMode)
	c.want("limiter-mode", o.LimiterMode != string(oci.LimiterLibrary) || o.DeviceInjection != string(oci.InjectEnvvar),
		"preload or auto with --device-injection=envvar: the nvidia runtime mounts the driver's libraries itself", o.LimiterMode)

	memory := oci.MemoryEnforcement(o.Memory)
	c.want("memory-enforcement", slices.Contains(oci.MemoryEnforcements, memory), "limiter, native, native+limiter or auto", o.Memory)
	c.want("require-native", !o.NeedNative || memory != oci.MemoryLimiter, "false with --memory-enforcement=limiter", o.NeedNative)
	if o.withNRI() {
		c.absolute("nri-socket", o.NRISocket)
	}
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
			c.want("device-plugin-dir", len(socket) <= maxSocketPath, "a shorter directory or --resource-name for the socket's path", socket)
		}
	}
	c.matches("resource-name", resourcePattern, "a resource such as nvidia.com/gpu", o.ResourceName)
	c.want("allocation-policy", slices.Contains(deviceplugin.Policies, deviceplugin.Policy(o.AllocationPolicy)), "packed or spread", o.AllocationPolicy)

	c.want("resource-names", len(o.ResourceNames) > 0, "at least one resource", o.ResourceNames)
	c.matches("resource-names", resourcePattern, "resources such as nvidia.com/gpu", o.ResourceNames...)
	c.want("device-split-count", o.SplitCount >= 1 && o.SplitCount <= 1000, "1 to 1000 containers per GPU", o.SplitCount)
	// NaN is in no range.
	c.want("device-memory-scaling", o.MemoryScaling >= 0.01 && o.MemoryScaling <= 100, "0.01 to 100", o.MemoryScaling)
	c.want("device-cores-scaling", o.CoresScaling >= 0.01 && o.CoresScaling <= 100, "0.01 to 100", o.CoresScaling)
	c.want("context-memory-mib", o.ContextMemoryMiB >= -1 && o.ContextMemoryMiB <= 16384, "-1 to 16384", o.ContextMemoryMiB)
	if o.GrantPublicKeyFile != "" {
		c.absolute("grant-public-key-file", o.GrantPublicKeyFile)
	}
	o.validateDRA(&c)
	o.validateOffer(&c)
	share := o.UnscheduledPolicy == string(nriplugin.UnscheduledShare)
	c.want("unscheduled-policy", share || o.UnscheduledPolicy == string(nriplugin.UnscheduledDeny), "deny or share", o.UnscheduledPolicy)
	// A share without compute time would be unlimited.
	c.want("unscheduled-policy", !share || int(grant.MaxCorePercent*o.CoresScaling) >= o.SplitCount,
		"deny, or a --device-split-count that gives each share at least 1 % of compute time", o.UnscheduledPolicy)
	c.want("unscheduled-policy", !share || o.ResourceProfile != string(profileTencent),
		"deny with --resource-profile=tencent: the kubelet chooses cores and memory independently, possibly of different GPUs", o.UnscheduledPolicy)
	c.want("unlimited-core-floor", o.UnlimitedCoreFloor >= 1 && o.UnlimitedCoreFloor <= 100, "1 to 100", o.UnlimitedCoreFloor)
	c.want("core-policy", oci.CorePolicy(o.CorePolicy).Known(), "default, force or disable", o.CorePolicy)
	c.want("core-policy", !o.DisableCoreLimit || o.CorePolicy != string(oci.CoreForce), "default or disable with --disable-core-limit", o.CorePolicy)
	c.matches("exempt-namespaces", labelPattern, "names of namespaces", o.ExemptNamespaces...)
	for _, namespace := range o.SwitchNamespaces {
		c.want("disable-control-namespaces", namespace == "*" || labelPattern.MatchString(namespace), "names of namespaces, or *", namespace)
	}
	for _, namespace := range o.PriorityNamespaces {
		c.want("requested-priority-namespaces", namespace == "*" || labelPattern.MatchString(namespace), "names of namespaces, or *", namespace)
	}
	c.matches("high-priority-namespaces", labelPattern, "names of namespaces", o.HighPriorityNamespaces...)
	o.validateAudit(&c)
	c.want("health-address", o.HealthAddress == "" || isAddress(o.HealthAddress), "host:port or nothing", o.HealthAddress)
	for _, id := range o.IMEXChannelIDs {
		n, err := strconv.Atoi(id)
		c.want("imex-channel-ids", err == nil && n >= 0 && n <= oci.MaxIMEXChannel, "numbers from 0 to 2047", id)
	}
	c.want("debug-address", o.DebugAddress == "" || isAddress(o.DebugAddress), "host:port or nothing", o.DebugAddress)
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

// withNRI is false on a host without Kubernetes: gpuslice-runtime makes the claims, and the agent observes.
func (o *options) withNRI() bool { return o.NRISocket != "" }

// namePattern accepts any host name without Kubernetes.
func (o *options) namePattern() *regexp.Regexp {
	if o.withNRI() {
		return subdomainPattern
	}
	return regexp.MustCompile(`.`)
}

// ofEngines takes what gpuslice-runtime uses from the operator's configuration, for options that were not set. The GPUs
// that the agent offers are those that gpuslice-runtime chooses from.
func (o *options) ofEngines(f *pflag.FlagSet, path string) error {
	c, err := request.Load(path)
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"state-dir": c.StateDir, "library-dir": c.LibraryDir, "nvml-library": c.NVMLLibrary, "limiter-mode": c.LimiterMode, "core-policy": c.CorePolicy,
		"device-injection": c.DeviceInjection, "cdi-spec-dirs": strings.Join(c.CDISpecDirs, ","), "device-split-count": strconv.Itoa(c.DeviceSplitCount),
		"device-memory-scaling": strconv.FormatFloat(c.MemoryScaling, 'g', -1, 64), "context-memory-mib": strconv.Itoa(c.ContextMemoryMiB),
	} {
		if f.Changed(name) {
			continue
		}
		if err := f.Set(name, value); err != nil {
			return fmt.Errorf("%s: %s: %w", path, name, err)
		}
	}
	return nil
}

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
		Memory:                 oci.MemoryEnforcement(o.Memory),
		RequireNative:          o.NeedNative,
	}
	if o.DisableCoreLimit {
		s.CorePolicy = oci.CoreDisable
	}
	return s
}

type checks struct{ errs []error }

func (c *checks) want(flag string, ok bool, want string, got any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("--%s: must be %s, not %q", flag, want, fmt.Sprint(got)))
	}
}

func (c *checks) absolute(flag string, paths ...string) {
	for _, path := range paths {
		c.want(flag, filepath.IsAbs(path), "an absolute path", path)
	}
}

func (c *checks) matches(flag string, pattern *regexp.Regexp, want string, values ...string) {
	for _, value := range values {
		c.want(flag, pattern.MatchString(value), want, value)
	}
}

func isAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
