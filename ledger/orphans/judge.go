package orphans

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/internal/jsonread"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/limiter"
)

// Judge finds out whether the container of a claim can still use its GPU.
//
// It can as long as one of these holds; a claim of which none does is given back:
//
//   - who makes it is at work (the record's Creator, by number and start);
//   - a process has the claim's usage file locked, as CUDA processes with the limiter do
//     (limiter.UsageInUse);
//   - the low-level runtime's state names an init process that lives;
//   - a process has the claim's usage file mounted (not for slices). That one is enough by itself, and
//     dear: all mount namespaces of the machine are looked at. So it comes last.
//
// A runtime's state directory that was left behind by a kill -9 doesn't count: its orphaned
// init waits for a word of its dead parent, gets an end of file, and ends.
//
// Whatever can't be found out counts as "it can": a GPU is rather kept than given to
// two. So it is with a claim that was made in another PID namespace, and with a young one
// whose record is damaged. An older one can be judged without: by the locks and mounts.
type Judge struct {
	Proc Procfs
	// InUse is limiter.UsageInUse, or a test's.
	InUse func(path string) (bool, error)

	// machine is the PID namespace that sees all processes.
	machine uint64
	// now is the machine's uptime in seconds, or a test's.
	now func() (int64, error)
}

// MachineNamespace is the number of the machine's first PID namespace
// (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const MachineNamespace = 0xEFFFFFFC

// youth is longer than any creation takes from its claim to the container's mounts.
const youth = 2 * time.Minute

// NewJudge judges by this machine's /proc.
func NewJudge() Judge {
	return Judge{Proc: "/proc", InUse: limiter.UsageInUse, machine: MachineNamespace, now: uptime}
}

// Alive judges the claim in a directory. ended says that its creation is known to be over,
// so that the creator, who may wait for the container (runc run), says nothing.
func (j Judge) Alive(dir string, ended bool) bool {
	r, err := Read(dir)
	return j.alive(dir, ended, r, err)
}

// alive is Alive of a claim whose record was read, or can't be. Of all that keep a claim the
// one is asked first that mostly does.
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
	// The mount does not count for a slice: the slice's next container has the same files mounted.
	// A slice's creator is the container's first process.
	return !ended && j.making(r) || j.locked(dir) || r.Slice == "" && j.Proc.Mounted(dir)
}

// making says whether a claim's creator may be at work still.
func (j Judge) making(r Record) bool {
	if r.CreatorUntil != 0 {
		if now, err := j.now(); err == nil && now > r.CreatorUntil {
			return false
		}
	}
	return j.Proc.Lives(r.Creator)
}

// locked says whether a process may have the usage file of a claim locked.
func (j Judge) locked(dir string) bool {
	used, err := j.InUse(limiter.UsagePath(dir))
	return used || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// young says whether a claim's directory was made a moment ago. A clock that is set makes it
// young or old for once; what is to be judged so is damaged already.
func young(dir string) bool {
	info, err := os.Lstat(dir)
	return err != nil || time.Since(info.ModTime()) < youth
}

// InitOf reads the init process of a container from the low-level runtime's state: runc's
// state.json (libcontainer.State) or crun's status.
func InitOf(dir string) (Process, bool) {
	for _, name := range []string{"state.json", "status"} {
		f, err := rawfile.OpenFile(filepath.Join(dir, name), os.O_RDONLY, 0)
		if err != nil {
			continue
		}
		defer f.Close()
		begin := make([]byte, initBytes)
		n, _ := f.Read(begin) // what is wrong with the file is said below
		if found, known := quickInit(begin[:n]); known {
			return found, true
		}
		return decodeInit(json.NewDecoder(io.MultiReader(bytes.NewReader(begin[:n]), f)))
	}
	return Process{}, false
}

// initBytes is where runc's and crun's states have said what is wanted, and go on.
const initBytes = 1024

// quickInit reads the beginning of a state without encoding/json. It knows nothing of one
// that says it later or otherwise.
func quickInit(begin []byte) (found Process, known bool) {
	r := jsonread.New(begin)
	r.Object([]string{"init_process_pid", "pid", "init_process_start", "process-start-time"}, func(name string) {
		switch name {
		case "init_process_pid", "pid":
			found.PID = int(r.Int(0))
		default:
			found.Start = r.Uint(64)
		}
		if known = found.PID != 0 && found.Start != 0; known {
			r.Fail() // the rest is of no interest
		}
	})
	return found, known
}

// decodeInit reads no further than it has to: runc's state holds the whole config, and
// this comes before it.
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
