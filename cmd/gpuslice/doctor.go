package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/internal/hostinstall"
	"github.com/gpuslice/gpuslice/install"
)

var errUnfit = errors.New("checks failed: fix them as listed above")

func doctorCommand() *cobra.Command {
	var (
		o           doctor.Options
		root        string
		fix, dryRun bool
		out         *output
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this node needs, and how to fix what is missing",
		Long: `Checks what this node needs before its GPUs can be shared safely: the container
runtime, its version and configuration (NRI, its timeout and validator, runtime
handlers), cgroups, the kubelet, NVIDIA's driver and CDI spec, and the agent's
directories and health. Nothing is changed without --fix.

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
  gpuslice doctor --fix --dry-run
  gpuslice doctor -o json | jq -r '.checks[] | select(.state != "ok") | .fix[]'
  gpuslice doctor --runtime-socket /run/k3s/containerd/containerd.sock \
    --runtime-config /var/lib/rancher/k3s/agent/etc/containerd/config.toml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
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
	out = outputFlag(c, false, formTable)
	f.StringVar(&o.RuntimeSocket, "runtime-socket", "/run/containerd/containerd.sock", "CRI `SOCKET` of the container runtime.")
	f.StringVar(&o.RuntimeConfig, "runtime-config", "/etc/containerd/config.toml", "Configuration `FILE` of containerd.")
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "Directory `DIR` of the kubelet.")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "Directories `DIRS` of CDI specs.")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "Directory `DIR` of the installed limiter.")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "`HOST:PORT` of the agent's /readyz; empty: no request.")
	f.StringVar(&root, "root", "/", "Root directory `DIR` of the node.")
	return c
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
