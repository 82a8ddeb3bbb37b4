package feedback

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// charge sets the charge of a container's first process.
func (s *scene) charge(t *testing.T, i int, bytes uint64) {
	t.Helper()
	s.chargeManaged(t, i, bytes, 0)
}

// chargeManaged is the same where a part of it is managed memory.
func (s *scene) chargeManaged(t *testing.T, i int, bytes, managed uint64) {
	t.Helper()
	f, err := os.OpenFile(limiter.UsagePath(s.containers[i].Dir), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	le := binary.LittleEndian
	for at, data := range map[int64][]byte{
		1024:       le.AppendUint32(nil, 2),     // slots that were ever claimed
		4096:       le.AppendUint32(nil, 77),    // its owner lives
		4096 + 128: le.AppendUint64(nil, bytes), // what it has charged of the first GPU
		// and what of it the driver has on no process's account
		4096 + 128 + 56: le.AppendUint64(nil, managed),
	} {
		_, err = f.WriteAt(data, at)
		require.NoError(t, err)
	}
}

// hold sets the memory that a container holds after the process that exported it ended.
func (s *scene) hold(t *testing.T, i int, bytes uint64) {
	t.Helper()
	f, err := os.OpenFile(limiter.UsagePath(s.containers[i].Dir), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	const second = 4096 + 1280
	_, err = f.WriteAt(binary.LittleEndian.AppendUint32(nil, 0x40000000), second)
	require.NoError(t, err)
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, bytes), second+128)
	require.NoError(t, err)
}

// The residue stays when the agent starts again: without it the container could allocate that memory once more.
func TestResidueStaysAtAStart(t *testing.T) {
	s := newScene(t)
	s.charge(t, 0, 1000)
	look := func(bytes uint64) {
		t.Helper()
		s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1, Bytes: bytes}}}
		require.NoError(t, s.once())
	}
	for range residueLooks {
		look(1400)
	}
	require.Equal(t, uint64(400), s.residueOf(t, 0))
	s.Loop = New(s.config)
	look(1400)
	require.Equal(t, uint64(400), s.residueOf(t, 0))
	look(9000)
	require.Equal(t, uint64(400), s.residueOf(t, 0), "it does not grow by one look")
	look(1100)
	require.Equal(t, uint64(100), s.residueOf(t, 0), "a lower one counts at once")
}

// Where the driver limits a control group, its count of the group holds, also of memory that NVML's list of processes lacks.
func TestResidueByTheDriversCount(t *testing.T) {
	s := newScene(t)
	var counted map[string]uint64
	var failure error
	s.Loop.config.Counted = func(_ context.Context, c Container) (map[string]uint64, error) {
		require.Equal(t, []string{gpu0}, c.Limited)
		return counted, failure
	}
	s.containers[0].Limited = []string{gpu0}
	looks := func() {
		t.Helper()
		for range residueLooks {
			require.ErrorIs(t, s.once(), failure)
		}
	}
	s.charge(t, 0, 1000)
	s.charge(t, 1, 1000)
	s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1, Bytes: 9000}, {PID: 2, Bytes: 1100}}}
	counted = map[string]uint64{gpu0: 1300}
	looks()
	require.Equal(t, uint64(300), s.residueOf(t, 0))
	require.Equal(t, uint64(100), s.residueOf(t, 1), "the other container has NVML's list")
	s.hold(t, 0, 200)
	looks()
	require.Equal(t, uint64(100), s.residueOf(t, 0), "a group keeps what an ended process exported")

	s.hold(t, 0, 0)
	s.memories = map[string][]nvidia.ProcessMemory{}
	looks()
	require.Equal(t, uint64(300), s.residueOf(t, 0), "NVML lists no process")
	counted = map[string]uint64{gpu0: 0}
	s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1, Bytes: 9000}}}
	looks()
	require.Zero(t, s.residueOf(t, 0), "the group has nothing")
	counted, failure = nil, errors.New("no answer")
	looks()
	require.Equal(t, uint64(8000), s.residueOf(t, 0), "without the count NVML's list holds")
}

func TestResidue(t *testing.T) {
	s := newScene(t)
	look := func(a, b uint64) {
		t.Helper()
		s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1, Bytes: a / 2}, {PID: 3, Bytes: a - a/2}, {PID: 2, Bytes: b}, {PID: 99, Bytes: 1 << 40}}}
		require.NoError(t, s.once())
	}
	s.charge(t, 0, 1000)
	s.charge(t, 1, 5000)
	for range residueLooks {
		assert.Zero(t, s.residueOf(t, 0), "one look proves nothing")
		look(1400, 4000)
	}
	assert.Equal(t, uint64(400), s.residueOf(t, 0), "two processes together have more than is charged")
	assert.Zero(t, s.residueOf(t, 1), "less than is charged, and a stranger's memory, are no residue")

	look(9000, 4000)
	assert.Equal(t, uint64(400), s.residueOf(t, 0), "what is allocated meanwhile is none")
	look(1100, 4000)
	assert.Equal(t, uint64(100), s.residueOf(t, 0), "a lower residue counts at once")
	look(0, 4000)
	assert.Zero(t, s.residueOf(t, 0))

	s.chargeManaged(t, 0, 1000, 700)
	for range residueLooks {
		look(500, 4000)
	}
	assert.Equal(t, uint64(200), s.residueOf(t, 0), "of 500 bytes 300 are charged: the driver has managed memory for no process")
	s.hold(t, 0, 300)
	look(500, 4000)
	assert.Equal(t, uint64(200), s.residueOf(t, 0), "nor what an ended process exported")
	look(0, 4000)

	// A container that spoils its file is held to what the driver sees.
	require.NoError(t, os.WriteFile(limiter.UsagePath(s.containers[1].Dir), []byte("spoilt"), 0o600))
	for range residueLooks {
		look(0, 4000)
	}
	assert.Equal(t, uint64(4000), s.residueOf(t, 1))

	// All processes are gone: the residue is reset, and then no file is read.
	s.memories = map[string][]nvidia.ProcessMemory{gpu0: {}}
	require.NoError(t, s.once())
	assert.Zero(t, s.residueOf(t, 1))
	require.NoError(t, s.once())
	for _, c := range s.containers {
		require.NoError(t, os.Remove(limiter.LimitsPath(c.Dir)))
	}
	require.NoError(t, s.once(), "no file of an idle container is read")
}
