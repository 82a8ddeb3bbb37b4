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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

const SliceFile = "gpuslice.yaml"

type Node struct {
	StateDir string
	// Program is gpuslice-runtime's path, for hooks.
	Program string
	GPUs    map[string]grant.GPU
	// Settings.Injection is ignored.
	Settings oci.Settings
	Devices  oci.DeviceEdits
}

// Spec returns the CDI spec of slices, and the slices for their directories.
func Spec(planned []Planned, n Node) (*cdispec.Spec, []slice.Slice, error) {
	spec := &cdispec.Spec{Kind: api.CDIKindSlice}
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

// sliceDevice returns the edits for the slice's shares, with its directory instead of a claim's, and
// the hooks.
func sliceDevice(p Planned, n Node) (cdispec.Device, slice.Slice, error) {
	settings := n.Settings
	settings.Injection = oci.InjectCDI
	dir := slice.Dir(n.StateDir, p.Name)
	result, err := oci.Edits(p.Shares, settings, oci.Container{ID: p.Name, Dir: dir, TurnID: limiter.SliceTurnID(p.Name)}, n.Devices)
	if err != nil {
		return cdispec.Device{}, slice.Slice{}, err
	}
	edits := result.Edits
	edits.Env = append(edits.Env, api.EnvSlice+"="+p.Name)
	edits.Hooks = append(slice.Hooks(n.Program, n.StateDir, p.Name), edits.Hooks...)
	if err := (&cdi.ContainerEdits{ContainerEdits: edits}).Validate(); err != nil {
		return cdispec.Device{}, slice.Slice{}, err
	}
	s := slice.Slice{
		Name: p.Name, Definition: p.Definition, Shares: p.Shares, HighPriority: p.HighPriority, Mode: string(result.Enforcement),
		CorePolicy: settings.LimiterPolicy(),
	}
	for _, share := range p.Shares {
		s.GPUs = append(s.GPUs, n.GPUs[share.UUID])
	}
	for _, d := range edits.DeviceNodes {
		s.Nodes = append(s.Nodes, slice.Node{Path: path.Clean(d.Path), Major: d.Major, Minor: d.Minor})
	}
	library := filepath.Dir(settings.LibraryPath)
	for _, m := range edits.Mounts {
		if below(m.HostPath, dir) || below(m.HostPath, library) || oci.IsTurns(m.ContainerPath) {
			s.Files = append(s.Files, slice.File{Host: m.HostPath, Container: m.ContainerPath})
		}
	}
	return cdispec.Device{Name: p.Name, ContainerEdits: *edits}, s, nil
}

func below(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

type Outcome struct {
	Path    string // of the spec
	Changed bool   // written or removed
	Slices  []slice.Slice
	// InUse (changed) and Leaving (removed) wait for the end of a container.
	InUse   []string
	Leaving []string
	Spec    *cdispec.Spec
}

// Slices creates the config's slices and writes their spec; with dryRun it changes nothing. It does not change
// a slice in use until a later call.
func Slices(ctx context.Context, config request.Config, n Node, dir string, dryRun bool) (Outcome, error) {
	put, remove := slice.Put, slice.Remove
	if dryRun {
		put, remove = slice.Peek, slice.PeekRemove
	}
	out := Outcome{Path: filepath.Join(dir, SliceFile)}
	there, err := existing(n.StateDir)
	if err != nil {
		return out, err
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
			if device, ok := written[s.Name]; ok { // fits its files, even if settings have changed
				asBefore = append(asBefore, device)
				continue
			}
		}
		now = append(now, Planned{Name: s.Name, Definition: s.Definition, Shares: s.Shares, HighPriority: s.HighPriority})
	}
	out.Spec, _, err = Spec(now, n)
	errs = append(errs, err)
	out.Spec.Devices = append(out.Spec.Devices, asBefore...)
	slices.SortFunc(out.Spec.Devices, func(a, b cdispec.Device) int { return strings.Compare(a.Name, b.Name) })
	if !dryRun {
		errs = append(errs, slice.Sweep(ctx, n.StateDir))
		if len(out.Spec.Devices) > 0 {
			out.Changed, err = Write(dir, SliceFile, out.Spec)
		} else { // CDI rejects a spec without devices
			out.Changed, err = Remove(dir, SliceFile)
		}
		errs = append(errs, err)
	}
	errs = append(errs, out.leave(ctx, remove, n, there))
	return out, errors.Join(errs...)
}

// devicesIn returns the devices of a spec file by name; none if it can't be read.
func devicesIn(path string) map[string]cdispec.Device {
	devices := map[string]cdispec.Device{}
	if spec, err := cdi.ReadSpec(path, 0); err == nil {
		for _, d := range spec.Devices {
			devices[d.Name] = d
		}
	}
	return devices
}

// existing returns slices that can't be read without values.
func existing(stateDir string) (map[string]slice.Slice, error) {
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

// leave removes slices after the spec was written, so that no container gets one without files.
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
