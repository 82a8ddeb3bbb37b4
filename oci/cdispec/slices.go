package cdispec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// SliceKind is the CDI kind of slices.
const SliceKind = "gpuslice.io/slice"

// SliceFile is the file name of their spec.
const SliceFile = "gpuslice.yaml"

// Node is what slices are made of.
type Node struct {
	// StateDir is the node's state directory.
	StateDir string
	// Program is gpuslice-runtime's path, which the hooks name.
	Program string
	// GPUs are what may be booked, by UUID.
	GPUs map[string]grant.GPU
	// Settings are the node's. Its injection is of no matter: a slice names its nodes.
	Settings oci.Settings
	// Devices resolves GPUs to edits: the node's nvidia.com/gpu.
	Devices oci.DeviceEdits
}

// Spec is the CDI spec of slices, and the slices as their directories have to be. It is pure
// but for Devices.
func Spec(planned []Planned, n Node) (*cdispec.Spec, []slice.Slice, error) {
	spec := &cdispec.Spec{Kind: SliceKind}
	var made []slice.Slice
	var errs []error
	for _, p := range planned {
		device, s, err := sliceDevice(p, n)
		if err != nil {
			errs = append(errs, fmt.Errorf("slice %s: %w", p.Name, err))
			continue
		}
		spec.Devices = append(spec.Devices, device)
		made = append(made, s)
	}
	return spec, made, errors.Join(errs...)
}

// sliceDevice is one slice: what a container with that grant gets (oci.Edits), with the
// slice's directory for the claim's, and the hooks.
func sliceDevice(p Planned, n Node) (cdispec.Device, slice.Slice, error) {
	settings := n.Settings
	settings.Injection = oci.InjectCDI
	dir := slice.Dir(n.StateDir, p.Name)
	result, err := oci.Edits(p.Shares, settings, oci.Container{ID: p.Name, Dir: dir}, n.Devices)
	if err != nil {
		return cdispec.Device{}, slice.Slice{}, err
	}
	edits := result.Edits
	edits.Env = append(edits.Env, request.EnvSlice+"="+p.Name)
	edits.Hooks = append(slice.Hooks(n.Program, n.StateDir, p.Name), edits.Hooks...)
	if err := (&cdi.ContainerEdits{ContainerEdits: edits}).Validate(); err != nil {
		return cdispec.Device{}, slice.Slice{}, err
	}
	s := slice.Slice{
		Name: p.Name, Asked: p.Asked, Shares: p.Shares, HighPriority: p.HighPriority, Mode: string(result.Enforcement),
	}
	for _, share := range p.Shares {
		s.GPUs = append(s.GPUs, n.GPUs[share.UUID])
	}
	for _, d := range edits.DeviceNodes {
		s.Nodes = append(s.Nodes, slice.Node{Path: path.Clean(d.Path), Major: d.Major, Minor: d.Minor})
	}
	library := filepath.Dir(settings.LibraryPath)
	for _, m := range edits.Mounts {
		if below(m.HostPath, dir) || below(m.HostPath, library) {
			s.Files = append(s.Files, slice.File{Host: m.HostPath, Container: m.ContainerPath})
		}
	}
	return cdispec.Device{Name: p.Name, ContainerEdits: *edits}, s, nil
}

