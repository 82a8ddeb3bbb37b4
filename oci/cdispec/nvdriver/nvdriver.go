// Package nvdriver makes the CDI spec of NVIDIA's driver, nvidia.com/gpu, by NVIDIA's
// own generator (package nvcdi of the container toolkit): which device nodes, libraries
// and programs a container needs for a GPU is NVIDIA's knowledge and changes with the
// driver.
//
// It is a room of its own, for nvcdi needs cgo and brings much with it: only who
// generates such a spec carries that. Where the toolkit's hook program isn't installed
// the spec names gpuslice-runtime's hooks of the same names (package cdihook) and leaves
// out those that it hasn't. It imports nothing else of ours.
//
// On the simulated driver it makes the same spec as on a real one, but for MIG devices:
// of these it asks the kernel module by /proc/driver/nvidia-caps/mig-minors, which is
// the host's whatever Root says, and NVML for their instances' profiles, which the
// simulated NVML doesn't have.
package nvdriver

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// nvidiaHook is the name of NVIDIA's hook program, which the generator is told of in
// place of ours: it knows the arguments of none but its own.
const nvidiaHook = "/usr/bin/nvidia-cdi-hook"

// Options say of which driver the spec is.
type Options struct {
	// Root is where the driver's files are; empty is the host's root.
	Root string
	// DevRoot is the directory that has the driver's dev; empty is Root.
	DevRoot string
	// NVML is the driver's library; nil is the one in Root.
	NVML nvml.Interface
	// HookPath is the program of the spec's hooks on the host: NVIDIA's nvidia-cdi-hook
	// (or nvidia-ctk), or gpuslice-runtime.
	HookPath string
	// Hooks are the hooks that HookPath knows; none where it is NVIDIA's, which knows all.
	Hooks []string
	// Log is told what the generator finds and misses; nil is silence.
	Log *slog.Logger
}

// Generate makes the spec of every GPU and MIG device, named by UUID and by index
// (0, and 0:1 of a MIG device), and "all". Its version is left to who writes it.
func Generate(o Options) (*cdispec.Spec, error) {
	if !filepath.IsAbs(o.HookPath) {
		return nil, fmt.Errorf("the hook program %q is not an absolute path", o.HookPath)
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
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
		nvcdi.WithLogger(logger{log}),
		nvcdi.WithDriverRoot(orRoot(o.Root)),
		nvcdi.WithDevRoot(orRoot(o.DevRoot, o.Root)),
		nvcdi.WithDeviceNamers(namers...),
		nvcdi.WithMergedDeviceOptions(transform.WithName("all"), transform.WithSkipIfExists(true)),
		nvcdi.WithNVIDIACDIHookPath(hookPath),
		// A library that not every driver has, and that says nothing that NVML doesn't.
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
		return nil, errors.New("the driver has no GPU that can be used: see nvidia-smi")
	}
	if ours {
		nameOurs(raw, o.HookPath, o.Hooks)
	}
	return raw, nil
}

// namersOf name a GPU in several ways.
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

// hookEnv is the environment of our hooks. It must not be empty: runc has a hook without
// one run with the variables of the container, which are its image's.
const hookEnv = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// nameOurs puts our program in the place of NVIDIA's in every hook that it knows, and
// takes the other hooks out.
func nameOurs(spec *cdispec.Spec, program string, known []string) {
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

// orRoot is the first path that is set, or the root.
func orRoot(paths ...string) string {
	for _, path := range paths {
		if path != "" {
			return path
		}
	}
	return "/"
}

// logger is the generator's logger. What it warns of is often no fault (programs and
// libraries that a driver needn't have), so that it is told as information.
type logger struct{ log *slog.Logger }

func (l logger) Debugf(format string, args ...any)   { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Tracef(format string, args ...any)   { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Warningf(format string, args ...any) { l.log.Info(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any)   { l.log.Warn(fmt.Sprintf(format, args...)) }
