//go:build linux && cgo

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/internal/hostinstall"
	"github.com/gpuslice/gpuslice/install"
)

func installCommand() *cobra.Command {
	var (
		o     hostinstall.Options
		agent bool
	)
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

For docker and podman it also installs the unit gpuslice-agent.service, which
--start starts: shares hold without an agent, but nothing audits the GPUs.

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
	engineCommand(c, &o, func(ctx context.Context, o hostinstall.Options, out io.Writer) error {
		if !agent {
			o.AgentUnit = nil
		}
		return hostinstall.Install(ctx, o, out)
	})
	f := c.Flags()
	f.BoolVar(&o.SetDefault, "set-default", false, "Make it the engine's default runtime.")
	f.BoolVar(&o.Hooks, "hooks", true, "podman: install the hooks, too.")
	f.StringVar(&o.From, "from", "", "Copy the programs and libraries from the directory `DIR` (build, or a release).")
	f.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", []string{"gpuslice-system"}, "containerd: in `NAMESPACES`, pods may use whole GPUs without a grant; include the agent's namespace.")
	f.StringVar(&o.StateDir, "state-dir", "/run/gpuslice", "containerd: the agent keeps its state in the directory `DIR`.")
	f.BoolVar(&o.RequireAgent, "require-agent", false, "containerd: start no pod while the agent is not connected, except pods with the annotation gpuslice.io/tolerate-missing-plugins.")
	f.BoolVar(&o.RequireNvidia, "require-nvidia", false, "containerd: fail if no runtime handler runs NVIDIA's container runtime.")
	f.BoolVar(&agent, "agent", true, "docker, podman: install the agent's systemd unit.")
	f.BoolVar(&o.Start, "start", false, "docker, podman: start the agent's unit, too.")
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
	o.AgentUnit = install.AgentUnit
	if _, err := os.Stat("/run/systemd/system"); err == nil && o.Root == "/" {
		o.Systemctl = systemctl
	}
	return install.Hooks()
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

var errUnfit = errors.New("checks failed: fix them as listed above")

func doctorCommand() *cobra.Command {
	var (
		o           doctor.Options
		root        string
		fix, dryRun bool
		out         *output
	)
	c := &cobra.Command{
		Use:   "doctor [kubernetes|docker|podman]...",
		Short: "Check what this node needs, and how to fix what is missing",
		Long: `Checks what this host needs before its GPUs can be shared safely: NVIDIA's
driver and CDI spec, the limiter, the agent's directories and health, and

  kubernetes  the container runtime, its version and configuration (NRI, its
              timeout and validator, runtime handlers), and the kubelet
  docker      /etc/docker/daemon.json, the runtime, /etc/gpuslice/runtime.yaml,
              and other GPU runtimes
  podman      the same, and podman's hooks

Without an argument it examines what it finds: a kubelet, and the engines that
gpuslice is installed for. Nothing is changed without --fix.

The state of a check is "ok", "warn" (it works with less protection, or not for
all pods) or "fail" (it does not work, or GPUs may be used without limits).
Below a warning or a failure is what to do.

--fix makes the changes that are safe, shows each as a diff, and checks again.
It sets what NRI needs in containerd's configuration, which takes effect when
you restart containerd ("gpuslice uninstall containerd" reverts it). It sets the
owner and mode of the state directory, and writes the unit of its tmpfs. All
other checks list steps for you, such as a driver, a reboot or a restart.

Give the options of the agent. In a container, mount the host's root directory
and set --root to it; then no programs are run.

Exit status: 0 no check failed (there can be warnings: -o json has the worst
state); 1 a check failed; 2 wrong options.`,
		Example: `  gpuslice doctor
  gpuslice doctor docker
  gpuslice doctor --fix --dry-run
  gpuslice doctor -o json | jq -r '.checks[] | select(.state != "ok") | .fix[]'
  gpuslice doctor --runtime-socket /run/k3s/containerd/containerd.sock \
    --runtime-config /var/lib/rancher/k3s/agent/etc/containerd/config.toml`,
		ValidArgs: words(doctor.Uses),
		Args:      cobra.OnlyValidArgs,
		RunE: func(c *cobra.Command, args []string) error {
			for _, arg := range args {
				o.Uses = append(o.Uses, doctor.Use(arg))
			}
			if dryRun && !fix {
				return errors.New("--dry-run needs --fix: add it")
			}
			o.StateDir = stateDir(c)
			err := absolute(c, nil, "runtime-socket", "runtime-config", "kubelet-dir", "cdi-spec-dirs", "library-dir", "state-dir", "root")
			if err != nil {
				return err
			}
			machine, err := doctor.NewMachine(root)
			if err != nil {
				return fmt.Errorf("--root: %w: set it to the node's root directory", err)
			}
			defer machine.Close()
			report := doctor.Examine(c.Context(), machine, o)
			var failed error
			if fix {
				failed = repair(c, out, report, hostinstall.RepairOptions{
					Root: root, RuntimeConfig: o.RuntimeConfig, StateDir: o.StateDir, StateMount: install.StateMount, DryRun: dryRun,
				})
				report = doctor.Examine(c.Context(), machine, o)
			}
			if err := out.print(c, report, nil, func(p page) error { return printReport(p, report) }); err != nil {
				return work(err)
			}
			if report.State == doctor.Fail {
				return work(errors.Join(failed, errUnfit))
			}
			return work(failed)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&fix, "fix", false, "Make the safe changes, and show each.")
	f.BoolVar(&dryRun, "dry-run", false, "With --fix: show the changes without making them.")
	out = outputFlag(c, thisNode{}, false, formTable)
	f.StringVar(&o.RuntimeSocket, "runtime-socket", "/run/containerd/containerd.sock", "CRI `SOCKET` of the container runtime.")
	f.StringVar(&o.RuntimeConfig, "runtime-config", "/etc/containerd/config.toml", "Configuration `FILE` of containerd.")
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "Directory `DIR` of the kubelet.")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "Directories `DIRS` of CDI specs.")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "Directory `DIR` of the installed limiter.")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "`HOST:PORT` of the agent's /readyz; empty: no request.")
	f.StringVar(&root, "root", "/", "Root directory `DIR` of the node.")
	return c
}

