package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// The variables of a request, and the annotations of the same meaning.
const (
	EnvMemory   = "GPUSLICE_MEMORY"
	EnvCores    = "GPUSLICE_CORES"
	EnvDevices  = "GPUSLICE_DEVICES"
	EnvPriority = "GPUSLICE_PRIORITY"
	EnvSlice    = "GPUSLICE_SLICE"

	AnnotationMemory   = "gpuslice.io/memory"
	AnnotationCores    = "gpuslice.io/cores"
	AnnotationDevices  = "gpuslice.io/devices"
	AnnotationPriority = "gpuslice.io/priority"
	AnnotationSlice    = "gpuslice.io/slice"
)

// HAMi's variables, which are wishes here, and that of NVIDIA's runtime.
const (
	envPrefix         = "GPUSLICE_"
	envHAMiMemory     = "CUDA_DEVICE_MEMORY_LIMIT"
	envHAMiCores      = "CUDA_DEVICE_SM_LIMIT"
	envVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
)

// everyGPU is the index of HAMi's variables without one.
const everyGPU = -1

// said is what a container says, and the variable or annotation that it says it in.
type said struct {
	in, value string
}

// wrong names the place of a mistake.
func (s said) wrong(err error) error { return fmt.Errorf("%s: %w", s.in, err) }

// sayings are all that a container says. A nil entry is not said.
type sayings struct {
	grant, slice, memory, cores, devices, priority *said
	// hamiMemory and hamiCores are HAMi's, by the GPU's index or everyGPU.
	hamiMemory, hamiCores map[int]said
}

// amounts says whether anything is said of how much.
func (s *sayings) amounts() bool {
	return s.memory != nil || s.cores != nil || len(s.hamiMemory) > 0 || len(s.hamiCores) > 0
}

// nothing says whether no GPU is asked for. A priority alone asks for none.
func (s *sayings) nothing() bool {
	return s.grant == nil && s.slice == nil && s.devices == nil && !s.amounts()
}

// any is one of the sayings, for a message; nil where there is none.
func (s *sayings) any(of ...*said) *said {
	for _, one := range of {
		if one != nil {
			return one
		}
	}
	for _, variables := range []map[int]said{s.hamiMemory, s.hamiCores} {
		for _, i := range sortedKeys(variables) {
			one := variables[i]
			return &one
		}
	}
	return nil
}

// fromAnnotations reads the annotations.
func fromAnnotations(annotations map[string]string) *sayings {
	get := func(key string) *said {
		if value := annotations[key]; value != "" {
			return &said{key, value}
		}
		return nil
	}
	return &sayings{
		grant: get(grant.AnnotationGrant), slice: get(AnnotationSlice), memory: get(AnnotationMemory),
		cores: get(AnnotationCores), devices: get(AnnotationDevices), priority: get(AnnotationPriority),
	}
}

// variables are those of the environment that matter here, by name.
type variables map[string]string

// readVariables reads the environment. A name that is there with two values is refused:
// runc gives the last one to the container, other runtimes both, and libc finds the first.
func readVariables(env []string) (variables, error) {
	v := variables{}
	for _, entry := range env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !matters(name) {
			continue
		}
		if first, twice := v[name]; twice && first != value {
			return nil, refuse(grant.ErrMalformed, "%s is there twice, as %s and as %s: set it once", quote.Short(name), quote.Short(first), quote.Short(value))
		}
		v[name] = value
	}
	return v, nil
}

func matters(name string) bool {
	return strings.HasPrefix(name, envPrefix) || name == envVisibleDevices ||
		name == envHAMiMemory || strings.HasPrefix(name, envHAMiMemory+"_") ||
		name == envHAMiCores || strings.HasPrefix(name, envHAMiCores+"_")
}

// fromVariables sorts the variables by what they mean. A variable that begins as ours and
// isn't is returned too: one of them, or nothing.
func fromVariables(v variables) (s *sayings, unknown string, err error) {
	s = &sayings{hamiMemory: map[int]said{}, hamiCores: map[int]said{}}
	ours := map[string]**said{
		EnvMemory: &s.memory, EnvCores: &s.cores, EnvDevices: &s.devices, EnvPriority: &s.priority, EnvSlice: &s.slice,
	}
	for _, name := range sortedKeys(v) {
		value := v[name]
		place, own := ours[name]
		switch {
		case value == "" || name == envVisibleDevices:
		case own:
			*place = &said{name, value}
		case strings.HasPrefix(name, envPrefix):
			unknown = name
		case strings.HasPrefix(name, envHAMiMemory):
			err = addHAMi(s.hamiMemory, name, value, envHAMiMemory)
		case value == "0" && strings.HasPrefix(name, envHAMiCores): // HAMi's way to ask for nothing
		default:
			err = addHAMi(s.hamiCores, name, value, envHAMiCores)
		}
		if err != nil {
			return nil, "", err
		}
	}
	return s, unknown, nil
}

// addHAMi enters one of HAMi's variables under its GPU's index.
func addHAMi(into map[int]said, name, value, base string) error {
	suffix := strings.TrimPrefix(name, base)
	index := everyGPU
	if suffix != "" {
		i, err := strconv.Atoi(suffix[1:])
		if err != nil || !isNumber(suffix[1:]) || i >= grant.MaxShares {
			return refuse(grant.ErrMalformed, "%s: its name ends with no GPU of the container, 0 to %d", quote.Short(name), grant.MaxShares-1)
		}
		index = i
	}
	into[index] = said{name, value}
	return nil
}

// overlay puts annotations over variables: what is said in both is taken from the
// annotations. A slice stands for memory, cores and priority. (A grant stands for all, and
// nothing else is looked at then.)
func overlay(notes, vars *sayings) *sayings {
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
	take := func(place **said, note *said) {
		if note != nil {
			*place = note
		}
	}
	take(&all.grant, notes.grant)
	take(&all.slice, notes.slice)
	take(&all.memory, notes.memory)
	take(&all.cores, notes.cores)
	take(&all.devices, notes.devices)
	take(&all.priority, notes.priority)
	return &all
}

// sortedKeys makes what is done with a map the same each time.
func sortedKeys[K interface{ ~int | ~string }, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
