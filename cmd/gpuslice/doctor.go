package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/internal/hostinstall"
	"github.com/gpuslice/gpuslice/install"
)

// errUnfit is the error of a node that something is wrong with. The report says what.
var errUnfit = errors.New("this node is not fit yet: fix what failed")

func doctorCommand() *cobra.Command {
	var (
		o           doctor.Options
		root        string
		fix, dryRun bool
		out         *output
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this node needs, and say how to fix what it lacks",
		Long: `Checks what this node needs before its GPUs can be shared safely: the container
runtime, its version and configuration (NRI, its timeout and validator, runtime
handlers), cgroups, the kubelet, NVIDIA's driver and CDI spec, and the agent's
directories and health. Nothing is changed without --fix.

Each check is "ok"; or "warn": it works, with less defence or not for all pods;
or "fail": it does not work, or GPUs may be unguarded. Below the latter two is
what to do.

--fix fixes what can be fixed without a person, shows each change as a diff,
and checks again: it sets what NRI needs in containerd's configuration (read at
containerd's next start, which is left to you; "gpuslice uninstall containerd"
takes it back), sets the owner and mode of the state directory, and writes the
unit of its tmpfs. The rest is left to you, as each check says: it needs a
driver, a reboot, a daemon's restart, or changes what others rely on.

Give the options that the agent was started with. In a container, mount the
host's root directory and set --root to it; programs are not run then.

Exit status: 0 nothing failed (there may be warnings: -o json has the worst
state); 1 a check failed; 2 the call is wrong.`,
		Example: `  gpuslice doctor
  gpuslice doctor --fix --dry-run
  gpuslice doctor -o json | jq -r '.checks[] | select(.state != "ok") | .fix[]'
  gpuslice doctor --runtime-socket /run/k3s/containerd/containerd.sock \
    --runtime-config /var/lib/rancher/k3s/agent/etc/containerd/config.toml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dryRun && !fix {
				return errors.New("--dry-run: of what? it goes with --fix")
			}
			stateDir, err := c.Flags().GetString("state-dir")
			if err != nil {
				return err
			}
			o.StateDir = stateDir
			if err := absolute(o, root); err != nil {
				return err
			}
			machine, err := doctor.NewMachine(root)
			if err != nil {
				return fmt.Errorf("--root: %w", err)
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
			if err := out.print(c, report, func(p page) error { return printReport(p, report) }); err != nil {
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
	f.BoolVar(&fix, "fix", false, "fix what can be fixed without a person, and show each change")
	f.BoolVar(&dryRun, "dry-run", false, "with --fix: show the changes, and change nothing")
	out = outputFlag(c, formTable, formJSON, formYAML)
	f.StringVar(&o.RuntimeSocket, "runtime-socket", "/run/containerd/containerd.sock", "the container runtime's CRI `socket`")
	f.StringVar(&o.RuntimeConfig, "runtime-config", "/etc/containerd/config.toml", "containerd's configuration `file`")
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `directory`")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "`directories` of CDI specs")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "`directory` that the agent installs the limiter to")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "`host:port` of the agent's /readyz; empty asks none")
	f.StringVar(&root, "root", "/", "the node's root `directory`")
	return c
}

// printReport prints a report for people.
func printReport(p page, report doctor.Report) error {
	if err := report.Print(p, p.Style); err != nil {
		return err
	}
	if n := len(report.Repairs()); n > 0 {
		_, err := fmt.Fprintln(p, "gpuslice doctor --fix fixes some of it, and shows what it changes")
		return err
	}
	return nil
}

// repair fixes what of a report it can. What it does is said beside the report: with a
// form for programs on standard error.
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
		fmt.Fprint(w, "nothing of it can be fixed without a person\n\n")
	}
	return errors.Join(errs...)
}

// absolute reports paths that are not, for they are looked up below the root directory.
func absolute(o doctor.Options, root string) error {
	var errs []error
	check := func(flag string, paths ...string) {
		for _, path := range paths {
			if !filepath.IsAbs(path) {
				errs = append(errs, fmt.Errorf("--%s: want an absolute path, not %q", flag, path))
			}
		}
	}
	check("runtime-socket", o.RuntimeSocket)
	check("runtime-config", o.RuntimeConfig)
	check("kubelet-dir", o.KubeletDir)
	check("cdi-spec-dirs", o.CDISpecDirs...)
	check("library-dir", o.LibraryDir)
	check("state-dir", o.StateDir)
	check("root", root)
	return errors.Join(errs...)
}
