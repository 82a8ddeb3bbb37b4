package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/hostinstall"
	"github.com/gpuslice/gpuslice/install"
)

func installCommand() *cobra.Command {
	var o hostinstall.Options
	c := &cobra.Command{
		Use:   "install docker|containerd|podman",
		Short: "Add gpuslice's runtime to a container engine's configuration",
		Long: `Adds gpuslice's runtime to a container engine's configuration, and copies the
limiter's libraries to their directory:

  docker      the runtime "gpuslice" in /etc/docker/daemon.json
  containerd  the runtime handler "gpuslice" in /etc/containerd/config.toml
              (version 2 or newer), or in a separate file if version 3
              imports a directory; what NRI needs for gpuslice-agent (see
              "gpuslice doctor"); and gpuslice-runtime in front of NVIDIA's
              runtime in each handler that runs it, so that a pod without a
              grant gets no GPU, also while the agent does not run
  podman      the runtime "gpuslice" in containers.conf.d, and the hooks for
              containers of other runtimes

Other settings, comments and layout stay. A file that cannot be parsed is not
changed. The old version of a changed file is FILE.gpuslice-backup-<hash>. The
file is replaced by a rename and read again, and restored if it is not as
intended. A second installation changes nothing. The record of the changes in
/var/lib/gpuslice/install is for "gpuslice uninstall".

Exit status: 0 success; 1 failure; 2 invalid usage.`,
		Example: `  gpuslice install docker --dry-run
  gpuslice install docker && systemctl reload docker
  gpuslice install containerd --config /etc/containerd/config.toml`,
	}
	engineCommand(c, &o, hostinstall.Install)
	f := c.Flags()
	f.BoolVar(&o.SetDefault, "set-default", false, "Make it the engine's default runtime.")
	f.BoolVar(&o.Hooks, "hooks", true, "podman: install the hooks, too.")
	f.StringVar(&o.From, "from", "", "Copy the programs and libraries from the directory `DIR` (build, or a release).")
	f.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", []string{"gpuslice-system"}, "containerd: in `NAMESPACES`, pods may use whole GPUs without a grant; include the agent's namespace.")
	f.StringVar(&o.StateDir, "state-dir", "/run/gpuslice", "containerd: the agent keeps its state in the directory `DIR`.")
	f.BoolVar(&o.RequireAgent, "require-agent", false, "containerd: start no pod while the agent is not connected, except pods with the annotation gpuslice.io/tolerate-missing-plugins.")
	f.BoolVar(&o.RequireNvidia, "require-nvidia", false, "containerd: fail if no runtime handler runs NVIDIA's container runtime.")
	f.StringVar(&o.Library, "library", "/usr/lib/gpuslice/libvgpu.so", "Install the limiter from `FILE`.")
	return c
}

func uninstallCommand() *cobra.Command {
	var o hostinstall.Options
	c := &cobra.Command{
		Use:   "uninstall docker|containerd|podman",
		Short: "Remove gpuslice's runtime from a container engine's configuration",
		Long: `Removes from a container engine's configuration what "gpuslice install" added.
A changed setting gets its old value. A setting that was changed again since is
kept, and printed. A file that install created is deleted if nothing else is in
it. Without the record in /var/lib/gpuslice/install, entries named gpuslice are
removed.

The programs and the limiter's libraries stay: running containers need them.

Exit status: 0 success; 1 failure; 2 invalid usage.`,
	}
	engineCommand(c, &o, hostinstall.Uninstall)
	return c
}

// engineCommand completes a command with the name of a container engine as its argument.
func engineCommand(c *cobra.Command, o *hostinstall.Options, run func(context.Context, hostinstall.Options, io.Writer) error) {
	c.Args, c.ValidArgs = cobra.ExactArgs(1), hostinstall.Engines()
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if o.HookFiles, err = prepared(c, o, args[0]); err != nil {
			return err
		}
		return work(run(c.Context(), *o, c.OutOrStdout()))
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&o.DryRun, "dry-run", false, "Show the changes as a unified diff without making them.")
	f.StringVar(&o.Config, "config", "", "Configuration `FILE` of the engine, if it is not the default.")
	f.StringVar(&o.RuntimePath, "runtime-path", "/usr/bin/gpuslice-runtime", "`PATH` of the runtime.")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "Install the limiter to the directory `DIR`; not on a noexec mount.")
	f.StringVar(&o.ContainerdVersion, "containerd-version", "", "`VERSION` of containerd, if it does not run.")
	f.StringVar(&o.Root, "root", "/", "Root directory `DIR` of the host; the other paths are inside it.")
}

func prepared(c *cobra.Command, o *hostinstall.Options, engine string) (fs.FS, error) {
	if o.Engine = engine; !slices.Contains(hostinstall.Engines(), engine) {
		return nil, fmt.Errorf("unknown engine %q: use %s", engine, oneOf(hostinstall.Engines()))
	}
	if err := absolute(c, []string{"config", "state-dir"}, "runtime-path", "library-dir"); err != nil {
		return nil, err
	}
	return install.Hooks()
}
