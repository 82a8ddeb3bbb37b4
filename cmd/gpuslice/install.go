package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuslice/gpuslice/cmd/internal/hostinstall"
	"github.com/gpuslice/gpuslice/install"
)

func installCommand() *cobra.Command {
	var o hostinstall.Options
	c := &cobra.Command{
		Use:   "install docker|containerd|podman",
		Short: "Put gpuslice's runtime into a container engine's configuration",
		Long: `Puts gpuslice's runtime into a container engine's configuration, and the
limiter's libraries into their directory:

  docker      the runtime "gpuslice" in /etc/docker/daemon.json
  containerd  the runtime handler "gpuslice" in /etc/containerd/config.toml
              (version 2 or newer), or in a file of its own where version 3
              imports a directory; what NRI needs for gpuslice-agent (see
              "gpuslice doctor"); and gpuslice-runtime in front of NVIDIA's
              runtime in each handler that runs it, so that a pod without a
              grant gets no GPU there, whether the agent runs or not
  podman      the runtime "gpuslice" in containers.conf.d, and the hooks for
              containers of other runtimes

Other settings, comments and layout stay as they are, and a file that can't be
parsed is left alone. A file that is changed is kept beside itself, as
FILE.gpuslice-backup-<hash>, and is changed by a rename; it is read again then,
and put back as it was if it doesn't say what was meant. To install again
changes nothing. What was changed is recorded in /var/lib/gpuslice/install, by
which "gpuslice uninstall" takes it out again.

Exit status: 0 it is installed; 1 it could not be; 2 the call is wrong.`,
		Example: `  gpuslice install docker --dry-run
  gpuslice install docker && systemctl reload docker
  gpuslice install containerd --config /etc/containerd/config.toml`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if o.HookFiles, err = prepared(&o, args[0]); err != nil {
				return err
			}
			return work(hostinstall.Install(c.Context(), o, c.OutOrStdout()))
		},
		ValidArgs: hostinstall.Engines(),
	}
	f := c.Flags()
	f.SortFlags = false
	hostFlags(f, &o)
	f.BoolVar(&o.SetDefault, "set-default", false, "make it the engine's default runtime")
	f.BoolVar(&o.Hooks, "hooks", true, "podman: install the hooks too")
	f.StringVar(&o.From, "from", "", "copy the programs and libraries from this `directory` (build, or a release)")
	f.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", []string{"gpuslice-system"}, "containerd: Kubernetes `namespaces` in which pods may use whole GPUs without a grant; the agent's namespace must be one")
	f.StringVar(&o.StateDir, "state-dir", "/run/gpuslice", "containerd: the agent's state `directory`")
	f.BoolVar(&o.RequireAgent, "require-agent", false, "containerd: start no pod while the agent is not connected, except pods with the annotation gpuslice.io/tolerate-missing-plugins")
	f.BoolVar(&o.RequireNvidia, "require-nvidia", false, "containerd: fail if no runtime handler runs NVIDIA's container runtime")
	f.StringVar(&o.Library, "library", "/usr/lib/gpuslice/libvgpu.so", "the limiter's `file`, to be installed")
	return c
}

func uninstallCommand() *cobra.Command {
	var o hostinstall.Options
	c := &cobra.Command{
		Use:   "uninstall docker|containerd|podman",
		Short: "Take gpuslice's runtime out of a container engine's configuration",
		Long: `Takes out of a container engine's configuration what "gpuslice install" put in.
A setting that it had changed gets its old value. One that somebody has changed
since is left, and named. A file that it had made goes if nothing else is in it.
Without the record in /var/lib/gpuslice/install, what has gpuslice's name goes.

The programs and the limiter's libraries stay: containers that run need them.

Exit status: 0 it is done; 1 it could not be; 2 the call is wrong.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if o.HookFiles, err = prepared(&o, args[0]); err != nil {
				return err
			}
			return work(hostinstall.Uninstall(c.Context(), o, c.OutOrStdout()))
		},
		ValidArgs: hostinstall.Engines(),
	}
	c.Flags().SortFlags = false
	hostFlags(c.Flags(), &o)
	return c
}

// hostFlags are those that both commands have.
func hostFlags(f *pflag.FlagSet, o *hostinstall.Options) {
	f.BoolVar(&o.DryRun, "dry-run", false, "show the changes as a unified diff, and change nothing")
	f.StringVar(&o.Config, "config", "", "the engine's configuration `file`, if it is not the usual one")
	f.StringVar(&o.RuntimePath, "runtime-path", "/usr/bin/gpuslice-runtime", "the runtime's `program`")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "`directory` that the limiter is installed to; not on a noexec mount")
	f.StringVar(&o.ContainerdVersion, "containerd-version", "", "containerd's `version`, where it can't be asked")
	f.StringVar(&o.Root, "root", "/", "the host's root `directory`; the other paths are inside it")
}

// prepared checks the options of a call, and returns the hooks' files.
func prepared(o *hostinstall.Options, engine string) (fs.FS, error) {
	if o.Engine = engine; !slices.Contains(hostinstall.Engines(), engine) {
		return nil, fmt.Errorf("unknown engine %q: want %s", engine, strings.Join(hostinstall.Engines(), ", "))
	}
	for flag, path := range map[string]string{"config": o.Config, "runtime-path": o.RuntimePath, "library-dir": o.LibraryDir, "state-dir": o.StateDir} {
		if path != "" && !filepath.IsAbs(path) || path == "" && flag != "config" && flag != "state-dir" {
			return nil, fmt.Errorf("--%s: want an absolute path, not %q", flag, path)
		}
	}
	return install.Hooks()
}
