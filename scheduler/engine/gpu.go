package engine

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// usable ignores how much is free.
func usable(gpu *scheduler.GPU, typeFits bool, rules *request.Rules) Code {
	switch {
	case !gpu.Healthy:
		return CardNotHealth
	case gpu.Cordoned:
		return GPUCordoned
	case gpu.MemoryMiB < 1 || gpu.Replicas < 1:
		return GPUEmpty
	case !typeFits || !rules.ModeFits(gpu.Mode):
		return CardTypeMismatch
	case gpu.Mode == api.ModeMIG:
		return GPUMIGMode
	case !rules.UUIDFits(gpu.UUID):
		return CardUUIDMismatch
	}
	return OK
}

type gpuLoad struct {
	containers []int         // positions in compiled.containers, ascending
	most       scheduler.Use // peak use
}

// simulate starts the containers with one added: init containers end, others keep running.
func (a *compiled) simulate(l *gpuLoad, add int, others, total *scheduler.Use) (scheduler.Use, Code) {
	m := startup{others: others, total: total}
	rest := l.containers
	for len(rest) > 0 && rest[0] < add {
		m.start(&a.containers[rest[0]])
		rest = rest[1:]
	}
	m.start(&a.containers[add])
	for _, i := range rest {
		m.start(&a.containers[i])
	}
	return m.most, m.code
}

// startup is the state of one GPU while the pod starts.
type startup struct {
	others, total *scheduler.Use
	running, most scheduler.Use // of the pod
	exclusive     bool          // a container with exclusive use runs
	code          Code          // the first broken rule
}

func (m *startup) start(container *container) {
	exclusive := container.Exclusive(m.total.Cores)
	switch {
	case m.code != OK:
	case exclusive && m.others.Replicas+m.running.Replicas > 0 || m.exclusive:
		m.code = ExclusiveDeviceAllocateConflict
	case container.Cores == 0 && m.others.Cores+m.running.Cores >= m.total.Cores && m.total.Cores > 0:
		m.code = CardComputeUnitsExhausted
	}
	use := container.Use(m.total.MemoryMiB).Add(m.running)
	m.most = m.most.Max(use)
	if container.kind != scheduler.Init {
		m.running = use
		m.exclusive = m.exclusive || exclusive
	}
}

// check returns why a usable GPU can't serve the added container, and the pod's peak use.
func (a *compiled) check(l *gpuLoad, add int, others, total *scheduler.Use) (most scheduler.Use, reason Code) {
	most, rule := a.simulate(l, add, others, total)
	all := others.Add(most)
	switch {
	case all.Replicas > total.Replicas:
		return most, CardTimeSlicingExhausted
	case rule == ExclusiveDeviceAllocateConflict || a.gpu.Mutex && others.Replicas > 0:
		return most, ExclusiveDeviceAllocateConflict
	case all.MemoryMiB > total.MemoryMiB:
		return most, CardInsufficientMemory
	case all.Cores > total.Cores:
		return most, CardInsufficientCore
	}
	return most, rule
}
