package orphans

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/limiter"
)

// Judge decides whether the container of a claim is alive: its Creator lives, or a process has the usage file
// locked, as CUDA processes with the limiter do, or the low-level runtime's state names a living init process,
// or a process has the usage file mounted (not for slices; the slowest check). What can't be found out counts
// as alive, so that no GPU is granted twice.
type Judge struct {
	Proc  Procfs
	InUse func(path string) (bool, error)

	// machine is the PID namespace that sees all processes.
	machine uint64
	// now returns the uptime in seconds.
	now func() (int64, error)
}

// MachineNamespace is the machine's first PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const MachineNamespace = 0xEFFFFFFC

const youth = 2 * time.Minute

func NewJudge() Judge {
	return Judge{Proc: "/proc", InUse: limiter.UsageInUse, machine: MachineNamespace, now: uptime}
}

// Alive returns whether the container of a claim is alive. ended: its creation is over, so the creator does
// not count.
func (j Judge) Alive(dir string, ended bool) bool {
	r, err := Read(dir)
	return j.alive(dir, ended, r, err)
}

func (j Judge) alive(dir string, ended bool, r Record, err error) bool {
	namespace, namespaceErr := j.Proc.Namespace()
	switch {
	case namespaceErr != nil:
		return true
	case errors.Is(err, ErrDamaged):
		return namespace != j.machine || !ended && young(dir) || j.locked(dir) || j.Proc.Mounted(dir)
	case err != nil, namespace != r.PIDNamespace:
		return true
	}
	for _, root := range r.Roots {
		if init, known := InitOf(filepath.Join(root, filepath.Base(dir))); known && j.Proc.Lives(init) {
			return true
		}
	}
	// The mount does not count for a slice: its next container has the same files mounted.
	return !ended && j.creating(r) || j.locked(dir) || r.Slice == "" && j.Proc.Mounted(dir)
}

func (j Judge) creating(r Record) bool {
	if r.CreatorUntil != 0 {
		if now, err := j.now(); err == nil && now > r.CreatorUntil {
			return false
		}
	}
	return j.Proc.Lives(r.Creator)
}

func (j Judge) locked(dir string) bool {
	used, err := j.InUse(limiter.UsagePath(dir))
	return used || err != nil && !errors.Is(err, fs.ErrNotExist)
}

func young(dir string) bool {
	info, err := os.Lstat(dir)
	return err != nil || time.Since(info.ModTime()) < youth
}

// InitOf reads a container's init process from runc's state.json or crun's status.
func InitOf(dir string) (Process, bool) {
	for _, name := range []string{"state.json", "status"} {
		f, err := rawfile.OpenFile(filepath.Join(dir, name), os.O_RDONLY, 0)
		if err != nil {
			continue
		}
		defer f.Close()
		return decodeInit(json.NewDecoder(f))
	}
	return Process{}, false
}

// decodeInit stops when it has both values: runc's state has the whole config after them.
func decodeInit(dec *json.Decoder) (found Process, known bool) {
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return Process{}, false
	}
	for dec.More() && (found.PID == 0 || found.Start == 0) {
		name, err := dec.Token()
		if err != nil {
			return Process{}, false
		}
		var into any = &json.RawMessage{}
		switch name {
		case "init_process_pid", "pid":
			into = &found.PID
		case "init_process_start", "process-start-time":
			into = &found.Start
		}
		if err := dec.Decode(into); err != nil {
			return Process{}, false
		}
	}
	return found, found.PID != 0
}