// below says whether a clean path is in a directory.
func below(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Outcome says what was done.
type Outcome struct {
	// Path is the spec's, and Changed says that it was written.
	Path    string
	Changed bool
	// Slices are those that the spec has.
	Slices []slice.Slice
	// InUse are the slices whose change waits until their container is gone, and Leaving
	// those that are no more wanted and wait for that.
	InUse   []string
	Leaving []string
	// Spec is what is in force; without devices there is none.
	Spec *cdispec.Spec
}

// Slices makes the config's slices and writes their spec into a directory. A slice that
// can't be made is an error, and keeps no other from being made; one that a container has
// stays as it is until a later call.
func Slices(ctx context.Context, config request.Config, n Node, dir string) (Outcome, error) {
	out, there, err := slicesBy(ctx, slice.Put, config, n, dir)
	if out.Spec == nil {
		return out, err
	}
	errs := []error{err, slice.Sweep(ctx, n.StateDir)}
	if len(out.Spec.Devices) > 0 {
		out.Changed, err = Write(dir, SliceFile, out.Spec)
	} else { // CDI knows no spec without devices
		out.Changed, err = Remove(dir, SliceFile)
	}
	errs = append(errs, err, out.leave(ctx, slice.Remove, n, there))
	return out, errors.Join(errs...)
}

// Preview is Slices that changes nothing.
func Preview(ctx context.Context, config request.Config, n Node, dir string) (Outcome, error) {
	out, there, err := slicesBy(ctx, slice.Peek, config, n, dir)
	if out.Spec == nil {
		return out, err
	}
	return out, errors.Join(err, out.leave(ctx, slice.PeekRemove, n, there))
}

// put is slice.Put or slice.Peek.
type put func(ctx context.Context, stateDir string, s slice.Slice, settings oci.Settings) (now slice.Slice, inUse bool, err error)

// slicesBy plans and puts the slices. There is no spec where that couldn't be begun.
func slicesBy(ctx context.Context, put put, config request.Config, n Node, dir string) (Outcome, map[string]slice.Slice, error) {
	out := Outcome{Path: filepath.Join(dir, SliceFile)}
	there, err := thereNow(n.StateDir)
	if err != nil {
		return out, nil, err
	}
	written := devicesIn(out.Path)
	planned, planErr := Plan(config, n.GPUs, there)
	_, wanted, specErr := Spec(planned, n)
	errs := []error{planErr, specErr}
	var now []Planned
	var asBefore []cdispec.Device
	for _, s := range wanted {
		s, inUse, err := put(ctx, n.StateDir, s, n.Settings)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out.Slices = append(out.Slices, s)
		if inUse {
			out.InUse = append(out.InUse, s.Name)
			if device, ok := written[s.Name]; ok { // what fits its files: the settings may be others now
				asBefore = append(asBefore, device)
				continue
			}
		}
		now = append(now, Planned{Name: s.Name, Asked: s.Asked, Shares: s.Shares, HighPriority: s.HighPriority})
	}
	out.Spec, _, err = Spec(now, n)
	out.Spec.Devices = append(out.Spec.Devices, asBefore...)
	slices.SortFunc(out.Spec.Devices, func(a, b cdispec.Device) int { return strings.Compare(a.Name, b.Name) })
	return out, there, errors.Join(append(errs, err)...)
}

// devicesIn are the devices of a spec file by name; none where it can't be read.
func devicesIn(path string) map[string]cdispec.Device {
	devices := map[string]cdispec.Device{}
	if spec, err := cdi.ReadSpec(path, 0); err == nil {
		for _, d := range spec.Devices {
			devices[d.Name] = d
		}
	}
	return devices
}

// thereNow are the slices that have directories. One that can't be read is made again.
func thereNow(stateDir string) (map[string]slice.Slice, error) {
	names, err := slice.List(stateDir)
	if err != nil {
		return nil, err
	}
	there := map[string]slice.Slice{}
	for _, name := range names {
		s, err := slice.Read(stateDir, name)
		if err != nil {
			s = slice.Slice{Name: name}
		}
		there[name] = s
	}
	return there, nil
}

// leave takes away the slices that the spec has no more: after it, so that no container
// gets one whose files are gone.
func (o *Outcome) leave(ctx context.Context, remove func(ctx context.Context, stateDir, name string) (bool, error), n Node, there map[string]slice.Slice) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if slices.ContainsFunc(o.Slices, func(s slice.Slice) bool { return s.Name == name }) {
			continue
		}
		inUse, err := remove(ctx, n.StateDir, name)
		if inUse {
			o.Leaving = append(o.Leaving, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
