package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// unstartedFor is how long a container may be made and not started before somebody should look: engines start what they
// make in the same moment, but for `podman init`.
const unstartedFor = 10 * time.Minute

// checkUnstarted looks for containers of docker and podman that were made and never started. Their first process waits
// for a word from their engine and has the container's files, and so the container keeps its share. An engine that was
// killed between the two forgets such a container, with or without gpuslice.
func checkUnstarted(_ context.Context, e *exam, v *verdict) {
	dirs, err := fs.ReadDir(e.Host, name(path.Join(e.o.StateDir, "containers")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.warn("unknown: "+oneLine(err), "run gpuslice doctor as root")
		return
	}
	var found, fix []string
	for _, dir := range dirs {
		id := dir.Name()
		data, err := fs.ReadFile(e.Host, name(path.Join(e.o.StateDir, "containers", id, orphans.RecordName)))
		if err != nil {
			continue // it is Kubernetes', or just removed
		}
		record, err := orphans.Decode(data)
		if err != nil {
			continue // the agent and the wrapper judge it by its processes
		}
		for _, root := range record.Roots {
			since, waits := e.unstarted(root, id)
			if age := time.Since(since); waits && age > unstartedFor {
				found = append(found, fmt.Sprintf("%.12s (for %v)", id, age.Round(time.Minute)))
				fix = append(fix, fmt.Sprintf("%s --root %s delete --force %s", record.Runtime, root, id))
			}
		}
	}
	if len(found) == 0 {
		v.ok("every container of docker and podman that has a share was started")
		return
	}
	v.warn("made and never started, and each keeps its share: "+strings.Join(found, ", "),
		append([]string{"if their engine doesn't know them any more (docker ps -a, podman ps -a):"}, fix...)...)
}

// unstarted says whether a container waits to be started, and since when: runc and crun keep a fifo for it until then.
func (e *exam) unstarted(root, id string) (since time.Time, waits bool) {
	info, err := e.stat(path.Join(root, id, "exec.fifo"))
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return time.Time{}, false
	}
	return info.ModTime(), true
}
