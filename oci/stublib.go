package oci

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Stubs are mounted in place of the driver's libraries in mode library. Each loads the limiter, and then the driver's
// own library from the limiter's directory.
type Stubs struct {
	CUDA string
	NVML string
}

type driver struct {
	// hidden is its name in the limiter's directory. No search for a library finds it.
	hidden string
	stem   string // the start of all names of its file
	stub   func(Stubs) string
}

// drivers are the driver's libraries with a stub library. Every program needs the first.
var drivers = []driver{
	{"cuda", "libcuda.so", func(f Stubs) string { return f.CUDA }},
	{"nvml", "libnvidia-ml.so", func(f Stubs) string { return f.NVML }},
}

var driverDir = path.Join(limiterDir, "driver")

// driverPath is built into the stub libraries.
func driverPath(d driver) string { return path.Join(driverDir, d.hidden) }

// With cudaCompatHook programs find the image's libcuda.so.1 (cuda-compat) before the mounted one.
const cudaCompatHook = "enable-cuda-compat"

// checkStubs returns why stub libraries can't be used.
func checkStubs(visible *cdispec.ContainerEdits, way Injection) error {
	if way == InjectEnvvar {
		return errors.New("NVIDIA's runtime mounts the driver's libraries after gpuslice, so they can't be replaced: " +
			"generate a CDI spec and set device injection to cdi or auto, or set limiter mode to preload")
	}
	for _, d := range drivers {
		if _, err := d.find(visible.Mounts); err != nil {
			return err
		}
	}
	if real, _ := drivers[0].find(visible.Mounts); real == "" {
		return errors.New("the CDI spec mounts no libcuda.so: " +
			"generate the spec again, or set limiter mode to preload")
	}
	return nil
}

// mountStubs replaces the driver's libraries, and returns their mounts in the limiter's directory.
func mountStubs(visible *cdispec.ContainerEdits, f Stubs) []*cdispec.Mount {
	var behind []*cdispec.Mount
	for _, d := range drivers {
		real, _ := d.find(visible.Mounts)
		if real == "" {
			continue // the container does not have it
		}
		behind = append(behind, bindMount(real, driverPath(d), "ro"))
		for i, m := range visible.Mounts {
			if d.is(m.ContainerPath) {
				visible.Mounts[i] = bindMount(d.stub(f), m.ContainerPath, "ro")
			}
		}
	}
	return behind
}

// withoutCompat removes that hook: programs would bypass the stub library. With a preload it can stay.
func withoutCompat(visible *cdispec.ContainerEdits) {
	visible.Hooks = slices.DeleteFunc(visible.Hooks, func(h *cdispec.Hook) bool {
		return slices.Contains(h.Args, cudaCompatHook)
	})
}

// is matches any version.
func (d driver) is(file string) bool {
	base := path.Base(file)
	return base == d.stem || strings.HasPrefix(base, d.stem+".")
}

// find returns the host's file, or nothing. 32-bit programs can't load the limiter: they get the stub library too,
// and so no GPU.
func (d driver) find(mounts []*cdispec.Mount) (string, error) {
	var files []string
	for _, m := range mounts {
		if d.is(m.ContainerPath) {
			files = append(files, m.HostPath)
		}
	}
	in64 := slices.DeleteFunc(slices.Clone(files), func(file string) bool { return is32(path.Dir(file), files) })
	if len(in64) == 0 {
		if len(files) > 0 {
			return "", fmt.Errorf("the CDI spec has %s only for 32-bit programs (%s), which the limiter can't limit: generate the spec again", d.stem, files[0])
		}
		return "", nil
	}
	// The longest name is the file. The others are links.
	real := slices.MaxFunc(in64, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	for _, file := range in64 {
		if path.Dir(file) != path.Dir(real) {
			return "", fmt.Errorf("the CDI spec mounts %s twice, from %s and %s: leave the driver's in it, or set limiter mode to preload", d.stem, file, real)
		}
	}
	return real, nil
}

func is32(dir string, files []string) bool {
	for _, part := range strings.Split(dir, "/") {
		if part == "lib32" || part == "i386-linux-gnu" {
			return true
		}
	}
	// Red Hat and SUSE: /usr/lib beside /usr/lib64.
	return path.Base(dir) == "lib" && slices.ContainsFunc(files, func(file string) bool { return path.Dir(file) == dir+"64" })
}
