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

// unstartedFor is longer than engines need to start a container, except after `podman init`.
const unstartedFor = 10 * time.Minute

// checkUnstarted finds containers that were created and never started, because their engine was killed. Their first process waits,
// so that the share is not released.
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
			continue
		}
		record, err := orphans.Decode(data)
		if err != nil {
			continue
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
		v.ok("all docker and podman containers with a share were started")
		return
	}
	v.warn("created but never started, and keep their shares: "+strings.Join(found, ", "),
		append([]string{"if their engine does not list them (docker ps -a, podman ps -a):"}, fix...)...)
}

// unstarted finds the fifo that runc and crun have until a container is started.
func (e *exam) unstarted(root, id string) (since time.Time, waits bool) {
	info, err := e.stat(path.Join(root, id, "exec.fifo"))
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return time.Time{}, false
	}
	return info.ModTime(), true
}
