package ociruntime

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/limiter"
)

// judge finds out whether the container of a claim can still use its card.
//
// It can as long as one of these holds; a claim of which none does is given back:
//
//   - who makes it is at work (the record's Creator, by number and start);
//   - a process has the claim's usage file locked, as CUDA processes with the limiter do
//     (limiter.UsageInUse);
//   - the low-level runtime's state names an init process that lives;
//   - a process has one of the claim's files mounted. That one is enough by itself, and
//     dear: all mount namespaces of the machine are looked at. So it comes last.
//
// A runtime's state folder that was left behind by a kill -9 doesn't count: its orphaned
// init waits for a word of its dead parent, gets an end of file, and ends.
//
// Whatever can't be found out counts as "it can": a card is rather kept than given to
// two. So it is with a claim that was made in another PID namespace.
type judge struct {
	proc procfs
	// inUse is limiter.UsageInUse, or a test's.
	inUse func(path string) (bool, error)
}

// newJudge judges by this machine's /proc.
func newJudge() judge { return judge{proc: "/proc", inUse: limiter.UsageInUse} }

// alive judges the claim in a folder. ended says that its creation is known to be over,
// so that the creator, who may wait for the container (runc run), says nothing.
func (j judge) alive(dir string, ended bool) bool {
	r, err := readRecord(dir)
	if err != nil {
		return true
	}
	namespace, err := j.proc.namespace()
	if err != nil || namespace != r.PIDNamespace {
		return true
	}
	if !ended && j.proc.lives(r.Creator) {
		return true
	}
	used, err := j.inUse(filepath.Join(dir, usageName))
	if used || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	for _, root := range r.Roots {
		if init, known := initOf(filepath.Join(root, filepath.Base(dir))); known && j.proc.lives(init) {
			return true
		}
	}
	return j.proc.mounted(dir)
}

// usageName is the limiter's usage file in a claim's folder (oci.Populate).
const usageName = "usage"

// initOf reads the init process of a container from the low-level runtime's state: runc's
// state.json (libcontainer.State) or crun's status.
func initOf(dir string) (process, bool) {
	for _, name := range []string{"state.json", "status"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		defer f.Close()
		return decodeInit(json.NewDecoder(f))
	}
	return process{}, false
}

// decodeInit reads no further than it has to: runc's state holds the whole config, and
// this comes before it.
func decodeInit(dec *json.Decoder) (found process, known bool) {
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return process{}, false
	}
	for dec.More() && (found.PID == 0 || found.Start == 0) {
		name, err := dec.Token()
		if err != nil {
			return process{}, false
		}
		var into any = &json.RawMessage{}
		switch name {
		case "init_process_pid", "pid":
			into = &found.PID
		case "init_process_start", "process-start-time":
			into = &found.Start
		}
		if err := dec.Decode(into); err != nil {
			return process{}, false
		}
	}
	return found, found.PID != 0
}
