package cdispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// Planned is a slice with its GPUs.
type Planned struct {
	Name         string
	Definition   string
	Shares       []grant.Share
	HighPriority bool
}

// Plan chooses the GPUs of every slice. An existing slice keeps its GPUs if its definition is unchanged and
// the node has them; the others follow by name. A slice that does not fit beside the others gets GPUs that it
// fits on by itself: the ledger decides later. The error lists slices that never fit.
func Plan(config request.Config, gpus map[string]grant.GPU, there map[string]slice.Slice) ([]Planned, error) {
	var (
		planned []Planned
		errs    []error
	)
	usage := map[string]ledger.Usage{}
	names := slices.Sorted(maps.Keys(config.Slices))
	kept := map[string]bool{}
	for _, name := range names {
		old, is := there[name]
		if p := define(config, name); is && p.Definition == old.Definition && grant.CheckGPUs(old.Shares, gpus) == nil {
			p.Shares = old.Shares
			planned, kept[name] = append(planned, p), true
			add(usage, p.Shares)
		}
	}
	for _, name := range names {
		if kept[name] {
			continue
		}
		p, err := place(config, name, gpus, usage)
		if err != nil {
			errs = append(errs, fmt.Errorf("slice %s: %w", name, err))
			continue
		}
		planned = append(planned, p)
		add(usage, p.Shares)
	}
	slices.SortFunc(planned, func(a, b Planned) int { return strings.Compare(a.Name, b.Name) })
	return planned, errors.Join(errs...)
}

func define(config request.Config, name string) Planned {
	s := config.Slices[name]
	data, err := json.Marshal(struct {
		Slice   request.Slice
		Default request.Slice
		Maximum request.Limit
		Devices []string
	}{s, config.Default, config.Maximum, config.Devices})
	if err != nil {
		data = []byte(err.Error()) // does not happen
	}
	return Planned{Name: name, Definition: string(data), HighPriority: bool(s.HighPriority)}
}

func place(config request.Config, name string, gpus map[string]grant.GPU, usage map[string]ledger.Usage) (Planned, error) {
	p := define(config, name)
	if err := parser.ValidateDeviceName(name); err != nil {
		return p, fmt.Errorf("invalid name of a CDI device: %w", err)
	}
	requested, err := request.FromContainer([]string{api.EnvSlice + "=" + name}, nil, config)
	if err != nil {
		return p, err
	}
	p.Shares, err = request.Choose(requested, gpus, usage, config)
	if err != nil {
		p.Shares, err = request.Choose(requested, gpus, nil, config)
	}
	return p, err
}

func add(usage map[string]ledger.Usage, shares []grant.Share) {
	for _, s := range shares {
		u := usage[s.UUID]
		u.MemoryMiB += s.MemoryMiB
		u.CorePercent += s.CorePercent
		u.Replicas++
		usage[s.UUID] = u
	}
}
