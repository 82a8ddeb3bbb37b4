package cdispec

import (
	"path/filepath"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// DriverKind is the CDI kind of the driver's GPUs.
const DriverKind = "nvidia.com/gpu"

// DriverFile is the file name of our spec of them. NVIDIA's tools write nvidia.yaml.
const DriverFile = "gpuslice-nvidia.yaml"

// DriverOutcome says what was done.
type DriverOutcome struct {
	// Path is our spec's.
	Path string
	// Changed says that it was written, or taken away.
	Changed bool
	// Others are the spec files of somebody else; where there is one ours isn't.
	Others []string
	// Spec is what is in force of ours; nil: nothing.
	Spec *cdispec.Spec
}

// Driver writes the driver's spec into a directory, unless one of dirs has a spec of that
// kind already: two of them would take each other's devices away (CDI's rule for one
// name in two files). So ours goes when another comes. generate is asked only where it
// is needed.
func Driver(dirs []string, dir string, generate func() (*cdispec.Spec, error)) (DriverOutcome, error) {
	out, err := PreviewDriver(dirs, dir, generate)
	switch {
	case err != nil:
	case out.Spec == nil:
		out.Changed, err = Remove(dir, DriverFile)
	default:
		out.Changed, err = Write(dir, DriverFile, out.Spec)
	}
	return out, err
}

// PreviewDriver is Driver that changes nothing.
func PreviewDriver(dirs []string, dir string, generate func() (*cdispec.Spec, error)) (DriverOutcome, error) {
	out := DriverOutcome{Path: filepath.Join(dir, DriverFile)}
	var err error
	out.Others, err = Others(append([]string{dir}, dirs...), DriverKind, out.Path)
	if err == nil && len(out.Others) == 0 {
		out.Spec, err = generate()
	}
	return out, err
}
