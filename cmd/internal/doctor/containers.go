package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/nri-plugin/bounds"
)

// unstartedFor is longer than engines need to start a container, except after `podman init`.
const unstartedFor = 10 * time.Minute

// checkUnstarted finds containers that were created and never started, because their engine was killed. Their first process waits,
// so that the share is not released.
func checkUnstarted(_ context.Context, e *exam, v *verdict) {
	dirs, err := fs.ReadDir(e.Host, name(path.Join(e.o.StateDir, "containers")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.warn("unknown: "+oneLine(err), asRoot)
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

// checkLargeContainers finds containers above the agent's size bounds: with them, the runtime can fail to synchronise its NRI
// plugins, and the agent can't connect.
func checkLargeContainers(_ context.Context, e *exam, v *verdict) {
	if e.runtime.name == "cri-o" {
		v.ok("not checked: the node's runtime is CRI-O")
		return
	}
	dir := path.Join(e.config.stateDir(), "io.containerd.runtime.v2.task/k8s.io")
	entries, err := fs.ReadDir(e.Host, name(dir))
	if errors.Is(err, fs.ErrNotExist) {
		v.ok("no Kubernetes containers in " + dir)
		return
	}
	if err != nil {
		v.warn("unknown: "+oneLine(err), asRoot)
		return
	}
	var large []string
	podSize, podName := map[string]int{}, map[string]string{}
	for _, entry := range entries {
		data, err := fs.ReadFile(e.Host, name(path.Join(dir, entry.Name(), "config.json")))
		if err != nil {
			continue
		}
		var spec rspec.Spec
		if json.Unmarshal(data, &spec) != nil {
			continue
		}
		pod := fmt.Sprintf("%.64s/%.253s", spec.Annotations["io.kubernetes.cri.sandbox-namespace"], spec.Annotations["io.kubernetes.cri.sandbox-name"])
		size, sandbox := recordSize(&spec), spec.Annotations["io.kubernetes.cri.sandbox-id"]
		podSize[sandbox] += size
		podName[sandbox] = pod
		if size > bounds.Container {
			large = append(large, fmt.Sprintf("container %.12s (%.64s) of pod %s has %d KiB", entry.Name(), spec.Annotations["io.kubernetes.cri.container-name"], pod, size>>10))
		}
	}
	for sandbox, size := range podSize {
		if size > bounds.PodTotal {
			large = append(large, fmt.Sprintf("the containers of pod %s have %d KiB", podName[sandbox], size>>10))
		}
	}
	if len(large) == 0 {
		v.ok(fmt.Sprintf("no container over %d KiB, no pod over %d KiB", bounds.Container>>10, bounds.PodTotal>>10))
		return
	}
	slices.Sort(large)
	v.fail("environment, arguments, mounts and annotations are too large, and can prevent the agent from connecting: "+strings.Join(large, "; "),
		"delete these pods (kubectl delete pod); the agent refuses such containers while it is connected",
		"use files for large data, or set enableServiceLinks: false in these pods")
}

// recordSize estimates the size of NRI's record of a container in bytes.
func recordSize(spec *rspec.Spec) int {
	size := 0
	add := func(texts ...string) {
		for _, t := range texts {
			size += len(t) + 3 // the field's tag and its length
		}
	}
	if spec.Process != nil {
		add(spec.Process.Env...)
		add(spec.Process.Args...)
	}
	for key, value := range spec.Annotations {
		add(key, value)
	}
	for _, m := range spec.Mounts {
		add(m.Destination, m.Source, m.Type)
		add(m.Options...)
	}
	return size
}
