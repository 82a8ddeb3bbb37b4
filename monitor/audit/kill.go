package audit

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/monitor/cores"
	"github.com/gpuslice/gpuslice/oci/claimed"
)

// errNotHe says that a process is not, or no more, the one that was to be ended.
var errNotHe = errors.New("it is another process by now, or of another container")

// kill ends a process by a pidfd, which can't come to mean another. still is asked once
// the pidfd is open, so that it speaks of that process; a process that is gone is none to
// be ended, and no error.
func kill(p claimed.Process, still func() error) (killed bool, err error) {
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
		return false, fmt.Errorf("process %d is not ended: %w", p.PID, err)
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("end process %d: %w", p.PID, err)
	}
	return err == nil, nil
}

// Still says whether a process is the one that was judged, in the same container, and may
// still be ended for it: nil. It looks at everything anew.
func (i *Inspector) Still(v Violation, o Offender, claims map[string]*Claim) error {
	files := usageFiles(claims)
	owner := cores.NewOwners(string(i.proc)).Find([]int{o.PID}, files)[o.PID]
	delete(i.mapped, o.Process)
	now, err := i.process(o.PID, owner, claims, nil)
	claim := claims[now.Container.ID]
	switch {
	case now.PID == 0:
		return err
	case now.Process != o.Process || now.Container.ID == "" || now.Container.ID != v.Container.ID || now.Exempt || now.Spared != "":
		return errNotHe
	case v.Kind == NoLimiter && err != nil:
		return err
	case v.Kind == NoLimiter && now.Limiter != LimiterAbsent:
		return fmt.Errorf("%w: it has the limiter", errNotHe)
	case v.Kind == UngrantedProcess && claim != nil && (claim.Unknown || !slices.ContainsFunc(o.Devices, func(uuid string) bool { _, granted := claim.device(uuid); return !granted })):
		return fmt.Errorf("%w: it has a grant", errNotHe)
	}
	return nil
}

// usageFiles are the claims' by their containers.
func usageFiles(claims map[string]*Claim) map[string]string {
	files := make(map[string]string, len(claims))
	for id, c := range claims {
		files[id] = c.UsageFile
	}
	return files
}
