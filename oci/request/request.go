package request

import (
	"fmt"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Request is what one container asks for.
type Request struct {
	// Devices are the GPUs; nothing said: the operator's default, or one.
	Devices Devices
	// Amount is how much of each of them.
	Amount
	// Each is how much of the container's i-th GPU, from 0, where that differs. What it
	// doesn't say is as Amount has it.
	Each map[int]Amount
	// HighPriority says that others stand back while the container is at work. It is
	// allowed: FromContainer refuses one that isn't.
	HighPriority bool
	// Slice is the name of the operator's slice that was asked for; empty: none.
	Slice string
	// Shares are there in place of all the above where a whole grant was asked for.
	Shares []grant.Share
}

// FromContainer reads what a container asks for out of its environment ("NAME=value",
// as an OCI spec has it) and annotations; see the package's manual. It returns nil where
// the container asks for no GPU.
//
// Errors name the variable or annotation and its value. They are grant.ErrMalformed, or
// ErrForbidden for a priority or a slice that the operator does not offer. Whether there
// is room, and the operator's maximum, are Choose's matter.
func FromContainer(env []string, annotations map[string]string, c Config) (*Request, error) {
	if c.AnnotationsOnly {
		env = nil // nobody can tell an image's variables from those of who starts it
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
	switch {
	case s.grant != nil:
		return fromGrant(notes, annotations)
	case s.nothing() && s.priority != nil:
		return nil, refuse(grant.ErrMalformed, "%s alone asks for no GPU: say %s, %s, %s or %s too, or leave it out", s.priority.in, EnvMemory, EnvCores, EnvDevices, EnvSlice)
	case s.nothing() && c.AllowWholeGPUs:
		return fromVisibleDevices(v[envVisibleDevices])
	case s.nothing():
		return nil, nil
	case unknown != "":
		return nil, refuse(grant.ErrMalformed, "%s is no variable of a request: there are %s, %s, %s, %s and %s", quote.Short(unknown), EnvMemory, EnvCores, EnvDevices, EnvPriority, EnvSlice)
	case s.slice != nil:
		return fromSlice(s, c)
	default:
		return fromAmounts(s, c)
	}
}

// fromAmounts is the request of a container that says itself how much.
func fromAmounts(s *sayings, c Config) (*Request, error) {
	r := &Request{Each: map[int]Amount{}}
	var err error
	if r.Devices, err = readDevices(s); err != nil {
		return nil, err
	}
	memory, err := readAmounts(s.memory, ParseSize, s.hamiMemory, parseHAMiSize)
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

// countGPUs takes the number of GPUs from HAMi's variables where nothing else says
// it, and refuses one of a GPU that the container doesn't ask for.
func (r *Request) countGPUs(last int, s *sayings) error {
	if last == everyGPU || r.Devices.All {
		return nil
	}
	if r.Devices.IsZero() {
		r.Devices.Count = last + 1
		return nil
	}
	if last >= max(r.Devices.Count, len(r.Devices.Names)) {
		return refuse(grant.ErrMalformed, "%s asks for %s, and a variable %s_%d or %s_%d speaks of another GPU (the first is 0): take it away, or ask for more GPUs",
			s.devices.in, quote.Short(s.devices.value), envHAMiMemory, last, envHAMiCores, last)
	}
	return nil
}

// readDevices reads which GPUs are asked for.
func readDevices(s *sayings) (Devices, error) {
	if s.devices == nil {
		return Devices{}, nil
	}
	d, err := ParseDevices(s.devices.value)
	if err != nil {
		return Devices{}, s.devices.wrong(err)
	}
	return d, nil
}

// readAmounts reads one kind of amount, by the GPU's index. What is said in our way is
// of every GPU, and refused where HAMi's variables say something else.
func readAmounts[T comparable](ours *said, parse func(string) (T, error), hami map[int]said, parseHAMi func(string) (T, error)) (map[int]T, error) {
	amounts := map[int]T{}
	for _, i := range sortedKeys(hami) {
		amount, err := parseHAMi(hami[i].value)
		if err != nil {
			return nil, hami[i].wrong(err)
		}
		amounts[i] = amount
	}
	if ours == nil {
		return amounts, nil
	}
	all, err := parse(ours.value)
	if err != nil {
		return nil, ours.wrong(err)
	}
	for _, i := range sortedKeys(amounts) {
		if amounts[i] != all {
			return nil, refuse(grant.ErrMalformed, "%s is %s and %s is %s: they contradict, so set one of them", ours.in, quote.Short(ours.value), hami[i].in, quote.Short(hami[i].value))
		}
	}
	amounts[everyGPU] = all
	return amounts, nil
}

// readPriority reads HAMi's numbers of a priority: 0 is high.
func readPriority(s said, c Config) (high bool, err error) {
	switch {
	case s.value == "1":
		return false, nil
	case s.value != "0":
		return false, s.wrong(refuse(grant.ErrMalformed, "%s is no priority: write 1, or 0 for high", quote.Short(s.value)))
	case !c.AllowHighPriority:
		return false, s.wrong(refuse(ErrForbidden, "high priority (0) is not for containers to choose on this node: leave it out, or let the operator set allowHighPriority in %s", c.Path))
	}
	return true, nil
}

// fromSlice is the request of a container that names a slice of the operator's.
func fromSlice(s *sayings, c Config) (*Request, error) {
	if other := s.any(s.memory, s.cores, s.priority); other != nil {
		return nil, refuse(grant.ErrMalformed, "%s is beside %s, which says memory, cores and priority already: set one of them", other.in, s.slice.in)
	}
	slice, known := c.Slices[s.slice.value]
	if !known {
		return nil, s.slice.wrong(refuse(ErrForbidden, "%s is no slice of this node: %s", quote.Short(s.slice.value), c.sliceNames()))
	}
	r := &Request{Devices: slice.Devices, Amount: slice.Amount, HighPriority: slice.HighPriority, Slice: s.slice.value}
	asked, err := readDevices(s)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Devices.IsZero():
		r.Devices = asked
	case !asked.IsZero() && !asked.Equal(r.Devices):
		return nil, refuse(grant.ErrMalformed, "%s is %s, and the slice %s says devices %v already: leave it out", s.devices.in, quote.Short(s.devices.value), r.Slice, r.Devices)
	}
	return r, nil
}

// sliceNames lists the slices for a message.
func (c Config) sliceNames() string {
	if len(c.Slices) == 0 {
		return fmt.Sprintf("the operator names none in %s", c.Path)
	}
	return fmt.Sprintf("%s has %s", c.Path, strings.Join(sortedKeys(c.Slices), ", "))
}

// fromVisibleDevices reads NVIDIA_VISIBLE_DEVICES as a request for whole GPUs, with no
// share of compute time, as nobody else has room on them.
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
	devices, err := quoted(value, parseNames)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envVisibleDevices, err)
	}
	whole.Devices = devices
	return whole, nil
}

// nameAnnotations hold the container's name: containerd's CRI, the kubelet by CRI-O,
// and nerdctl write it.
var nameAnnotations = []string{"io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"}

// fromGrant is the request of a container that brings its shares. They are found by its
// name where one is known, and are else the only ones.
func fromGrant(notes *sayings, annotations map[string]string) (*Request, error) {
	if other := notes.any(notes.slice, notes.memory, notes.cores, notes.devices, notes.priority); other != nil {
		return nil, refuse(grant.ErrMalformed, "%s is beside %s, which says everything already: set one of them", other.in, notes.grant.in)
	}
	pod, err := grant.DecodeGrant(notes.grant.value)
	if err != nil {
		return nil, notes.grant.wrong(err)
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
		return nil, nil // the pod has a grant, and this container has none of it
	}
	return nil, notes.grant.wrong(refuse(grant.ErrAmbiguous, "is of %d containers (%s), and which of them this one is isn't known: name one", len(pod.Containers), shortList(sortedKeys(pod.Containers))))
}

// shortList joins a few names for a message.
func shortList(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
