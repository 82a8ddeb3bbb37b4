package request

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

const (
	// blockMiB is a unit of gpu-manager's memory.
	blockMiB   = 256
	wholeCores = grant.MaxCorePercent
)

type amount struct {
	name string
	n    int64
	set  bool
}

func (a amount) positive() bool { return a.set && a.n != 0 }

func (a amount) errorf(format string, args ...any) error {
	return &Error{Key: a.name, Value: strconv.FormatInt(a.n, 10), Why: fmt.Sprintf(format, args...)}
}

func read(c *scheduler.Container, name string) (amount, error) {
	a := amount{name: name}
	if name == "" {
		return a, nil
	}
	limit, ok := c.Resources[name]
	if !ok {
		return a, nil
	}
	if limit.Invalid != "" {
		return a, &Error{Key: name, Value: quote.Short(limit.Invalid), Why: "must be an integer"}
	}
	if a.n, a.set = limit.Value, true; a.n < 0 {
		return a, a.errorf("must not be negative")
	}
	return a, nil
}

type amounts struct{ count, memory, percent, cores, priority, vcudaCore, vcudaMemory amount }

func readAll(c *scheduler.Container, names *Names) (a amounts, err error) {
	for _, to := range [...]struct {
		amount *amount
		name   string
	}{
		{&a.count, names.Count}, {&a.memory, names.Memory}, {&a.percent, names.MemoryPercentage}, {&a.cores, names.Cores},
		{&a.priority, names.Priority}, {&a.vcudaCore, names.VcudaCore}, {&a.vcudaMemory, names.VcudaMemory},
	} {
		if *to.amount, err = read(c, to.name); err != nil {
			return a, err
		}
	}
	return a, nil
}

func fromContainer(c *scheduler.Container, o *Options) (requested Container, high bool, err error) {
	if len(c.Resources) == 0 {
		return Container{}, false, nil
	}
	a, err := readAll(c, &o.Names)
	if err == nil {
		requested, high, err = fromAmounts(&a, o)
	}
	if err == nil && requested.GPUs > 0 {
		err = checkMIG(c)
	}
	if e, ok := err.(*Error); ok {
		e.Container = c.Name
		return Container{}, false, e
	}
	return requested, high, nil
}

// checkMIG refuses GPUs together with MIG devices: a CUDA program uses one or the other.
func checkMIG(c *scheduler.Container) error {
	first := ""
	for name, amount := range c.Resources {
		if strings.Contains(name, "/mig-") && amount.Value != 0 && (first == "" || name < first) {
			first = name
		}
	}
	if first == "" {
		return nil
	}
	return &Error{Key: first, Value: strconv.FormatInt(c.Resources[first].Value, 10),
		Why: "the container requests GPUs too, and a CUDA program uses either GPUs or a MIG device: request only one of them"}
}

func fromAmounts(a *amounts, o *Options) (Container, bool, error) {
	requested, err := hami(a, o)
	if err != nil {
		return Container{}, false, err
	}
	high, err := priority(a, requested.GPUs > 0, o)
	if err != nil {
		return Container{}, false, err
	}
	vcuda, err := gpuManager(a, o)
	switch {
	case err != nil:
		return Container{}, false, err
	case requested.GPUs > 0 && vcuda.GPUs > 0:
		return Container{}, false, a.vcudaCore.errorf("the container also requests GPUs by %s: use only one of them", o.Names.Count)
	case vcuda.GPUs > 0:
		return vcuda, false, nil
	}
	return requested, high, nil
}

