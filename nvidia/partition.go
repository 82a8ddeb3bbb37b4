package nvidia

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MIGStrategy is how a node offers MIG devices, with the names of NVIDIA's device plugin.
type MIGStrategy string

const (
	// MIGNone offers whole GPUs only, and no GPU in MIG mode: CUDA does not use such a GPU as a
	// whole.
	MIGNone MIGStrategy = "none"
	// MIGSingle offers MIG devices by the ordinary resource. Either all GPUs are in MIG mode with
	// one profile, or none is.
	MIGSingle MIGStrategy = "single"
	// MIGMixed offers each profile by its own resource (MIGDevice.ResourceName), and GPUs without
	// MIG whole.
	MIGMixed MIGStrategy = "mixed"
)

var MIGStrategies = []MIGStrategy{MIGNone, MIGSingle, MIGMixed}

// ParseMIGStrategy reads a strategy; empty is MIGNone.
func ParseMIGStrategy(text string) (MIGStrategy, error) {
	if text == "" {
		return MIGNone, nil
	}
	if !slices.Contains(MIGStrategies, MIGStrategy(text)) {
		return "", fmt.Errorf("unknown MIG strategy %q: use none, single or mixed", text)
	}
	return MIGStrategy(text), nil
}

// Partition is what a node offers.
type Partition struct {
	GPUs []GPU
	// Single are MIG devices of the ordinary resource; GPUs and Mixed are then empty.
	Single []MIGDevice
	// Mixed are MIG devices by the last part of their resource ("mig-1g.10gb").
	Mixed map[string][]MIGDevice
}

func (p Partition) MIG() []MIGDevice {
	all := slices.Clone(p.Single)
	for _, resource := range p.Resources() {
		all = append(all, p.Mixed[resource]...)
	}
	return all
}

// Resources returns the keys of Mixed, sorted.
func (p Partition) Resources() []string { return slices.Sorted(maps.Keys(p.Mixed)) }

// PartitionOf applies a strategy to the GPUs of a node; on an error the node offers nothing.
func PartitionOf(n Node, s MIGStrategy) (Partition, error) {
	var whole, cut []GPU
	for _, c := range n.GPUs {
		if c.MIGEnabled {
			cut = append(cut, c)
		} else {
			whole = append(whole, c)
		}
	}
	switch s {
	case MIGNone:
		return Partition{GPUs: whole}, nil
	case MIGMixed:
		return Partition{GPUs: whole, Mixed: byResource(cut)}, nil
	case MIGSingle:
		if len(cut) == 0 {
			return Partition{GPUs: whole}, nil
		}
		// Unreadable MIG devices are no reason to withdraw the others.
		cut = slices.DeleteFunc(cut, func(c GPU) bool { return len(c.MIG) == 0 && unreadMIG(n, c.UUID) })
		if len(cut) == 0 && len(whole) == 0 {
			return Partition{}, nil
		}
		if err := uniform(whole, cut); err != nil {
			return Partition{}, err
		}
		return Partition{Single: devices(cut)}, nil
	default:
		_, err := ParseMIGStrategy(string(s))
		return Partition{}, fmt.Errorf("partition: %w", err)
	}
}

func unreadMIG(n Node, gpu string) bool {
	return slices.ContainsFunc(n.Faults, func(f Fault) bool { return f.GPU == gpu })
}

func devices(gpus []GPU) []MIGDevice {
	var all []MIGDevice
	for _, c := range gpus {
		all = append(all, c.MIG...)
	}
	return all
}

func byResource(gpus []GPU) map[string][]MIGDevice {
	all := map[string][]MIGDevice{}
	for _, d := range devices(gpus) {
		all[d.ResourceName()] = append(all[d.ResourceName()], d)
	}
	return all
}

func uniform(whole, cut []GPU) error {
	kinds := map[string][]string{}
	for _, c := range whole {
		kinds["without MIG"] = append(kinds["without MIG"], c.Label())
	}
	for _, c := range cut {
		kind := "without instances"
		if of := profiles(c); len(of) > 0 {
			kind = "with " + strings.Join(of, " and ")
		}
		kinds[kind] = append(kinds[kind], c.Label())
	}
	if len(kinds) == 1 && len(cut) > 0 && len(profiles(cut[0])) == 1 {
		return nil
	}
	var differ []string
	for kind, gpus := range kinds {
		differ = append(differ, kind+": "+strings.Join(gpus, ", "))
	}
	slices.Sort(differ)
	return fmt.Errorf("MIG strategy %s needs one profile on all GPUs of the node (%s): change their instances, or use the strategy %s",
		MIGSingle, strings.Join(differ, "; "), MIGMixed)
}

func profiles(c GPU) []string {
	var all []string
	for _, d := range c.MIG {
		all = append(all, d.Profile)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
