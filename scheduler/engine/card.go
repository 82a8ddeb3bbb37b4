package engine

import (
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// usable is why a card is none for the request at all, whatever is free of it.
func usable(card *scheduler.Card, model string, rules *request.Rules) Code {
	switch {
	case !card.Healthy:
		return CardNotHealth
	case card.Cordoned:
		return CardCordoned
	case !rules.TypeFits(model) || !rules.ModeFits(card.Mode):
		return CardTypeMismatch
	case card.Mode == request.ModeMIG:
		return CardMIGMode
	case !rules.UUIDFits(card.UUID):
		return CardUUIDMismatch
	}
	return OK
}

// load is what a pod would have of one card: its needs that are served from it.
type load struct {
	needs []int         // positions in ask.needs, ascending
	most  scheduler.Use // at the worst moment
}

// moments goes through the moments of a card with one need more, as Kubernetes runs the
// containers: sidecars and ordinary containers stay, an init container ends. It tells the
// most that is taken, and the first reason why one of the needs could not have it.
func (a *ask) moments(l *load, add int, others, total scheduler.Use) (most scheduler.Use, why Code) {
	var running scheduler.Use
	alone := false // a container that wants the card for itself runs
	serve := func(i int) {
		need := &a.needs[i]
		exclusive := need.Exclusive(total.Cores)
		if why == OK && (exclusive && others.Slots+running.Slots > 0 || alone) {
			why = ExclusiveDeviceAllocateConflict
		}
		use := need.Use(total.MemoryMiB).Add(running)
		most = most.Max(use)
		if need.Cores == 0 && why == OK && others.Cores+running.Cores >= total.Cores && total.Cores > 0 {
			why = CardComputeUnitsExhausted
		}
		if need.kind != scheduler.Init {
			running = use
			alone = alone || exclusive
		}
	}
	rest := l.needs
	for len(rest) > 0 && rest[0] < add {
		serve(rest[0])
		rest = rest[1:]
	}
	serve(add)
	for _, i := range rest {
		serve(i)
	}
	return most, why
}

// check is why a card that is usable can't serve one need more; most is what the pod would
// take of it.
func (a *ask) check(l *load, add int, others, total scheduler.Use) (most scheduler.Use, why Code) {
	most, rule := a.moments(l, add, others, total)
	all := others.Add(most)
	switch {
	case all.Slots > total.Slots:
		return most, CardTimeSlicingExhausted
	case rule == ExclusiveDeviceAllocateConflict || a.card.Mutex() && others.Slots > 0:
		return most, ExclusiveDeviceAllocateConflict
	case all.MemoryMiB > total.MemoryMiB:
		return most, CardInsufficientMemory
	case all.Cores > total.Cores:
		return most, CardInsufficientCore
	}
	return most, rule
}
