package request

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/size"
	"github.com/gpuslice/gpuslice/internal/quote"
)

type Request struct {
	// Devices: if zero, the operator's default or one GPU.
	Devices Devices
	Amount
	// Each overrides Amount, by the GPU's number in the container, from 0.
	Each         map[int]Amount
	HighPriority bool
	Slice        string
	// Shares of a grant replace all the above.
	Shares []grant.Share
}

// FromContainer reads a request from a container's environment ("NAME=value") and annotations. It is
// nil if the container requests no GPU. Choose checks the maximum and the capacity.
func FromContainer(env []string, annotations map[string]string, c Config) (*Request, error) {
	if c.AnnotationsOnly {
		env = nil // an image can set them
	}
	v, err := readVariables(env)
	if err != nil {
		return nil, err
	}
	vars, unknown, err := fromVariables(v)
	if err != nil {
		return nil, err
	}
	notes := fromAnnotations(annotations)
	s := overlay(notes, vars)
	mistyped := unknownAnnotation(annotations)
	switch {
	case s.grant != nil:
		return fromGrant(notes, annotations)
	case mistyped != "":
		return nil, grant.Errorf(grant.ErrMalformed, "%s is not an annotation of a request: use %s, %s, %s, %s, %s or %s",
			quote.Short(mistyped), api.AnnotationMemory, api.AnnotationCores, api.AnnotationDevices, api.AnnotationPriority, api.AnnotationSlice, api.AnnotationGrant)
	case unknown != "": // without other settings too: a container that was to have a GPU must not start without one
		return nil, grant.Errorf(grant.ErrMalformed, "%s is not a variable of a request: use %s, %s, %s, %s or %s; if it is for another program, rename it",
			quote.Short(unknown), api.EnvMemory, api.EnvCores, api.EnvDevices, api.EnvPriority, api.EnvSlice)
	case s.none() && s.priority != nil:
		return nil, grant.Errorf(grant.ErrMalformed, "%s requests no GPU by itself: set %s, %s, %s or %s too, or remove it", s.priority.name, api.EnvMemory, api.EnvCores, api.EnvDevices, api.EnvSlice)
	case s.none() && c.AllowWholeGPUs:
		return fromVisibleDevices(v[api.EnvVisibleDevices])
	case s.none():
		return nil, nil
	case s.slice != nil:
		return fromSlice(s, c)
	default:
		return fromAmounts(s, c)
	}
}

