package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/oci"
)

// options are the agent's flags.
type options struct {
	ConfigFile string
	NodeName   string
	StateDir   string
	LibraryDir string
	Library    string

	NRISocket          string
	PodResourcesSocket string
	NVMLLibrary        string
	InventoryInterval  time.Duration

	DeviceInjection        string
	CDISpecDirs            []string
	NvidiaRuntimeHandlers  []string
	DefaultRuntimeIsNvidia bool

	ResourceNames       []string
	SplitCount          int
	MemoryScaling       float64
	CoresScaling        float64
	DisableCoreLimit    bool
	ExemptNamespaces    []string
	LimiterLogLevel     string
	HealthAddress       string
	LogLevel, LogFormat string
}

// aliases are variables that HAMi's manifests set.
var aliases = config.Aliases{
	"node-name":          {"NODE_NAME", "NodeName"},
	"device-split-count": {"DEVICE_SPLIT_COUNT"},
}

func (o *options) bind(f *pflag.FlagSet) {
	host, _ := os.Hostname()
	f.StringVar(&o.ConfigFile, "config", "", "YAML file with these options by name; the command line and the environment win over it")
	f.StringVar(&o.NodeName, "node-name", host, "this node's name, as grants name it")
	f.StringVar(&o.StateDir, "state-dir", "/run/gpuslice", "folder of the ledger and of the containers' limits and usage files; should be a tmpfs")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "folder that the limiter is installed to; not on a noexec mount")
	f.StringVar(&o.Library, "library", "/usr/lib/gpuslice/libvgpu.so", "the limiter to install")

	f.StringVar(&o.NRISocket, "nri-socket", "/var/run/nri/nri.sock", "the container runtime's NRI socket")
	f.StringVar(&o.PodResourcesSocket, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources socket, asked for the order of a pod's containers when several have HAMi's positional grants; empty refuses such pods")
	f.StringVar(&o.NVMLLibrary, "nvml-library", "libnvidia-ml.so.1", "the driver's management library")
	f.DurationVar(&o.InventoryInterval, "inventory-interval", 30*time.Second, "time between two looks at the cards")

	f.StringVar(&o.DeviceInjection, "device-injection", string(oci.InjectAuto), "how a container gets its cards: cdi (by the nvidia.com/gpu CDI spec), envvar (by the nvidia runtime) or auto")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "folders of CDI specs, later ones first in rank")
	f.StringSliceVar(&o.NvidiaRuntimeHandlers, "nvidia-runtime-handlers", []string{"nvidia"}, "runtime handlers that are nvidia-container-runtime")
	f.BoolVar(&o.DefaultRuntimeIsNvidia, "default-runtime-is-nvidia", false, "the default runtime is nvidia-container-runtime")

	f.StringSliceVar(&o.ResourceNames, "resource-names", []string{"nvidia.com/gpu"}, "extended resources whose devices count as a container's cards")
	f.IntVar(&o.SplitCount, "device-split-count", 10, "containers that may share one card")
	f.Float64Var(&o.MemoryScaling, "device-memory-scaling", 1, "grantable memory as a multiple of the card's; above 1 oversubscribes")
	f.Float64Var(&o.CoresScaling, "device-cores-scaling", 1, "grantable compute time as a multiple of the card's")
	f.BoolVar(&o.DisableCoreLimit, "disable-core-limit", false, "do not enforce shares of compute time")
	f.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", nil, "namespaces whose pods are left alone: they may use whole cards without a grant")
	f.StringVar(&o.LimiterLogLevel, "limiter-log-level", "", "what the limiter logs to a container's stderr, 0 (errors) to 4; empty leaves it to the container")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "address of /healthz and /readyz; empty serves none")
	f.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
}

// validate reports every bad value at once, each with its flag.
func (o *options) validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	if o.NodeName == "" {
		bad("node-name", "is empty and the machine has no host name")
	}
	for flag, path := range map[string]string{"state-dir": o.StateDir, "library-dir": o.LibraryDir, "library": o.Library, "nri-socket": o.NRISocket} {
		if !filepath.IsAbs(path) {
			bad(flag, "want an absolute path, not %q", path)
		}
	}
	if o.PodResourcesSocket != "" && !filepath.IsAbs(o.PodResourcesSocket) {
		bad("pod-resources-socket", "want an absolute path or nothing, not %q", o.PodResourcesSocket)
	}
	for _, dir := range o.CDISpecDirs {
		if !filepath.IsAbs(dir) {
			bad("cdi-spec-dirs", "want absolute paths, not %q", dir)
		}
	}
	if o.InventoryInterval < time.Second {
		bad("inventory-interval", "want at least 1s, not %v", o.InventoryInterval)
	}
	if !slices.Contains([]string{"auto", "cdi", "envvar"}, o.DeviceInjection) {
		bad("device-injection", "want auto, cdi or envvar, not %q", o.DeviceInjection)
	}
	if o.SplitCount < 1 || o.SplitCount > 1000 {
		bad("device-split-count", "want 1 to 1000 containers a card, not %d", o.SplitCount)
	}
	// Written so that NaN fails too.
	if !(o.MemoryScaling >= 0.01 && o.MemoryScaling <= 100) {
		bad("device-memory-scaling", "want 0.01 to 100, not %v", o.MemoryScaling)
	}
	if !(o.CoresScaling >= 0.01 && o.CoresScaling <= 100) {
		bad("device-cores-scaling", "want 0.01 to 100, not %v", o.CoresScaling)
	}
	if len(o.ResourceNames) == 0 {
		bad("resource-names", "want at least one resource")
	}
	if o.LimiterLogLevel != "" && !slices.Contains([]string{"0", "1", "2", "3", "4"}, o.LimiterLogLevel) {
		bad("limiter-log-level", "want 0 to 4 or nothing, not %q", o.LimiterLogLevel)
	}
	if o.HealthAddress != "" {
		if _, _, err := net.SplitHostPort(o.HealthAddress); err != nil {
			bad("health-address", "want host:port, not %q", o.HealthAddress)
		}
	}
	if _, err := o.logger(nil); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// logger makes the log that the options ask for.
func (o *options) logger(w *os.File) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: want debug, info, warn or error, not %q", o.LogLevel)
	}
	handler := &slog.HandlerOptions{Level: level}
	switch o.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, handler)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, handler)), nil
	}
	return nil, fmt.Errorf("--log-format: want text or json, not %q", o.LogFormat)
}

// settings are how containers get their cards.
func (o *options) settings(libraryPath, preloadPath string) oci.Settings {
	s := oci.Settings{
		Injection:              oci.Injection(o.DeviceInjection),
		LibraryPath:            libraryPath,
		PreloadPath:            preloadPath,
		NvidiaHandlers:         o.NvidiaRuntimeHandlers,
		DefaultRuntimeIsNvidia: o.DefaultRuntimeIsNvidia,
		Oversubscribe:          o.MemoryScaling > 1,
		LogLevel:               o.LimiterLogLevel,
	}
	if o.DisableCoreLimit {
		s.CorePolicy = oci.CoreDisable
	}
	return s
}
