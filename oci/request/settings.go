package request

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/size"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// everyGPU is the index of HAMi's variables without an index.
const everyGPU = -1

// setting is the value of a variable or an annotation.
type setting struct {
	name, value string
}

func (s setting) wrap(err error) error { return fmt.Errorf("%s: %w", s.name, err) }

// settings are those of a container; nil is not set.
type settings struct {
	grant, slice, memory, cores, devices, priority *setting
	// HAMi's, by the GPU's index or everyGPU.
	hamiMemory, hamiCores map[int]setting
}

func (s *settings) amounts() bool {
	return s.memory != nil || s.cores != nil || len(s.hamiMemory) > 0 || len(s.hamiCores) > 0
}

// none ignores the priority, which requests no GPU.
func (s *settings) none() bool {
	return s.grant == nil && s.slice == nil && s.devices == nil && !s.amounts()
}

// any returns one that is set: of some, or HAMi's; nil if none is set.
func (s *settings) any(of ...*setting) *setting {
	if one := cmp.Or(of...); one != nil {
		return one
	}
	for _, variables := range []map[int]setting{s.hamiMemory, s.hamiCores} {
		for _, i := range sortedKeys(variables) {
			one := variables[i]
			return &one
		}
	}
	return nil
}

func fromAnnotations(annotations map[string]string) *settings {
	get := func(key string) *setting {
		if value := annotations[key]; value != "" {
			return &setting{key, value}
		}
		return nil
	}
	return &settings{
		grant: get(api.AnnotationGrant), slice: get(api.AnnotationSlice), memory: get(api.AnnotationMemory),
		cores: get(api.AnnotationCores), devices: get(api.AnnotationDevices), priority: get(api.AnnotationPriority),
	}
}

// unknownAnnotation returns an annotation with our prefix and an unknown name.
func unknownAnnotation(annotations map[string]string) string {
	for _, key := range sortedKeys(annotations) {
		if api.IsUnknown(key) && annotations[key] != "" {
			return key
		}
	}
	return ""
}

type variables map[string]string

// readVariables rejects a name with two values: runc passes the last one to the container, other
// runtimes pass both, and libc finds the first.
func readVariables(env []string) (variables, error) {
	v := variables{}
	for _, entry := range env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !IsVariable(name) {
			continue
		}
		if first, twice := v[name]; twice && first != value {
			return nil, grant.Errorf(grant.ErrMalformed, "%s has two values, %s and %s: set it once", quote.Short(name), quote.Short(first), quote.Short(value))
		}
		v[name] = value
	}
	return v, nil
}

// IsVariable reports whether a variable can be a part of a request.
func IsVariable(name string) bool {
	return strings.HasPrefix(name, api.EnvPrefix) || name == api.EnvVisibleDevices ||
		name == api.EnvMemoryLimit || strings.HasPrefix(name, api.EnvMemoryLimit+"_") ||
		name == api.EnvCoreLimit || strings.HasPrefix(name, api.EnvCoreLimit+"_")
}

// fromVariables also returns one variable with our prefix and an unknown name.
func fromVariables(v variables) (s *settings, unknown string, err error) {
	s = &settings{hamiMemory: map[int]setting{}, hamiCores: map[int]setting{}}
	ours := map[string]**setting{
		api.EnvMemory: &s.memory, api.EnvCores: &s.cores, api.EnvDevices: &s.devices, api.EnvPriority: &s.priority, api.EnvSlice: &s.slice,
	}
	for _, name := range sortedKeys(v) {
		value := v[name]
		place, own := ours[name]
		switch {
		case value == "" || name == api.EnvVisibleDevices:
		case own:
			*place = &setting{name, value}
		case strings.HasPrefix(name, api.EnvPrefix):
			unknown = name
		case strings.HasPrefix(name, api.EnvMemoryLimit):
			err = addHAMi(s.hamiMemory, name, value, api.EnvMemoryLimit)
		case value == "0" && strings.HasPrefix(name, api.EnvCoreLimit): // HAMi's way to request none
		default:
			err = addHAMi(s.hamiCores, name, value, api.EnvCoreLimit)
		}
		if err != nil {
			return nil, "", err
		}
	}
	return s, unknown, nil
}

func addHAMi(into map[int]setting, name, value, base string) error {
	suffix := strings.TrimPrefix(name, base)
	index := everyGPU
	if suffix != "" {
		i, err := strconv.Atoi(suffix[1:])
		if err != nil || !size.IsNumber(suffix[1:]) || i >= grant.MaxShares {
			return grant.Errorf(grant.ErrMalformed, "%s: the name must end with the index of a GPU of the container, 0 to %d", quote.Short(name), grant.MaxShares-1)
		}
		index = i
	}
	into[index] = setting{name, value}
	return nil
}

// overlay overrides variables with annotations. A slice includes memory, cores and priority.
func overlay(notes, vars *settings) *settings {
	all := *vars
	if notes.memory != nil || notes.slice != nil {
		all.memory, all.hamiMemory = nil, nil
	}
	if notes.cores != nil || notes.slice != nil {
		all.cores, all.hamiCores = nil, nil
	}
	if notes.slice != nil || notes.memory != nil || notes.cores != nil || notes.priority != nil {
		all.slice = nil
	}
	if notes.slice != nil {
		all.priority = nil
	}
	all.grant = cmp.Or(notes.grant, all.grant)
	all.slice = cmp.Or(notes.slice, all.slice)
	all.memory = cmp.Or(notes.memory, all.memory)
	all.cores = cmp.Or(notes.cores, all.cores)
	all.devices = cmp.Or(notes.devices, all.devices)
	all.priority = cmp.Or(notes.priority, all.priority)
	return &all
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