func fromAmounts(s *settings, c Config) (*Request, error) {
	r := &Request{Each: map[int]Amount{}}
	var err error
	if r.Devices, err = readDevices(s); err != nil {
		return nil, err
	}
	memory, err := readAmounts(s.memory, size.Parse, s.hamiMemory, size.ParseHAMi)
	if err != nil {
		return nil, err
	}
	cores, err := readAmounts(s.cores, ParseCores, s.hamiCores, ParseCores)
	if err != nil {
		return nil, err
	}
	last := everyGPU
	for i := everyGPU; i < grant.MaxShares; i++ {
		amount := Amount{memory[i], cores[i]}
		switch {
		case amount == Amount{}:
			continue
		case i == everyGPU:
			r.Amount = amount
		default:
			r.Each[i] = amount
		}
		last = i
	}
	if err := r.countGPUs(last, s); err != nil {
		return nil, err
	}
	if s.priority != nil {
		if r.HighPriority, err = readPriority(*s.priority, c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// countGPUs gets the number of GPUs from HAMi's variables if nothing else sets it.
func (r *Request) countGPUs(last int, s *settings) error {
	if last == everyGPU || r.Devices.All {
		return nil
	}
	if r.Devices.IsZero() {
		r.Devices.Count = last + 1
		return nil
	}
	if last >= max(r.Devices.Count, len(r.Devices.Names)) {
		return grant.Errorf(grant.ErrMalformed, "%s requests %s, but a variable %s_%d or %s_%d is set for another GPU (the first is 0): remove it, or request more GPUs",
			s.devices.name, quote.Short(s.devices.value), api.EnvMemoryLimit, last, api.EnvCoreLimit, last)
	}
	return nil
}

func readDevices(s *settings) (Devices, error) {
	if s.devices == nil {
		return Devices{}, nil
	}
	d, err := ParseDevices(s.devices.value)
	if err != nil {
		return Devices{}, s.devices.wrap(err)
	}
	return d, nil
}

// readAmounts returns amounts by the GPU's index. It rejects a setting of ours that differs from
// HAMi's.
func readAmounts[T comparable](ours *setting, parse func(string) (T, error), hami map[int]setting, parseHAMi func(string) (T, error)) (map[int]T, error) {
	amounts := map[int]T{}
	for _, i := range sortedKeys(hami) {
		amount, err := parseHAMi(hami[i].value)
		if err != nil {
			return nil, hami[i].wrap(err)
		}
		amounts[i] = amount
	}
	if ours == nil {
		return amounts, nil
	}
	all, err := parse(ours.value)
	if err != nil {
		return nil, ours.wrap(err)
	}
	for _, i := range sortedKeys(amounts) {
		if amounts[i] != all {
			return nil, grant.Errorf(grant.ErrMalformed, "%s is %s, but %s is %s: set one of them", ours.name, quote.Short(ours.value), hami[i].name, quote.Short(hami[i].value))
		}
	}
	amounts[everyGPU] = all
	return amounts, nil
}

// readPriority reads a priority as HAMi does: 0 is high.
func readPriority(s setting, c Config) (high bool, err error) {
	switch {
	case s.value == "1":
		return false, nil
	case s.value != "0":
		return false, s.wrap(grant.Errorf(grant.ErrMalformed, "%s is not a priority: use 1, or 0 for high", quote.Short(s.value)))
	case !c.AllowHighPriority:
		return false, s.wrap(grant.Errorf(ErrForbidden, "high priority (0) is not allowed on this node: remove it, or set allowHighPriority in %s", c.Path))
	}
	return true, nil
}

func fromSlice(s *settings, c Config) (*Request, error) {
	if other := s.any(s.memory, s.cores, s.priority); other != nil {
		return nil, grant.Errorf(grant.ErrMalformed, "%s and %s are both set, but a slice includes memory, cores and priority: set one of them", other.name, s.slice.name)
	}
	slice, known := c.Slices[s.slice.value]
	if !known {
		return nil, s.slice.wrap(grant.Errorf(ErrForbidden, "%s is not a slice of this node: %s", quote.Short(s.slice.value), c.sliceNames()))
	}
	r := &Request{Devices: slice.Devices, Amount: slice.Amount, HighPriority: bool(slice.HighPriority), Slice: s.slice.value}
	requested, err := readDevices(s)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Devices.IsZero():
		r.Devices = requested
	case !requested.IsZero() && requested.String() != r.Devices.String():
		return nil, grant.Errorf(grant.ErrMalformed, "%s is %s, but the slice %s has devices %v: remove the former", s.devices.name, quote.Short(s.devices.value), r.Slice, r.Devices)
	}
	return r, nil
}

func (c Config) sliceNames() string {
	if len(c.Slices) == 0 {
		return fmt.Sprintf("%s defines none", c.Path)
	}
	return fmt.Sprintf("%s has %s", c.Path, strings.Join(sortedKeys(c.Slices), ", "))
}

// fromVisibleDevices requests whole GPUs, on which no other container fits.
func fromVisibleDevices(value string) (*Request, error) {
	switch value {
	case "", "void", "none":
		return nil, nil
	}
	whole := &Request{Amount: Amount{Memory: Size{Percent: 100}}}
	if value == "all" {
		whole.Devices.All = true
		return whole, nil
	}
	devices, err := quote.Reading(value, parseNames)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", api.EnvVisibleDevices, err)
	}
	whole.Devices = devices
	return whole, nil
}

// nameAnnotations contain the container's name in containerd's CRI, CRI-O and nerdctl.
var nameAnnotations = []string{"io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"}

// fromGrant returns the shares for the container's name, else the only ones.
func fromGrant(notes *settings, annotations map[string]string) (*Request, error) {
	if other := notes.any(notes.slice, notes.memory, notes.cores, notes.devices, notes.priority); other != nil {
		return nil, grant.Errorf(grant.ErrMalformed, "%s and %s are both set, but a grant is complete: set one of them", other.name, notes.grant.name)
	}
	pod, err := grant.DecodeGrant(notes.grant.value)
	if err != nil {
		return nil, notes.grant.wrap(err)
	}
	for _, key := range nameAnnotations {
		if shares, found := pod.Containers[annotations[key]]; found {
			return &Request{Shares: shares}, nil
		}
	}
	if len(pod.Containers) == 1 && annotations[nameAnnotations[0]] == "" && annotations[nameAnnotations[1]] == "" {
		for _, shares := range pod.Containers {
			return &Request{Shares: shares}, nil
		}
	}
	if annotations[nameAnnotations[0]] != "" || annotations[nameAnnotations[1]] != "" {
		return nil, nil // the grant is for other containers of the pod
	}
	return nil, notes.grant.wrap(grant.Errorf(grant.ErrAmbiguous, "is for %d containers (%s), and the name of this container is unknown: set the grant of one container", len(pod.Containers), shortList(sortedKeys(pod.Containers))))
}

func shortList(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// ErrForbidden means that the operator's config does not allow the request. Other kinds are
// grant.ErrMalformed, grant.ErrUnknownGPU, grant.ErrAmbiguous and grant.ErrOverbooked.
var ErrForbidden = errors.New("not allowed by the operator")