// hami reads HAMi's resources. HAMi itself clamps or ignores some mistakes that this rejects
// (GenerateResourceRequests in its device.go): more than 100 cores or percent, memory that doesn't fit or
// is set twice or 0.
func hami(a *amounts, o *Options) (Container, error) {
	var c Container
	of := a.memory.positive() || a.percent.positive() || a.cores.positive()
	switch {
	case a.count.set && a.count.n == 0:
		if of {
			return c, a.count.errorf("requests no GPU, but the container requests memory or cores of each: request 1 or more, or remove the others")
		}
		return c, nil
	case !a.count.set && !a.memory.set && !a.percent.set && !a.cores.set:
		return c, nil
	case !a.count.set && !a.memory.set && !a.percent.set && a.cores.n == 0:
		return c, a.cores.errorf("requests nothing: set the number of GPUs by %s, or remove it", o.Names.Count)
	case !a.count.set && o.DefaultCount < 1:
		return c, &Error{Key: o.Names.Count, Why: "is missing: set the number of GPUs"}
	case a.count.n > grant.MaxShares:
		return c, a.count.errorf("a container may have at most %d GPUs", grant.MaxShares)
	}
	c.GPUs = o.DefaultCount
	if a.count.set {
		c.GPUs = int(a.count.n)
	}
	if err := c.memory(a, o); err != nil {
		return Container{}, err
	}
	switch {
	case a.cores.n > wholeCores:
		return Container{}, a.cores.errorf("is percent of each GPU: request at most %d, and more GPUs by %s", wholeCores, o.Names.Count)
	case a.cores.set:
		c.Cores = int(a.cores.n)
	case c.MemoryPercent == 100:
		c.Cores = wholeCores // as HAMi's webhook: the GPU is full
	default:
		c.Cores = o.DefaultCores
	}
	return c, nil
}

// memory reads gpumem and gpumem-percentage.
func (c *Container) memory(a *amounts, o *Options) error {
	factor := max(o.MemoryFactor, 1)
	switch {
	case a.memory.set && a.percent.set:
		return a.percent.errorf("%s is set too (%d): use only one of them", o.Names.Memory, a.memory.n)
	case a.memory.set && a.memory.n == 0, a.percent.set && a.percent.n == 0:
		zero := a.memory
		if a.percent.set {
			zero = a.percent
		}
		return zero.errorf("no program runs without memory: remove it for the default, or request more")
	case a.memory.n > grant.MaxMemoryMiB/factor:
		return a.memory.errorf("is more than any GPU has: the unit is %d MiB of each GPU", factor)
	case a.percent.n > 100:
		return a.percent.errorf("is percent of each GPU's memory: request at most 100, and more GPUs by %s", o.Names.Count)
	case a.memory.set:
		c.MemoryMiB = a.memory.n * factor
	case a.percent.set:
		c.MemoryPercent = int(a.percent.n)
	case o.DefaultMemoryMiB > 0:
		c.MemoryMiB = o.DefaultMemoryMiB
	default:
		c.MemoryPercent = 100
	}
	return nil
}

// priority reads HAMi's priority: 0 is high.
func priority(a *amounts, gpus bool, o *Options) (high bool, err error) {
	switch {
	case !a.priority.set:
		return false, nil
	case a.priority.n > 1:
		return false, a.priority.errorf("must be 0 (high) or 1")
	case !gpus && !a.count.set:
		return false, a.priority.errorf("the container requests no GPU: set %s too, or remove it", o.Names.Count)
	}
	return gpus && a.priority.n == 0, nil
}

// gpuManager reads vcuda-core (1 to 99: a part of a GPU, which needs memory; multiples of 100: whole GPUs)
// and vcuda-memory (blocks of 256 MiB, of all GPUs together). gpu-manager gives whole GPUs with all their memory,
// whatever the amount of vcuda-memory.
func gpuManager(a *amounts, o *Options) (Container, error) {
	cores, memory := a.vcudaCore, a.vcudaMemory
	switch {
	case cores.n == 0 && memory.n == 0:
		return Container{}, nil
	case cores.n == 0:
		return Container{}, memory.errorf("a container with memory needs cores: set %s too, 1 to 99 for a part of a GPU", cores.name)
	case cores.n < wholeCores && memory.n == 0:
		return Container{}, cores.errorf("a part of a GPU needs memory: set %s too, in blocks of %d MiB", memory.name, blockMiB)
	case cores.n > wholeCores && cores.n%wholeCores != 0:
		return Container{}, cores.errorf("cores above 100 must be a multiple of 100 (one GPU): request %d or %d",
			cores.n/100*100, (cores.n/100+1)*100)
	case cores.n > grant.MaxShares*wholeCores:
		return Container{}, cores.errorf("a container may have at most %d GPUs", grant.MaxShares)
	}
	c := Container{GPUs: int(max(cores.n/wholeCores, 1)), Cores: int(min(cores.n, wholeCores))}
	switch n := int64(c.GPUs); {
	case memory.n == 0, c.Cores == wholeCores && !o.VcudaLimitsWholeGPUs:
		c.MemoryPercent = 100
	case memory.n%n != 0:
		return Container{}, memory.errorf("is for all %d GPUs together and can't be divided by %d: request a multiple of "+
			"it, or remove it for all memory", n, n)
	case memory.n/n > grant.MaxMemoryMiB/blockMiB:
		return Container{}, memory.errorf("is more than any GPU has: the unit is %d MiB", blockMiB)
	default:
		c.MemoryMiB = memory.n / n * blockMiB
	}
	return c, nil
}