func words[T ~string](of []T) (all []string) {
	for _, w := range of {
		all = append(all, string(w))
	}
	return all
}

func printReport(p page, report doctor.Report) error {
	if err := report.Print(p, p.Style); err != nil {
		return err
	}
	if n := len(report.Repairs()); n > 0 {
		_, err := fmt.Fprintln(p, "Run gpuslice doctor --fix to fix some of it; it shows each change.")
		return err
	}
	return nil
}

// repair makes the safe changes. It prints them on standard error if the report is for programs.
func repair(c *cobra.Command, out *output, report doctor.Report, o hostinstall.RepairOptions) error {
	w := c.OutOrStdout()
	if out.forPrograms() {
		w = c.ErrOrStderr()
	}
	var errs []error
	for _, r := range report.Repairs() {
		var of []string
		for _, result := range report.Results {
			if slices.Contains(result.Repairs, r) {
				of = append(of, result.Check)
			}
		}
		fmt.Fprintf(w, "fix of %s:\n", strings.Join(of, ", "))
		if err := hostinstall.Repair(c.Context(), r, o, w); err != nil {
			fmt.Fprintf(w, "not done: %v\n", err)
			errs = append(errs, fmt.Errorf("fix of %s: %w", strings.Join(of, ", "), err))
		}
		fmt.Fprintln(w)
	}
	if len(report.Repairs()) == 0 {
		fmt.Fprint(w, "no automatic fix: follow the steps of each check\n\n")
	}
	return errors.Join(errs...)
}
