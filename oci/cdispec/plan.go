package cdispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// Planned is a slice and its GPUs.
type Planned struct {
	Name string
	// Asked is the operator's definition, to tell whether it changed.
	Asked        string
	Shares       []grant.Share
	HighPriority bool
}

// Plan gives every slice of a config its GPUs. It is pure.
//
// A slice that is there already keeps its GPUs as long as its definition is the same and
// the node has them, so that one more slice moves none of the others. The others are put,
// in the order of their names, where the slices together fit; what doesn't fit beside the
// others is put where it would fit alone: the ledger decides when a container comes. The
// slices of which not even that is so are left out, and the error names each.
func Plan(config request.Config, gpus map[string]grant.GPU, there map[string]slice.Slice) ([]Planned, error) {
	var (
		planned []Planned
		errs    []error
	)
	booked := map[string]ledger.Usage{}
	names := slices.Sorted(maps.Keys(config.Slices))
	kept := map[string]bool{}
	for _, name := range names {
		old, is := there[name]
		if p := asked(config, name); is && p.Asked == old.Asked && grant.CheckGPUs(old.Shares, gpus) == nil {
			p.Shares = old.Shares
			planned, kept[name] = append(planned, p), true
			book(booked, p.Shares)
		}
	}
	for _, name := range names {
		if kept[name] {
			continue
		}
		p, err := place(config, name, gpus, booked)
		if err != nil {
			errs = append(errs, fmt.Errorf("slice %s: %w", name, err))
			continue
		}
		planned = append(planned, p)
		book(booked, p.Shares)
	}
	slices.SortFunc(planned, func(a, b Planned) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return planned, errors.Join(errs...)
}

// asked is a slice's definition.
func asked(config request.Config, name string) Planned {
	s := config.Slices[name]
	data, err := json.Marshal(struct {
		Slice   request.Slice
		Default request.Slice
		Maximum request.Limit
		Devices []string
	}{s, config.Default, config.Maximum, config.Devices})
	if err != nil {
		data = []byte(err.Error()) // plain data: it can't be
	}
	return Planned{Name: name, Asked: string(data), HighPriority: bool(s.HighPriority)}
}

// place chooses a slice's GPUs.
func place(config request.Config, name string, gpus map[string]grant.GPU, booked map[string]grant.Usage) (Planned, error) {
	p := asked(config, name)
	if err := parser.ValidateDeviceName(name); err != nil {
		return p, fmt.Errorf("it can't be the name of a CDI device: %w", err)
	}
	requested, err := request.FromContainer([]string{request.EnvSlice + "=" + name}, nil, config)
	if err != nil {
		return p, err
	}
	p.Shares, err = request.Choose(requested, gpus, booked, config)
	if err != nil {
		p.Shares, err = request.Choose(requested, gpus, nil, config)
	}
	return p, err
}

// book adds shares to what the slices take.
func book(booked map[string]ledger.Usage, shares []grant.Share) {
	for _, s := range shares {
		u := booked[s.UUID]
		u.MemoryMiB += s.MemoryMiB
		u.CorePercent += s.CorePercent
		u.Slots++
		booked[s.UUID] = u
	}
}
