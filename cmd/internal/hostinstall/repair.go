package hostinstall

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// RepairOptions are like [Options]. StateMount is the content of the tmpfs' unit.
type RepairOptions struct {
	Root              string
	RuntimeConfig     string
	ContainerdVersion string
	StateDir          string
	StateMount        []byte
	DryRun            bool
}

// Repair fixes a problem that doctor found, and shows the change as a diff.
func Repair(ctx context.Context, r doctor.Repair, o RepairOptions, out io.Writer) error {
	switch r {
	case doctor.RepairContainerd:
		return Install(ctx, Options{
			Engine: "containerd", Root: o.Root, Config: o.RuntimeConfig, ContainerdVersion: o.ContainerdVersion,
			NRIOnly: true, ShowDiff: true, DryRun: o.DryRun,
		}, out)
	case doctor.RepairStateDirMode, doctor.RepairStateMount:
		j, err := newJob(ctx, Options{Engine: "docker", Root: o.Root, DryRun: o.DryRun, ShowDiff: true}, out)
		if err != nil {
			return err
		}
		defer j.close()
		if r == doctor.RepairStateMount {
			return o.unit(j)
		}
		return o.own(j)
	}
	return fmt.Errorf("unknown repair %q", r)
}

func (o RepairOptions) unit(j *job) error {
	before, err := j.host.read(doctor.StateMountUnit)
	if err != nil {
		return err
	}
	e := edit{path: doctor.StateMountUnit, before: before, after: o.StateMount}
	if before != nil {
		e.after = before
	}
	return j.finish([]edit{e}, []string{"on a node without GPU containers: systemctl daemon-reload && systemctl enable --now run-gpuslice.mount"})
}

// stateDirMode lets containers open files, but not list the directory.
const stateDirMode = 0o711

// own gives the state directory to root. It follows no link.
func (o RepairOptions) own(j *job) error {
	real, err := j.host.real(o.StateDir)
	if err != nil {
		return err
	}
	dir, err := os.OpenFile(real, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	var was unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &was); err != nil {
		return fmt.Errorf("stat %s: %w", o.StateDir, err)
	}
	fmt.Fprintf(j.out, "-%s: owner %d, mode %#o\n+%s: owner 0, mode %#o\n", o.StateDir, was.Uid, was.Mode&0o7777, o.StateDir, stateDirMode)
	if o.DryRun {
		fmt.Fprintln(j.out, "nothing was changed (--dry-run)")
		return nil
	}
	// The owner first: the former owner could set the mode again.
	if err := unix.Fchown(int(dir.Fd()), 0, -1); err != nil {
		return fmt.Errorf("change the owner of %s: %w%s", o.StateDir, err, hint(err))
	}
	if err := unix.Fchmod(int(dir.Fd()), stateDirMode); err != nil {
		return fmt.Errorf("change the mode of %s: %w%s", o.StateDir, err, hint(err))
	}
	return nil
}
