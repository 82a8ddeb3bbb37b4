package cdispec

import (
	"path/filepath"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

// DriverFile is the name of our spec. NVIDIA's tools write nvidia.yaml.
const DriverFile = "gpuslice-nvidia.yaml"

type DriverOutcome struct {
	Path    string
	Changed bool     // written or removed
	Others  []string // other specs of the kind; if there are some, ours is removed
	Spec    *cdispec.Spec
}

// Driver writes the driver's spec into dir; with dryRun it changes nothing. If dirs have another spec of that
// kind, it removes ours: CDI ignores a device that is in two files.
func Driver(dirs []string, dir string, dryRun bool, generate func() (*cdispec.Spec, error)) (DriverOutcome, error) {
	out := DriverOutcome{Path: filepath.Join(dir, DriverFile)}
	var err error
	out.Others, err = Others(append([]string{dir}, dirs...), api.CDIKindDriver, out.Path)
	if err == nil && len(out.Others) == 0 {
		out.Spec, err = generate()
	}
	switch {
	case err != nil || dryRun:
	case out.Spec == nil:
		out.Changed, err = Remove(dir, DriverFile)
	default:
		out.Changed, err = Write(dir, DriverFile, out.Spec)
	}
	return out, err
}
