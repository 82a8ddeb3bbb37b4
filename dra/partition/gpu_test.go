package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

var errGPUInUse = errors.New("in use by another client")

// killed is the panic that stands for kill -9.
type killed struct{}

// gpu is a GPU in MIG mode. IDs follow from the place, as on a real one.
type gpu struct {
	list []instance
	// sameUUIDs: a UUID follows from the place too.
	sameUUIDs bool
	serial    int
	// left counts the steps to the kill; below 0: none.
	left int
	// busy are compute instances that a process has, by UUID.
	busy    map[string]bool
	changed map[string]int // foreign instances that were destroyed
	fails   map[string]error
	// before is called before a GPU instance is made.
	before func()
}

type instance struct {
	hardware.GPUInstance
	foreign bool
	serial  int
}

const size = 8

func newGPU() *gpu {
	return &gpu{left: -1, busy: map[string]bool{}, changed: map[string]int{}, fails: map[string]error{}}
}

// step is a moment in which the process can be killed.
func (g *gpu) step() {
	if g.left == 0 {
		g.left = -1
		panic(killed{})
	}
	if g.left > 0 {
		g.left--
	}
}

func (g *gpu) fail(call string) error {
	err := g.fails[call]
	delete(g.fails, call)
	return err
}

func (g *gpu) Instances(context.Context, string) (all []hardware.GPUInstance, err error) {
	if err := g.fail("list"); err != nil {
		return nil, err
	}
	for _, i := range g.list {
		one := i.GPUInstance
		one.Compute = slices.Clone(one.Compute)
		all = append(all, one)
	}
	return all, nil
}

func (g *gpu) CreateInstance(_ context.Context, _ string, profile, start, size int) (int, bool, error) {
	g.step()
	if g.before != nil {
		g.before()
	}
	if err := g.fail("create"); err != nil {
		return 0, false, err
	}
	id, err := g.put(profile, hardware.Place{Start: start, Size: size}, false)
	if err != nil {
		return 0, false, err
	}
	g.step()
	if err := g.fail("info"); err != nil {
		return 0, true, err
	}
	return id, true, nil
}

func (g *gpu) put(profile int, at hardware.Place, foreign bool) (int, error) {
	if slices.ContainsFunc(g.list, func(i instance) bool { return i.Place.Overlaps(at) }) {
		return 0, errors.New("insufficient resources")
	}
	g.serial++
	i := instance{GPUInstance: hardware.GPUInstance{ID: size/at.Size - 1 + at.Start/at.Size, Profile: profile, Place: at}, foreign: foreign, serial: g.serial}
	g.list = append(g.list, i)
	return i.ID, nil
}

func (g *gpu) uuid(i instance) string {
	if g.sameUUIDs {
		return fmt.Sprint("MIG-", i.ID)
	}
	return fmt.Sprint("MIG-", i.ID, "-", i.serial)
}

func (g *gpu) compute(i int) {
	g.list[i].Compute = []hardware.ComputeInstance{{UUID: g.uuid(g.list[i])}}
}

func (g *gpu) find(id int) int {
	return slices.IndexFunc(g.list, func(i instance) bool { return i.ID == id })
}

func (g *gpu) CreateCompute(_ context.Context, _ string, id int) error {
	g.step()
	if err := g.fail("compute"); err != nil {
		return err
	}
	g.compute(g.find(id))
	g.step()
	return nil
}

func (g *gpu) DestroyCompute(_ context.Context, _ string, id, _ int) error {
	g.step()
	i := g.find(id)
	if err := g.fail("destroy"); err != nil {
		return err
	}
	if g.busy[g.list[i].Compute[0].UUID] {
		return errGPUInUse
	}
	if g.list[i].foreign {
		g.changed[g.list[i].Compute[0].UUID]++
	}
	g.list[i].Compute = nil
	g.step()
	return nil
}

func (g *gpu) DestroyInstance(_ context.Context, _ string, id int) error {
	g.step()
	i := g.find(id)
	if len(g.list[i].Compute) > 0 {
		return errGPUInUse
	}
	if g.list[i].foreign {
		g.changed[fmt.Sprint(id)]++
	}
	g.list = slices.Delete(g.list, i, i+1)
	g.step()
	return nil
}

// remove is an administrator's nvidia-smi mig -dci, -dgi.
func (g *gpu) remove(at hardware.Place) {
	g.list = slices.DeleteFunc(g.list, func(i instance) bool { return i.Place == at })
}

// foreign is a MIG device that an administrator makes; false: there is no room.
func (g *gpu) foreign(profile int, at hardware.Place) bool {
	if _, err := g.put(profile, at, true); err != nil {
		return false
	}
	g.compute(len(g.list) - 1)
	return true
}
