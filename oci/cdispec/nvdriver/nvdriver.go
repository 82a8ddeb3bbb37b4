// Package nvdriver generates the CDI spec nvidia.com/gpu with NVIDIA's generator nvcdi, which needs cgo.
// Without NVIDIA's hook program the spec uses package cdihook. It can't generate MIG devices of the simulated
// driver.
package nvdriver

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

// nvidiaHook is passed to the generator instead of our program, because it supports only NVIDIA's.
const nvidiaHook = "/usr/bin/nvidia-cdi-hook"

type Options struct {
	// Root has the driver's files. The default is the host's root.
	Root string
	// DevRoot has the driver's dev directory. The default is Root.
	DevRoot string
	// NVML is the driver's library. The default is the one in Root.
	NVML nvml.Interface
	// HookPath is the program of the hooks: nvidia-cdi-hook, nvidia-ctk or gpuslice-runtime.
	HookPath string
	// Hooks are the hooks of gpuslice-runtime; none if HookPath is NVIDIA's.
	Hooks []string
	// Log is optional.
	Log *slog.Logger
}

// Generate returns the spec of every GPU and MIG device by UUID and by index (0, and 0:1 for a MIG
// device), and "all". It does not set the version.
func Generate(o Options) (*cdispec.Spec, error) {
	if !filepath.IsAbs(o.HookPath) {
		return nil, fmt.Errorf("the hook program %q is not an absolute path", o.HookPath)
	}
	namers, err := namersOf(nvcdi.DeviceNameStrategyUUID, nvcdi.DeviceNameStrategyIndex)
	if err != nil {
		return nil, err
	}
	ours := len(o.Hooks) > 0
	hookPath := o.HookPath
	if ours {
		hookPath = nvidiaHook
	}
	options := []nvcdi.Option{
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(logger{cmp.Or(o.Log, slog.New(slog.DiscardHandler))}),
		nvcdi.WithDriverRoot(cmp.Or(o.Root, "/")),
		nvcdi.WithDevRoot(cmp.Or(o.DevRoot, o.Root, "/")),
		nvcdi.WithDeviceNamers(namers...),
		nvcdi.WithMergedDeviceOptions(transform.WithName("all"), transform.WithSkipIfExists(true)),
		nvcdi.WithNVIDIACDIHookPath(hookPath),
		// A library that not every driver has.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	}
	if o.NVML != nil {
		options = append(options, nvcdi.WithNvmlLib(o.NVML))
	}

	lib, err := nvcdi.New(options...)
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's CDI generator: %w", err)
	}
	spec, err := lib.GetSpec()
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's CDI generator: %w", err)
	}
	raw := spec.Raw()
	if len(raw.Devices) == 0 {
		return nil, errors.New("the driver has no usable GPU: run nvidia-smi")
	}
	for i := range raw.Devices {
		// Only GPUs in MIG mode without MIG devices: CDI rejects a spec with a device without edits, and that spec has the driver's
		// files for MIG devices that are made later.
		if edits := &raw.Devices[i].ContainerEdits; reflect.ValueOf(*edits).IsZero() {
			edits.Env = []string{api.EnvVisibleDevices + "=void"}
		}
	}
	if ours {
		useOwnHooks(raw, o.HookPath, o.Hooks)
	}
	return raw, nil
}

func namersOf(strategies ...string) ([]nvcdi.DeviceNamer, error) {
	var namers []nvcdi.DeviceNamer
	for _, strategy := range strategies {
		namer, err := nvcdi.NewDeviceNamer(strategy)
		if err != nil {
			return nil, fmt.Errorf("name GPUs by %s: %w", strategy, err)
		}
		namers = append(namers, namer)
	}
	return namers, nil
}

// hookEnv must not be empty: runc runs a hook without an environment with the variables of the
// container, which the image sets.
const hookEnv = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// useOwnHooks replaces NVIDIA's program with ours in every supported hook, and removes the others.
func useOwnHooks(spec *cdispec.Spec, program string, known []string) {
	rename := func(edits *cdispec.ContainerEdits) {
		edits.Hooks = slices.DeleteFunc(edits.Hooks, func(h *cdispec.Hook) bool {
			return h.Path == nvidiaHook && (len(h.Args) < 2 || !slices.Contains(known, h.Args[1]))
		})
		for _, h := range edits.Hooks {
			if h.Path == nvidiaHook {
				h.Path = program
				h.Args = append([]string{filepath.Base(program), "cdi-hook"}, h.Args[1:]...)
				h.Env = []string{hookEnv}
			}
		}
	}
	rename(&spec.ContainerEdits)
	for i := range spec.Devices {
		rename(&spec.Devices[i].ContainerEdits)
	}
}

type logger struct{ log *slog.Logger }

func (l logger) Debugf(format string, args ...any)   { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Tracef(format string, args ...any)   { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Warningf(format string, args ...any) { l.log.Info(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any)   { l.log.Warn(fmt.Sprintf(format, args...)) }
