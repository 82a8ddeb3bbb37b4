package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/oci/cdispec"
	"github.com/gpuslice/gpuslice/oci/request"
)

// cdiOptions are those of gpuslice cdi generate.
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
		Short: "Write the CDI spec of the operator's slices, or of the driver",
		Long: `Writes the CDI spec of the slices that the operator's config names,
gpuslice.io/slice=NAME, for docker run --device, podman run --device and
nerdctl, with plain runc or crun; or, with --driver, the spec of the driver's
GPUs, nvidia.com/gpu, of which slices are made.

A slice is a fixed share of fixed GPUs, one container's at a time. Each has
limits and usage files in the state directory, which the spec mounts, and hooks
that book the share when a container is created and give it back when it is
gone. A container is refused where the slice is taken, the GPU is full, or its
limits are not in place. A slice that a container has changes when that
container is gone: call this again, or use --watch.

The driver's spec is made by NVIDIA's own generator. Where another file has
nvidia.com/gpu already, that one is used and nothing is written. The spec's
hooks are those of nvidia-cdi-hook, or of gpuslice-runtime where that is not
installed.

What is right already is not written again. The directories are on no disk: call
this at each boot.

Exit status: 0 it is done; 1 it failed, in part or all; 2 the call is wrong.`,
		Example: `  gpuslice cdi generate --driver && gpuslice cdi generate
  gpuslice cdi generate --dry-run
  docker run --device gpuslice.io/slice=small …`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if f := c.Flags().Lookup("state-dir"); f != nil && f.Changed {
				o.stateDir = f.Value.String()
			}
			generate := func(ctx context.Context, out io.Writer) error { return o.slices(ctx, out) }
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
	f.BoolVar(&o.driver, "driver", false, "write the driver's spec, nvidia.com/gpu, in place of the slices'")
	f.StringVar(&o.config, "config", request.DefaultPath, "the operator's config `file`")
	f.StringVar(&o.output, "output-dir", "/var/run/cdi", "the `directory` of CDI specs to write to")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the spec and change nothing")
	f.BoolVar(&o.watch, "watch", false, "go on, and write the spec again when the driver, the GPUs or the config change")
	f.DurationVar(&o.interval, "interval", 10*time.Second, "how often --watch looks, a `duration`")
	f.StringVar(&o.runtime, "runtime", "", "the `path` of gpuslice-runtime; if empty it is beside this program")
	f.StringVar(&o.hookPath, "hook-path", "", "with --driver, the `path` of NVIDIA's nvidia-cdi-hook or nvidia-ctk; if empty it is looked for")
	f.StringVar(&o.driverRoot, "driver-root", "/", "with --driver, the `directory` that the driver is installed in")
	f.StringVar(&o.devRoot, "dev-root", "", "with --driver, the `directory` whose dev has the driver's nodes; if empty that of --driver-root")
	return c
}

// check reports options that can't be.
func (o *cdiOptions) check() error {
	var errs []error
	absolute := func(flag, path string, optional bool) {
		if !filepath.IsAbs(path) && !(optional && path == "") {
			errs = append(errs, fmt.Errorf("--%s: want an absolute path, not %q", flag, path))
		}
	}
	absolute("config", o.config, false)
	absolute("output-dir", o.output, false)
	absolute("runtime", o.runtime, true)
	absolute("hook-path", o.hookPath, true)
	absolute("driver-root", o.driverRoot, false)
	absolute("dev-root", o.devRoot, true)
	if o.watch && o.dryRun {
		errs = append(errs, errors.New("--watch and --dry-run don't go together"))
	}
	if o.interval < time.Second {
		errs = append(errs, fmt.Errorf("--interval: want 1s or more, not %v", o.interval))
	}
	return errors.Join(errs...)
}

// watch generates again and again until the context ends. What it says is printed when it
// is something new.
func watch(ctx context.Context, interval time.Duration, generate func(context.Context, io.Writer) error, out, errs io.Writer) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := ""
	for {
		var said strings.Builder
		err := generate(ctx, &said)
		if err != nil {
			fmt.Fprintf(&said, "gpuslice: %v\n", err)
		}
		if now := said.String(); now != last {
			to := out
			if last = now; err != nil {
				to = errs
			}
			if _, err := io.WriteString(to, now); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// wrote says what became of a spec. It says the same whether it was written or right
// already.
func wrote(out io.Writer, path string, devices []string) error {
	_, err := fmt.Fprintf(out, "%s: %s\n", path, strings.Join(devices, " "))
	return err
}

// driverSpec writes the driver's spec.
func (o *cdiOptions) driverSpec(out io.Writer) error {
	config, err := request.Load(o.config)
	if err != nil {
		return err
	}
	write := cdispec.Driver
	if o.dryRun {
		write = cdispec.PreviewDriver
	}
	done, err := write(config.CDISpecDirs, o.output, o.generateDriver)
	if err != nil {
		return err
	}
	if len(done.Others) > 0 {
		_, err := fmt.Fprintf(out, "%s is in %s already, which is used: nothing is written\n", cdispec.DriverKind, strings.Join(done.Others, ", "))
		return err
	}
	if o.dryRun {
		return printSpec(out, done.Spec)
	}
	return wrote(out, done.Path, names(done.Spec))
}
