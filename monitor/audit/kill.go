package audit

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

var errProcessChanged = errors.New("process changed since it was inspected")

// kill uses a pidfd, which stays with the process; still checks it after the pidfd is open. An ended process is no error.
func kill(p orphans.Process, still func() error) (killed bool, err error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if err := still(); err != nil {
		if gone(err) {
			return false, nil
		}
		return false, fmt.Errorf("process %d not killed: %w", p.PID, err)
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return err == nil, nil
}

func (i *Inspector) lives(p orphans.Process) bool {
	s, _, err := i.proc.Process(p.PID)
	return err == nil && s.Start == p.Start
}

// Still reads everything again, and returns nil if the process is still the one of the violation.
func (i *Inspector) Still(v Violation, o Offender, claims map[string]*Claim) error {
	files := usageFiles(claims)
	owner := feedback.NewOwners(string(i.proc.FS)).Find([]int{o.PID}, files)[o.PID]
	delete(i.mapped, o.Process)
	now, err := i.process(o.PID, owner, claims, nil)
	if v.Kind == ForeignDescriptor {
		now.Open = nodesOf(i.descriptors.of(o.PID), i.nodes())
	}
	claim := claims[now.Container.ID]
	changed := func(why string) error { return fmt.Errorf("%w: %s", errProcessChanged, why) }
	switch {
	case now.PID == 0:
		return err
	case now.Process != o.Process || now.Container.ID == "" || now.Container.ID != v.Container.ID || now.Exempt || now.Spared != "":
		return errProcessChanged
	case (v.Kind == NoLimiter || v.Kind == ForeignFiles) && err != nil:
		return err
	case v.Kind == NoLimiter && now.Limiter != LimiterAbsent && now.Limiter != LimiterForged:
		return changed("it has the limiter")
	case v.Kind == ForeignFiles && (now.Files == FilesOwn || now.Files == FilesUnknown):
		return changed("it has its container's limits and usage files")
	case v.Kind == TamperedFiles && !i.holds(o.PID, claim):
		return changed("it holds no lock or lease on its container's files")
	case v.Kind == ForeignDescriptor && (claim != nil && claim.Unknown || len(now.ungrantedOpen(claim)) == 0):
		return changed("it has no GPU open without a grant")
	case v.Kind == UngrantedProcess && claim != nil && (claim.Unknown || !slices.ContainsFunc(o.Devices, func(uuid string) bool { return !claim.granted(uuid) })):
		return changed("it has a grant")
	}
	return nil
}

func usageFiles(claims map[string]*Claim) map[string]string {
	files := make(map[string]string, len(claims))
	for id, c := range claims {
		files[id] = c.usageFile()
	}
	return files
}
