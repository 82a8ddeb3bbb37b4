package slice

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// The names in a state directory, and in a slice's.
const (
	dirsName    = "slices"
	lockName    = "lock" // in slices: one for all
	newPrefix   = ".new-"
	oldPrefix   = ".old-"
	recordName  = "slice.json"
	patternName = "limits.pattern" // what limits is made of; nobody mounts it
	markName    = "claimed"        // the two files are, or were, a container's
)

// recordVersion is the version of slice.json.
const recordVersion = 1

// Slice is slice.json.
type Slice struct {
	Version int `json:"version"`
	// Name is the operator's, and the CDI device's.
	Name string `json:"name"`
	// Asked is the operator's definition: another one makes the slice again.
	Asked string `json:"asked"`
	// Shares are what a container gets, one a GPU.
	Shares []grant.Share `json:"shares"`
	// HighPriority says that others stand back while the container is at work.
	HighPriority bool `json:"highPriority,omitempty"`
	// GPUs are the GPUs of the shares, as the ledger wants them.
	GPUs []grant.GPU `json:"gpus"`
	// Nodes are the device nodes that the spec gives.
	Nodes []Node `json:"nodes"`
	// Files are the limiter's, which have to be in the container.
	Files []File `json:"files"`
	// Mode is how the limits are enforced, for people.
	Mode string `json:"mode,omitempty"`
}

// Node is a device node in the container.
type Node struct {
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// File is a file of the host that a container mounts.
type File struct {
	Host      string `json:"host"`
	Container string `json:"container"`
}

// Directory is a slice's directory in a state directory. It is a path only.
func Dir(stateDir, name string) string { return filepath.Join(stateDir, dirsName, name) }

// claim is what a container of that id books.
func (s Slice) claim(id string) ledger.Claim {
	return ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerRuntime, Container: "slice " + s.Name,
		Shares: s.Shares, HighPriority: s.HighPriority, Mode: s.Mode,
	}
}

// capacities are the slice's GPUs by UUID.
func (s Slice) capacities() map[string]grant.GPU {
	gpus := make(map[string]grant.GPU, len(s.GPUs))
	for _, c := range s.GPUs {
		gpus[c.UUID] = c
	}
	return gpus
}

// Read reads a slice; fs.ErrNotExist where there is none of that name.
func Read(stateDir, name string) (Slice, error) {
	path := filepath.Join(Dir(stateDir, name), recordName)
	data, err := os.ReadFile(path)
	if err != nil {
		return Slice{}, fmt.Errorf("read slice %s: %w", name, err)
	}
	var s Slice
	if err := json.Unmarshal(data, &s); err != nil {
		return Slice{}, fmt.Errorf("read slice %s: %s: %w", name, path, err)
	}
	if s.Version != recordVersion || s.Name != name {
		return Slice{}, fmt.Errorf("read slice %s: %s is of version %d and slice %q, not %d and %q: run gpuslice cdi generate",
			name, path, s.Version, s.Name, recordVersion, name)
	}
	return s, nil
}

// List are the names of the slices that are there, sorted.
func List(stateDir string) ([]string, error) {
	return directories(stateDir, func(name string) bool { return name[0] != '.' })
}

// hidden are the directories that a change makes while it is under way.
func hidden(stateDir string) ([]string, error) {
	return directories(stateDir, func(name string) bool {
		return strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, oldPrefix)
	})
}

func directories(stateDir string, wanted func(name string) bool) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(stateDir, dirsName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && wanted(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// equal says whether two slices are the same to containers.
func (s Slice) equal(other Slice) bool {
	return s.Name == other.Name && s.Asked == other.Asked && s.HighPriority == other.HighPriority && s.Mode == other.Mode &&
		slices.Equal(s.Shares, other.Shares) && slices.Equal(s.Files, other.Files)
}

// write puts slice.json into the slice's directory by a rename.
func (s Slice) write(dir string) error {
	s.Version = recordVersion
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, "."+recordName)
	if err := os.WriteFile(temp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, recordName))
}

// whole says whether a slice's files are there.
func whole(dir string) bool {
	for _, file := range []string{limiter.LimitsPath(dir), limiter.UsagePath(dir), filepath.Join(dir, patternName)} {
		var st unix.Stat_t
		if unix.Lstat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return false
		}
	}
	mounted, err := vgpufs.Mounted(dir)
	return mounted && err == nil
}
