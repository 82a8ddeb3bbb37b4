package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// errUnfit is the error of a node that something is wrong with. The report says what.
var errUnfit = errors.New("this node is not fit yet: mend what failed")

func doctorCommand() *cobra.Command {
	var (
		o    doctor.Options
		root string
		out  *output
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this node needs, and say how to mend what it lacks",
		Long: `Checks what this node needs before its cards can be shared safely: the container
runtime, its version and configuration (NRI, its timeout and validator, runtime
handlers), cgroups, the kubelet, NVIDIA's driver and CDI spec, and the agent's
folders and health. Nothing is changed.

Each check is "ok"; or "warn": it works, with less defence or not for all pods;
or "fail": it does not work, or cards may be unguarded. Below the latter two is
what to do.

Give the options that the agent was started with. In a container, mount the
host's root folder somewhere and name it by --root; programs are not run then.

Exit status: 0 nothing failed (there may be warnings: -o json has the worst
state); 1 a check failed; 2 the call is wrong.`,
		Example: `  gpuslice doctor
  gpuslice doctor -o json | jq -r '.checks[] | select(.state != "ok") | .fix[]'
  gpuslice doctor --runtime-socket /run/k3s/containerd/containerd.sock \
    --runtime-config /var/lib/rancher/k3s/agent/etc/containerd/config.toml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
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
			if err := out.print(c, report, func(p page) error { return report.Print(p) }); err != nil {
				return work(err)
			}
			if report.State == doctor.Fail {
				return work(errUnfit)
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	out = outputFlag(c, formTable, formJSON, formYAML)
	f.StringVar(&o.RuntimeSocket, "runtime-socket", "/run/containerd/containerd.sock", "the container runtime's CRI `socket`")
	f.StringVar(&o.RuntimeConfig, "runtime-config", "/etc/containerd/config.toml", "containerd's configuration `file`")
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `folder`")
	f.StringSliceVar(&o.CDISpecDirs, "cdi-spec-dirs", []string{"/etc/cdi", "/var/run/cdi"}, "`folders` of CDI specs")
	f.StringVar(&o.LibraryDir, "library-dir", "/var/lib/gpuslice/lib", "`folder` that the agent installs the limiter to")
	f.StringVar(&o.HealthAddress, "health-address", "127.0.0.1:9396", "`host:port` of the agent's /readyz; empty asks none")
	f.StringVar(&root, "root", "/", "the node's root `folder`")
	return c
}

// absolute reports paths that are not, for they are looked up below the root folder.
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
