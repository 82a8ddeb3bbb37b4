//go:build faults

package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// limitMiB is the memory that a granted container has.
const limitMiB = 2000

// place is what the shapes need to know of their node.
type place struct {
	own, other string // the UUID of the granted GPU and of another
	dir        string // the node's directory, which has an empty file "empty"
}

// shape is a kind of container.
type shape struct {
	name      string
	granted   bool
	container func(place) harness.Container
}

// shapes are the columns of the matrix. Each without a grant asks for a GPU.
var shapes = []shape{
	{"with a grant", true, func(place) harness.Container { return harness.Container{} }},
	{"with a grant, names another's GPU", true, func(p place) harness.Container {
		return harness.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + p.other}}
	}},
	{"with a grant, mounts its own ld.so.preload", true, func(p place) harness.Container {
		return harness.Container{Mounts: []*cri.Mount{{HostPath: filepath.Join(p.dir, "empty"), ContainerPath: "/etc/ld.so.preload"}}}
	}},
	{"with a grant, sets its own limits", true, func(place) harness.Container {
		return harness.Container{Env: []string{"CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_SM_LIMIT=0"}}
	}},
	{"with a grant, privileged", true, func(place) harness.Container {
		return harness.Container{Privileged: true}
	}},
	{"without a grant, its image sets all", false, func(place) harness.Container {
		return harness.Container{Image: harness.GreedyImage}
	}},
	{"without a grant, names another's GPU", false, func(p place) harness.Container {
		return harness.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + p.other}}
	}},
	{"without a grant, privileged, its image sets all", false, func(place) harness.Container {
		return harness.Container{Image: harness.GreedyImage, Privileged: true}
	}},
}

// containerName is the name of a pod's i-th container.
func containerName(i int) string { return "c" + strconv.Itoa(i) }

// grants annotates a pod with containers that each get a share of a GPU.
func grants(uuid string, containers int) map[string]string {
	type share struct {
		UUID      string `json:"uuid"`
		MemoryMiB int    `json:"memoryMiB"`
		Cores     int    `json:"cores"`
	}
	byName := map[string][]share{}
	for i := range containers {
		byName[containerName(i)] = []share{{uuid, limitMiB, 2}}
	}
	value, err := json.Marshal(map[string]any{"version": 1, "node": harness.NodeName, "containers": byName})
	if err != nil {
		panic(err) // numbers and strings
	}
	return map[string]string{"gpuslice.io/grant": string(value)}
}

// connection is another process's connection to the unix socket at path, opened here
// too (pidfd_getfd).
func connection(pid int, path string) (*os.File, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // closed meanwhile
		}
		if peer, err := unix.Getpeername(fd); err == nil {
			if u, ok := peer.(*unix.SockaddrUnix); ok && u.Name == path {
				return os.NewFile(uintptr(fd), path), nil
			}
		}
		unix.Close(fd)
	}
	return nil, fmt.Errorf("process %d is not connected to %s", pid, path)
}

// requestArrived returns nil when something waits to be read by the process on its
// connection to path.
func requestArrived(pid int, path string) error {
	c, err := connection(pid, path)
	if err != nil {
		return err
	}
	defer c.Close()
	unread, err := unix.IoctlGetInt(int(c.Fd()), unix.SIOCINQ)
	if err == nil && unread == 0 {
		err = errors.New("nothing to read")
	}
	return err
}
