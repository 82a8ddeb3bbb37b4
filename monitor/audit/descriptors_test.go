package audit

import (
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// Two devices that can be opened without a driver stand for GPUs: /dev/full and /dev/zero.
const memoryMajor, fullMinor, zeroMinor, randomMinor = 1, 7, 5, 8

var (
	deviceA, deviceB = unix.Mkdev(memoryMajor, fullMinor), unix.Mkdev(memoryMajor, zeroMinor)
	nodes            = map[uint64]DeviceNode{deviceA: {gpuA}, deviceB: {gpuB}}
)

// A container with many processes uses up only its own limit.
func TestDescriptorsKeptAreBounded(t *testing.T) {
	d := newDescriptors("/proc")
	containers := 2 * mostHeld / mostHeldByOne
	for pid := range 2 * mostHeldByOne * containers {
		d.held[openNode{pid + 1, deviceA}] = descriptor{}
	}
	of := func(pid int) string { return strconv.Itoa(pid % containers) }
	assert.ErrorIs(t, d.keep(func(pid int, _ uint64) (string, bool) { return of(pid), true }), errHeld)
	assert.Len(t, d.held, mostHeld)
	first := maps.Clone(d.held)
	for pid := range 2 * mostHeldByOne * containers {
		d.held[openNode{pid + 1, deviceA}] = descriptor{}
	}
	assert.ErrorIs(t, d.keep(func(pid int, _ uint64) (string, bool) { return of(pid), true }), errHeld)
	assert.Equal(t, first, d.held, "the same ones are kept")
	assert.ErrorIs(t, d.keep(func(int, uint64) (string, bool) { return "one", true }), errHeld)
	assert.Len(t, d.held, mostHeldByOne)
}
