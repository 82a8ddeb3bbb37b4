package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/cdihook"
	specs "github.com/gpuslice/gpuslice/oci/cdispec"
	"github.com/gpuslice/gpuslice/oci/cdispec/nvdriver"
	"github.com/gpuslice/gpuslice/oci/request"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
	"github.com/gpuslice/gpuslice/oci/slice"
)

var nvidiaHooks = []string{"nvidia-cdi-hook", "nvidia-ctk"}

func (o *cdiOptions) generateDriver() (*cdispec.Spec, error) {
	g := nvdriver.Options{Root: o.driverRoot, DevRoot: o.devRoot, HookPath: o.hookPath}
	for _, program := range nvidiaHooks {
		if path, err := exec.LookPath(program); err == nil && g.HookPath == "" {
			g.HookPath = path
		}
	}
	if g.HookPath == "" {
		program, err := o.runtimePath()
		if err != nil {
			return nil, err
		}
		g.HookPath, g.Hooks = program, cdihook.Supported
	}
	return nvdriver.Generate(g)
}

// runtimePath returns the path of gpuslice-runtime. It must exist: containers with a missing hook are refused.
func (o *cdiOptions) runtimePath() (string, error) {
	path := o.runtime
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program: %w: set --runtime", err)
		}
		path = filepath.Join(filepath.Dir(self), "gpuslice-runtime")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find the program of the hooks: %w: install gpuslice-runtime beside gpuslice, or set --runtime", err)
	}
	return path, nil
}

func (o *cdiOptions) slices(ctx context.Context, out io.Writer) error {
	config, err := request.Load(o.config)
	if err != nil {
		return err
	}
	if o.stateDir != "" {
		config.StateDir = o.stateDir
	}
	n, indices, err := o.node(ctx, config)
	if err != nil {
		return err
	}
	config.Indices = indices
	write := specs.Slices
	if o.dryRun {
		write = specs.Preview
	}
	done, err := write(ctx, config, n, o.output)
	if o.dryRun && done.Spec != nil && len(done.Spec.Devices) > 0 {
		err = errors.Join(err, printSpec(out, done.Spec))
	} else {
		err = errors.Join(err, wrote(out, done.Path, sliceDevices(done.Slices)))
	}
	note := "" // the output stays valid YAML
	if o.dryRun {
		note = "# "
	}
	if len(done.InUse) > 0 {
		fmt.Fprintf(out, "%sin use, unchanged until the container is gone: %s\n", note, strings.Join(done.InUse, " "))
	}
	if len(done.Leaving) > 0 {
		fmt.Fprintf(out, "%sin use, removed when the container is gone: %s\n", note, strings.Join(done.Leaving, " "))
	}
	return err
}

func sliceDevices(made []slice.Slice) []string {
	var devices []string
	for _, s := range made {
		devices = append(devices, api.CDIKindSlice+"="+s.Name)
	}
	if len(devices) == 0 {
		devices = []string{"no slices"}
	}
	return devices
}

func (o *cdiOptions) node(ctx context.Context, config request.Config) (specs.Node, map[string]string, error) {
	program, err := o.runtimePath()
	if err != nil {
		return specs.Node{}, nil, err
	}
	inventory := ociruntime.NewInventory(config, program)
	inventory.Query = func(context.Context) ([]byte, error) { // gpuslice gpus, in this process
		var gpus bytes.Buffer
		err := printGPUs(&gpus, gpusOptions{library: config.NVMLLibrary, sharing: node.Sharing{
			Cores: 1, MIG: nvidia.MIGMixed, Replicas: config.DeviceSplitCount, Memory: config.MemoryScaling,
		}})
		return gpus.Bytes(), err
	}
	gpus, err := inventory.GPUs(ctx)
	if err != nil {
		return specs.Node{}, nil, err
	}
	settings, err := sliceSettings(config, gpus, program)
	if err != nil {
		return specs.Node{}, nil, err
	}
	registry, err := oci.NewRegistry(oci.RegistryConfig{Dirs: append(config.CDISpecDirs[:len(config.CDISpecDirs):len(config.CDISpecDirs)], o.output)})
	if err != nil {
		return specs.Node{}, nil, err
	}
	return specs.Node{
		StateDir: config.StateDir, Program: program, GPUs: gpus.Capacity, Settings: settings, Devices: registry,
	}, gpus.Indices, nil
}

func sliceSettings(config request.Config, gpus ociruntime.GPUs, program string) (oci.Settings, error) {
	limiter, err := ociruntime.FindLimiter(config, program)
	if err != nil {
		return oci.Settings{}, err
	}
	s := oci.Settings{
		Injection: oci.InjectCDI, LibraryPath: limiter.Library, PreloadPath: limiter.Preload, Stubs: limiter.Fronts,
		CorePolicy: oci.CorePolicy(config.CorePolicy), LimiterMode: oci.LimiterMode(config.LimiterMode), Graphics: config.Graphics,
		Oversubscription: gpus.Oversubscription, ContextMiB: gpus.ContextMiB,
	}
	if config.ContextMemoryMiB >= 0 {
		s.ContextMiB = map[string]int64{}
		for uuid := range gpus.Capacity {
			s.ContextMiB[uuid] = int64(config.ContextMemoryMiB)
		}
	}
	return s, nil
}

func printSpec(out io.Writer, spec *cdispec.Spec) error {
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return err
	}
	spec.Version = version
	data, err := specs.Encode(spec)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

func names(spec *cdispec.Spec) []string {
	var all []string
	for _, d := range spec.Devices {
		all = append(all, spec.Kind+"="+d.Name)
	}
	return all
}
