//go:build linux && cgo

package cli

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
	"time"

	"github.com/spf13/cobra"
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

type cdiOptions struct {
	config     string
	stateDir   string // empty: the config's
	output     string
	driver     bool
	dryRun     bool
	watch      bool
	interval   time.Duration
	runtime    string
	hookPath   string
	driverRoot string
	devRoot    string
}

func cdiCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cdi",
		Short: "Write the node's CDI specs",
	}
	c.AddCommand(cdiGenerateCommand())
	return parent(c)
}

func cdiGenerateCommand() *cobra.Command {
	var o cdiOptions
	c := &cobra.Command{
		Use:   "generate",
		Short: "Write the CDI spec of slices, or of the driver",
		Long: `Writes the CDI spec of the slices in the config file, gpuslice.io/slice=NAME,
for docker run --device, podman run --device and nerdctl, with plain runc or
crun; or, with --driver, the spec of the driver's GPUs, nvidia.com/gpu, which
slices use.

A slice is a fixed share of fixed GPUs, for one container at a time. Its limits
and usage files are in the state directory. The spec mounts them, and has hooks
that reserve the share when a container is created and release it when the
container is gone. A container is refused if the slice is in use, the GPU is
full, or the limits are not in place. A slice in use changes when its container
is gone: run this again, or use --watch.

NVIDIA's own generator makes the driver's spec. If another file has
nvidia.com/gpu, that file is used and nothing is written. The hooks of the spec
are those of nvidia-cdi-hook, or of gpuslice-runtime if that is not installed.

Files that are up to date are not written again. The directories are not on
disk: run this after each boot.

Exit status: 0 success; 1 failure, in part or all; 2 invalid usage.`,
		Example: `  gpuslice cdi generate --driver && gpuslice cdi generate
  gpuslice cdi generate --dry-run
  docker run --device gpuslice.io/slice=small …`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(c); err != nil {
				return err
			}
			if c.Flags().Changed("state-dir") {
				o.stateDir = stateDir(c)
			}
			generate := o.slices
			if o.driver {
				generate = func(_ context.Context, out io.Writer) error { return o.driverSpec(out) }
			}
			if o.watch {
				return work(watch(c.Context(), o.interval, generate, c.OutOrStdout(), c.ErrOrStderr()))
			}
			return work(generate(c.Context(), c.OutOrStdout()))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&o.driver, "driver", false, "Write the driver's spec, nvidia.com/gpu, instead of the slices'.")
	f.StringVar(&o.config, "config", api.RuntimeConfig, "Read slices from the config `FILE`.")
	f.StringVar(&o.output, "output-dir", "/var/run/cdi", "Write to the directory `DIR` of CDI specs.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Print the spec, and change nothing.")
	f.BoolVar(&o.watch, "watch", false, "Keep running, and update the spec when the driver, the GPUs or the config change.")
	f.DurationVar(&o.interval, "interval", 10*time.Second, "With --watch, check after `TIME`.")
	f.StringVar(&o.runtime, "runtime", "", "`PATH` of gpuslice-runtime; default: beside this program.")
	f.StringVar(&o.hookPath, "hook-path", "", "With --driver, `PATH` of NVIDIA's nvidia-cdi-hook or nvidia-ctk; default: from PATH.")
	f.StringVar(&o.driverRoot, "driver-root", "/", "With --driver, the root directory `DIR` of the driver.")
	f.StringVar(&o.devRoot, "dev-root", "", "With --driver, the directory `DIR` above dev with the driver's device nodes; default: --driver-root.")
	return c
}

func (o *cdiOptions) check(c *cobra.Command) error {
	errs := []error{absolute(c, []string{"runtime", "hook-path", "dev-root"}, "config", "output-dir", "driver-root")}
	if o.watch && o.dryRun {
		errs = append(errs, errors.New("--watch and --dry-run exclude each other: remove one"))
	}
	if o.interval < time.Second {
		errs = append(errs, fmt.Errorf("--interval: %v is too short: use 1s or more", o.interval))
	}
	return errors.Join(errs...)
}

func wrote(out io.Writer, path string, devices []string) error {
	_, err := fmt.Fprintf(out, "%s: %s\n", path, strings.Join(devices, " "))
	return err
}

func (o *cdiOptions) driverSpec(out io.Writer) error {
	config, err := request.Load(o.config)
	if err != nil {
		return err
	}
	done, err := specs.Driver(config.CDISpecDirs, o.output, o.dryRun, o.generateDriver)
	if err != nil {
		return err
	}
	if len(done.Others) > 0 {
		_, err := fmt.Fprintf(out, "%s is in %s, nothing is written\n", api.CDIKindDriver, strings.Join(done.Others, ", "))
		return err
	}
	if o.dryRun {
		return printSpec(out, done.Spec)
	}
	return wrote(out, done.Path, names(done.Spec))
}

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
	done, err := specs.Slices(ctx, config, n, o.output, o.dryRun)
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
		Memory: oci.MemoryEnforcement(config.MemoryEnforcement), RequireNative: config.RequireNative,
		NoNative:         errors.New("a slice has the limiter only: use docker's and podman's runtime gpuslice, or set memoryEnforcement to limiter or auto"),
		Oversubscription: gpus.Oversubscription, ContextMiB: gpus.ContextMiB, Unmeasured: true,
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
