package slice

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

const (
	dirsName    = "slices"
	lockName    = "lock" // of all slices
	newPrefix   = ".new-"
	oldPrefix   = ".old-"
	recordName  = "slice.json"
	patternName = "limits.pattern" // the limits of new files; not mounted
	markName    = "claimed"        // a container uses, or used, the files
)

const recordVersion = 1

// Slice is slice.json.
type Slice struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	// Definition is the operator's. With another one the slice is made again.
	Definition   string        `json:"definition"`
	Shares       []grant.Share `json:"shares"`
	HighPriority bool          `json:"highPriority,omitempty"`
	// CorePolicy is the node's.
	CorePolicy limiter.Policy `json:"corePolicy,omitempty"`
	// GPUs are for the ledger.
	GPUs []grant.GPU `json:"gpus"`
	// Nodes are in the CDI spec.
	Nodes []Node `json:"nodes"`
	// Files must be in the container.
	Files []File `json:"files"`
	// Mode is an oci.Enforcement.
	Mode string `json:"mode,omitempty"`
}

type Node struct {
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

type File struct {
	Host      string `json:"host"`
	Container string `json:"container"`
}

// Dir returns a slice's directory.
func Dir(stateDir, name string) string { return filepath.Join(stateDir, dirsName, name) }

func (s Slice) claim(id string) ledger.Claim {
	return ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerRuntime, Container: "slice " + s.Name,
		Shares: s.Shares, HighPriority: s.HighPriority, CorePolicy: s.CorePolicy, TurnID: limiter.SliceTurnID(s.Name), Mode: s.Mode,
	}
}

func (s Slice) capacities() map[string]grant.GPU {
	gpus := make(map[string]grant.GPU, len(s.GPUs))
	for _, c := range s.GPUs {
		gpus[c.UUID] = c
	}
	return gpus
}

// Read reads a slice; fs.ErrNotExist if there is none.
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

func List(stateDir string) ([]string, error) {
	return directories(stateDir, func(name string) bool { return name[0] != '.' })
}

// hidden returns the directories of unfinished changes.
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

// equal: for containers.
func (s Slice) equal(other Slice) bool {
	return s.Name == other.Name && s.Definition == other.Definition && s.HighPriority == other.HighPriority && s.Mode == other.Mode &&
		slices.Equal(s.Shares, other.Shares) && slices.Equal(s.Files, other.Files)
}

func (s Slice) write(dir string) error {
	s.Version = recordVersion
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, recordName), append(data, '\n'), 0o644)
}

func (s Slice) complete(stateDir string) bool {
	dir := Dir(stateDir, s.Name)
	for _, gpu := range s.turnGPUs() {
		if !isFile(os.Lstat(limiter.TurnPath(stateDir, gpu, limiter.SliceTurnID(s.Name)))) {
			return false
		}
	}
	mounted, err := vgpufs.Mounted(dir)
	return mounted && err == nil && isFile(os.Lstat(limiter.LimitsPath(dir))) && isFile(os.Lstat(limiter.UsagePath(dir))) &&
		isFile(os.Lstat(filepath.Join(dir, patternName)))
}

// turnGPUs are those of the slice's turn files.
func (s Slice) turnGPUs() (gpus []string) {
	for _, share := range s.Shares {
		if !grant.IsMIG(share.UUID) {
			gpus = append(gpus, share.UUID)
		}
	}
	return gpus
}

func isFile(info fs.FileInfo, err error) bool { return err == nil && info.Mode().IsRegular() }
