package hostinstall

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// RepairOptions are the options of a repair. Every path is absolute, and inside Root.
type RepairOptions struct {
	// Root is the host's root directory; "/" is this machine.
	Root string
	// RuntimeConfig is containerd's configuration.
	RuntimeConfig string
	// ContainerdVersion is read from containerd if it is empty.
	ContainerdVersion string
	StateDir          string
	// StateMount is the content of the unit of the state directory's tmpfs.
	StateMount []byte
	// DryRun shows the changes only.
	DryRun bool
}

// Repair fixes a problem that doctor found, and shows the change as a diff.
func Repair(ctx context.Context, r doctor.Repair, o RepairOptions, out io.Writer) error {
	switch r {
	case doctor.RepairContainerd:
		return Install(ctx, Options{
			Engine: "containerd", Root: o.Root, Config: o.RuntimeConfig, ContainerdVersion: o.ContainerdVersion,
			NRIOnly: true, ShowDiff: true, DryRun: o.DryRun,
		}, out)
	case doctor.RepairStateDirMode:
		return o.own(ctx, out)
	case doctor.RepairStateMount:
		return o.unit(ctx, out)
	}
	return fmt.Errorf("unknown repair %q", r)
}

// job starts a job for files of no engine.
func (o RepairOptions) job(ctx context.Context, out io.Writer) (*job, error) {
	return newJob(ctx, Options{Engine: "docker", Root: o.Root, DryRun: o.DryRun, ShowDiff: true}, out)
}

// unit writes the unit of the tmpfs if there is none.
func (o RepairOptions) unit(ctx context.Context, out io.Writer) error {
	j, err := o.job(ctx, out)
	if err != nil {
		return err
	}
	defer j.close()
	before, err := j.host.read(doctor.StateMountUnit)
	if err != nil {
		return err
	}
	e := edit{path: doctor.StateMountUnit, before: before, after: o.StateMount}
	if before != nil {
		e.after = before // an administrator's own unit
	}
	return j.finish([]edit{e}, []string{"on a node without GPU containers: systemctl daemon-reload && systemctl enable --now run-gpuslice.mount"})
}

// stateDirMode lets containers open paths inside the directory, and not list it.
const stateDirMode = 0o711

// own makes root the only user that can write to the state directory. It follows no link.
func (o RepairOptions) own(ctx context.Context, out io.Writer) error {
	j, err := o.job(ctx, out)
	if err != nil {
		return err
	}
	defer j.close()
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
	fmt.Fprintf(out, "-%s: owner %d, mode %#o\n+%s: owner 0, mode %#o\n", o.StateDir, was.Uid, was.Mode&0o7777, o.StateDir, stateDirMode)
	if o.DryRun {
		fmt.Fprintln(out, "nothing was changed (--dry-run)")
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