// Limits on annotations, to bound the cost of evaluating a GPU.
const (
	maxListBytes   = 64 << 10
	maxTypes       = 64
	maxUUIDs       = 1024
	maxPolicyBytes = 256
	maxGroup       = 10_000
)

// annotationReader reads annotations until the first error.
type annotationReader struct {
	annotations map[string]string
	err         error
}

func (n *annotationReader) read(key string, parse func(value string) error) {
	value, ok := n.annotations[key]
	if !ok || n.err != nil {
		return
	}
	if err := parse(value); err != nil {
		n.err = &Error{Key: key, Value: quote.Short(value), Why: err.Error()}
	}
}

// list reads a comma-separated list and sorts it. Blank is no list, and empty entries are none (HAMi's rules).
func (n *annotationReader) list(key string, most int, entry func(string) (string, error)) (entries []string) {
	n.read(key, func(value string) (err error) {
		if strings.TrimSpace(value) != "" {
			entries, err = split(value, most, entry)
		}
		return err
	})
	slices.Sort(entries)
	return slices.Compact(entries)
}

func split(value string, most int, entry func(string) (string, error)) ([]string, error) {
	if len(value) > maxListBytes {
		return nil, fmt.Errorf("may have at most %d bytes", maxListBytes)
	}
	count := strings.Count(value, ",") + 1
	if count > most {
		return nil, fmt.Errorf("has %d entries, at most %d are allowed", count, most)
	}
	var entries []string
	for e := range strings.SplitSeq(value, ",") {
		if e = strings.TrimSpace(e); e == "" {
			continue // as HAMi does
		}
		e, err := entry(e)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (n *annotationReader) text(key string, check func(string) error) (text string) {
	n.read(key, func(value string) error {
		if len(value) > maxPolicyBytes {
			return fmt.Errorf("may have at most %d bytes", maxPolicyBytes)
		}
		text = strings.TrimSpace(value)
		return check(text)
	})
	return text
}

// isolation is with HAMi's mode "mig".
func (n *annotationReader) isolation() (wanted grant.Isolation) {
	n.read(api.AnnotationIsolation, func(value string) (err error) {
		_, err = grant.ParseIsolation(value)
		return err
	})
	if n.err == nil {
		wanted, n.err = grant.RequestedIsolation(n.annotations)
	}
	return wanted
}

func (n *annotationReader) boolean(key string) (is bool) {
	n.read(key, func(value string) (err error) {
		if is, err = strconv.ParseBool(strings.TrimSpace(value)); err != nil {
			err = errors.New("must be true or false")
		}
		return err
	})
	return is
}

// groupMin checks an annotation that package gang reads.
func (n *annotationReader) groupMin(group string) {
	n.read(api.AnnotationGroupMin, func(value string) error {
		if least, err := strconv.Atoi(value); err != nil || least < 1 || least > maxGroup {
			return fmt.Errorf("must be a number of pods from 1 to %d", maxGroup)
		}
		if group == "" {
			return fmt.Errorf("the pod has no group: set the label %s", api.LabelGroup)
		}
		return nil
	})
}

// ceiling checks an annotation that only the node uses.
func (n *annotationReader) ceiling(key string) {
	n.read(key, func(value string) error {
		if _, err := grant.CoreCeiling(grant.Pod{Annotations: map[string]string{key: value}}, ""); err != nil {
			return fmt.Errorf("must be 1 to %d percent of a GPU, in digits", grant.MaxCorePercent)
		}
		return nil
	})
}
