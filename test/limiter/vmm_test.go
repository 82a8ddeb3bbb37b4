//go:build root

package limiter_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

func virtualProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "virtual")
	require.NoError(t, compile(program, "testdata/virtual.c"))
	return program
}

// The library's account follows the driver's, call by call: virtual memory, arrays
// of all shapes, and what is imported.
func TestAccountFollowsTheDriver(t *testing.T) {
	program := virtualProgram(t)
	for name, test := range map[string]struct{ part, keys string }{
		"own": {"own", unpaged}, "own in pages": {"own", ""}, "others": {"others", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, newMachine(t, "H200:context_mib=0"+test.keys), gpu{gpuIDs[0], 100 * giB}).as(t, test.keys)
			bare, _ := c.bare().run(t, program, test.part)
			with, stderr := c.run(t, program, test.part)
			unlessKnown(t, func(t require.TestingT) {
				for i := range min(len(bare), len(with)) { // the first difference is enough
					require.Equal(t, bare[i], with[i], "line %d", i)
				}
			})
			assert.Len(t, with, len(bare))
			assert.Empty(t, stderr)
			assert.Greater(t, len(bare), 15)
			changes := 0
			for _, line := range bare {
				if !strings.HasSuffix(line, " 0") {
					changes++
				}
			}
			assert.Greater(t, changes, 2, "the test tests nothing")
			assert.Zero(t, c.used(t))
		})
	}
}

// cuda-python's order: create, map, release, …, unmap. The memory is the program's
// until the unmap, and no byte of it can be had twice.
func TestReleasedButMappedStaysCharged(t *testing.T) {
	c := oneGPU(t, 8*miB)
	lines, _ := c.probe(t, "init ctx 0 vreserve 64 vcreate 0 8 vmap 0 0 8 0 vrelease 0 info vcreate 0 2 alloc 1 vunmap 0 0 8 info alloc 8388608")
	assert.Equal(t, []string{"init 0", "ctx 0", "vreserve 0", "vcreate 0", "vmap 0", "vrelease 0", "info 0 free 0 total 8388608",
		"vcreate 2", "alloc 2", "vunmap 0", "info 0 free 8388608 total 8388608", "alloc 0"}, lines)
	peak, now := c.peak(t)
	assert.EqualValues(t, 8*miB, peak)
	assert.Zero(t, now)
}

// By location, whatever context is current, or none.
func TestVirtualMemoryIsChargedWhereItLies(t *testing.T) {
	state := newMachine(t, "H200", "H200", "H200")
	c := newContainer(t, state, gpu{gpuIDs[1], 4 * miB}, gpu{gpuIDs[0], 8 * miB}).with("CUDA_VISIBLE_DEVICES=0,1")
	lines, stderr := c.probe(t, "init vcreate 1 6 vcreate 1 4 vcreate 0 8 vcreate 0 2 vcreate -2 64 ctx 0 info ctx 1 info vrelease 0 info")
	assert.Equal(t, []string{"init 0", "vcreate 2", "vcreate 0", "vcreate 0", "vcreate 2", "vcreate 0",
		"ctx 0", "info 0 free 0 total 8388608", "ctx 0", "info 0 free 0 total 4194304", "vrelease 0", "info 0 free 4194304 total 4194304"}, lines)
	assert.Empty(t, stderr)
	denied := newContainer(t, state, gpu{gpuIDs[1], 4 * miB})
	lines, _ = denied.probe(t, "init vcreate 0 2 vcreate 1 2")
	assert.Equal(t, []string{"init 0", "vcreate 3", "vcreate 0"}, lines)
	for _, kind := range []string{"0", "5", "9"} { // nowhere, and what drivers of tomorrow may know
		lines, stderr = c.probe(t, "init vlocation "+kind+" vcreate 0 2")
		assert.Equal(t, "vcreate 801", lines[1])
		assert.Contains(t, stderr, "cuMemCreate: memory at a kind of location that this limiter does not know")
	}
}

// The driver refuses: the reservation is undone; and what it refuses to give back
// stays charged.
func TestRefusalsOfVirtualMemory(t *testing.T) {
	c := oneGPU(t, 8*miB)
	for _, test := range []struct{ symbol, script, want string }{
		{"cuMemCreate", "vcreate 0 8 vcreate 0 8 info", "vcreate 2;vcreate 0;info 0 free 0 total 8388608"},
		{"cuMemRelease", "vcreate 0 8 vrelease 0 info vrelease 0 info",
			"vcreate 0;vrelease 2;info 0 free 0 total 8388608;vrelease 0;info 0 free 8388608 total 8388608"},
		{"cuMemMap", "vcreate 0 8 vmap 0 0 8 0 vrelease 0 info", "vcreate 0;vmap 2;vrelease 0;info 0 free 8388608 total 8388608"},
		{"cuMemUnmap", "vcreate 0 8 vmap 0 0 8 0 vrelease 0 vunmap 0 0 8 info vunmap 0 0 8 info",
			"vcreate 0;vmap 0;vrelease 0;vunmap 2;info 0 free 0 total 8388608;vunmap 0;info 0 free 8388608 total 8388608"},
		{"cuMemRetainAllocationHandle", "vcreate 0 8 vmap 0 0 8 0 vretain 0 0 vrelease 0 vunmap 0 0 8 info",
			"vcreate 0;vmap 0;vretain 2;vrelease 0;vunmap 0;info 0 free 8388608 total 8388608"},
	} {
		t.Run(test.symbol, func(t *testing.T) {
			fail(t, c, test.symbol)
			lines, _ := c.probe(t, "init ctx 0 vreserve 64 "+test.script)
			assert.Equal(t, strings.Split(test.want, ";"), lines[3:])
			assert.Zero(t, c.used(t))
		})
	}
}

// Each retained reference must be released; only then the memory ends.
func TestRetainedReferences(t *testing.T) {
	c := oneGPU(t, 8*miB)
	lines, _ := c.probe(t, "init ctx 0 vreserve 64 vcreate 0 8 vmap 0 0 8 0 vretain 0 4 vretain 0 0 vrelease 0 vrelease 1 vunmap 0 0 8 info vrelease 2 info")
	assert.Equal(t, []string{"info 0 free 0 total 8388608", "vrelease 0", "info 0 free 8388608 total 8388608"}, lines[len(lines)-3:])
}

// Many chunks stay fast and exact.
func TestManyChunks(t *testing.T) {
	c := newContainer(t, newMachine(t, "H200"), gpu{gpuIDs[0], 100 * giB})
	lines, _ := c.probe(t, "init ctx 0 vreserve 102400 vmany 40000 2 info vcreate 0 20480 vunmap 0 0 80000 info")
	total := uint64(100 * giB)
	assert.Equal(t, []string{"vmany 40000 0", fmt.Sprintf("info 0 free %d total %d", total-80000*miB, total), "vcreate 0", "vunmap 0",
		fmt.Sprintf("info 0 free %d total %d", total-20480*miB, total)}, append(lines[3:4:4], lines[4], lines[5], lines[6], lines[7]))
}

// Processes with threads that make, map, retain, release and unmap at random, some of
// them killed: never a byte over, and nothing is left.
func TestVirtualMemoryUnderKills(t *testing.T) {
	const limit = 400 * miB
	// In pages: else three arrays of 16,000,000 bytes beside 354 MiB fit, and the driver takes 48 MiB for them.
	c := newContainer(t, newMachine(t, "H200:context_mib=0"), gpu{gpuIDs[0], limit}).inPages(t)
	program := filepath.Join(t.TempDir(), "segments")
	require.NoError(t, compile(program, "testdata/segments.c", "-pthread"))
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cmd := c.command(program, "3", fmt.Sprint(i), "3")
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if !assert.NoError(t, cmd.Start()) {
				return
			}
			if i%2 == 0 {
				time.AfterFunc(time.Duration(300+100*i)*time.Millisecond, func() { cmd.Process.Kill() })
			}
			err := cmd.Wait()
			if i%2 != 0 {
				assert.NoError(t, err)
				assert.Contains(t, out.String(), "wrong 0")
			}
		}()
	}
	wg.Wait()
	peak, now := c.peak(t)
	assert.LessOrEqual(t, peak, uint64(limit))
	assert.Greater(t, peak, uint64(limit)*9/10, "the limit was never approached: the test tests nothing")
	assert.Zero(t, now)
	assert.Zero(t, c.used(t))
	lines, _ := c.probe(t, "init ctx 0 vcreate 0 400 vcreate 0 2 info")
	assert.Equal(t, []string{"vcreate 0", "vcreate 2", fmt.Sprintf("info 0 free 0 total %d", limit)}, lines[2:])
}

// A reference that is got while the last known one goes.
func TestRetainRacesUnmap(t *testing.T) {
	program := filepath.Join(t.TempDir(), "retain")
	require.NoError(t, compile(program, "testdata/retain.c", "-pthread"))
	c := oneGPU(t, 2*miB)
	lines, stderr := c.run(t, program, "20000")
	t.Log(lines)
	assert.Empty(t, stderr)
	assert.Contains(t, lines[0], "wrong 0")
	peak, _ := c.peak(t)
	assert.EqualValues(t, 2*miB, peak)
}

func exportedProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "exported")
	require.NoError(t, compile(program, "../../testdata/workloads/exported.c", "-D_GNU_SOURCE"))
	return program
}

// Exporting, releasing and importing again gives no memory beyond the limit, and memory that
// a container has by several handles counts once, also where its exporters have ended.
func TestExportedMemoryStaysCharged(t *testing.T) {
	program := exportedProgram(t)
	for _, how := range []string{"own", "others"} {
		t.Run(how, func(t *testing.T) {
			c := oneGPU(t, 100*miB)
			lines, stderr := c.run(t, program, how, "10", "30")
			assert.Equal(t, []string{"made=3", fmt.Sprint("mapped_bytes=", 90*miB), fmt.Sprint("free_bytes=", 10*miB)}, lines)
			assert.Empty(t, stderr)
			peak, now := c.peak(t)
			assert.LessOrEqual(t, peak, uint64(100*miB))
			assert.Zero(t, now)
			assert.Zero(t, c.used(t))
		})
	}
}

// A process that does not use CUDA keeps descriptors of memory of exporters that have ended:
// what they exported stays charged until it ends, and nothing else of theirs does.
func TestDescriptorsOfEndedProcessesKeepTheCharge(t *testing.T) {
	c := oneGPU(t, 100*miB)
	program := exportedProgram(t)
	holder := talk(t, c.command(program, "kept", "10", "30"))
	require.Equal(t, "made=3", holder.hear(t))
	peak, now := c.peak(t)
	require.EqualValues(t, 90*miB, peak)
	require.EqualValues(t, 90*miB, now, "the driver keeps it")

	left := fmt.Sprintf("info 0 free %d total %d", 10*miB, 100*miB)
	lines, _ := c.probe(t, "init ctx 0 info alloc 10485761 alloc 10485760 nvml 0")
	assert.Equal(t, []string{left, "alloc 2", "alloc 0", "nvml 0 total 104857600 free 0 used 104857600"}, lines[2:6])
	living := talk(t, c.command(filepath.Join(bin, "probe"), "init", "line"))
	require.Equal(t, "init 0", living.hear(t))
	var u limiter.Usage
	eventually(t, waitLong, "it has its slot", func() bool {
		var err error
		u, err = limiter.ReadUsage(c.usage())
		return assert.NoError(t, err) && u.Processes == 1
	})
	assert.Equal(t, limiter.DeviceUsage{UUID: gpuIDs[0], UsedBytes: 90 * miB, VMMBytes: 90 * miB, HeldBytes: 90 * miB, RefusedAllocations: u.Devices[0].RefusedAllocations}, u.Devices[0])
	living.tell(t, "")
	living.cmd.Wait()
	lines, _ = c.run(t, program, "kept", "1", "30") // a second round
	assert.Equal(t, "made=0", lines[0])

	require.NoError(t, holder.in.Close())
	holder.cmd.Wait()
	_, now = c.peak(t)
	require.Zero(t, now)
	lines, _ = c.probe(t, "init ctx 0 info")
	assert.Equal(t, fmt.Sprintf("info 0 free %d total %d", 100*miB, 100*miB), lines[2])
	assert.Zero(t, c.used(t))
}

// A process that exported calls exec, with a descriptor that the new program inherits: only what
// it exported stays.
func TestDescriptorIsInherited(t *testing.T) {
	c := oneGPU(t, 100*miB)
	fail(t, c, "cuMemExportToShareableHandle")
	cmd := talk(t, c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 vcreate 0 20 vcreate 0 10 alloc 10000000 vexport 1 vexport 0 vexport 0 vclose 1 vinherit 0 exec cat")...))
	for _, want := range []string{"init 0", "ctx 0", "vcreate 0", "vcreate 0", "alloc 0", "vexport 2", "vexport 0", "vexport 0", "vclose 0", "vinherit 0"} {
		require.Equal(t, want, cmd.hear(t))
	}
	cmd.tell(t, "it is cat")
	require.Equal(t, "it is cat", cmd.hear(t))
	eventually(t, waitLong, "the rest is free", func() bool {
		lines, _ := c.probe(t, "init ctx 0 info")
		return lines[2] == fmt.Sprintf("info 0 free %d total %d", 80*miB, 100*miB)
	})
	require.NoError(t, cmd.in.Close())
	cmd.cmd.Wait()
	lines, _ := c.probe(t, "init ctx 0 alloc 104857600")
	assert.Equal(t, "alloc 0", lines[2])
	assert.Zero(t, c.used(t))
}

// Memory of the container counts once: as long as its exporter lives, a descriptor of it is
// there, or an import.
func TestImportsCountOnce(t *testing.T) {
	free := func(mib int) string { return fmt.Sprintf("info 0 free %d total 104857600;", mib*miB) }
	for _, test := range []struct{ description, script, want string }{
		{"released, but exported", "init ctx 0 vcreate 0 40 vexport 0 vrelease 0 vclose 0 info",
			"vcreate 0;vexport 0;vrelease 0;vclose 0;" + free(60)},
		{"exported twice", "init ctx 0 vcreate 0 40 vexport 0 vexport 0 vrelease 0 info", "vcreate 0;vexport 0;vexport 0;vrelease 0;" + free(60)},
		{"imported by the exporter", "init ctx 0 vcreate 0 60 vexport 0 vimport 0 vimport 0 info vrelease 1 vrelease 2 info",
			"vcreate 0;vexport 0;vimport 0;vimport 0;" + free(40) + "vrelease 0;vrelease 0;" + free(40)},
		{"a descriptor holds it", "vborn 60 init ctx 0 info vclose 0 info", "vborn 0;" + free(40) + "vclose 0;" + free(100)},
		{"imports hold it", "vborn 60 init ctx 0 vimport 0 vimport 0 info vdrop 0 info vrelease 0 info vrelease 1 info",
			"vborn 0;vimport 0;vimport 0;" + free(40) + "vdrop 0;" + free(40) + "vrelease 0;" + free(40) + "vrelease 0;" + free(100)},
		{"a mapping holds it", "vborn 60 init ctx 0 vreserve 64 vimport 0 vdrop 0 vmap 0 0 60 0 vrelease 0 info vunmap 0 0 60 info",
			"vborn 0;vreserve 0;vimport 0;vdrop 0;vmap 0;vrelease 0;" + free(40) + "vunmap 0;" + free(100)},
		{"one of two exporters", "vborn 30 vborn 40 init ctx 0 vimport 1 vdrop 1 vdrop 0 info vrelease 0 info",
			"vborn 0;vborn 0;vimport 0;vdrop 0;vdrop 0;" + free(60) + "vrelease 0;" + free(100)},
		{"an import is exported", "vborn 60 init ctx 0 vimport 0 vdrop 0 vexport 0 vrelease 0 info vimport 1 vdrop 1 info vrelease 1 info",
			"vborn 0;vimport 0;vdrop 0;vexport 0;vrelease 0;" + free(40) + "vimport 0;vdrop 0;" + free(40) + "vrelease 0;" + free(100)},
		{"no import after all", "vborn 60 init ctx 0 vclose 0 vimport 0 info", "vborn 0;vclose 0;vimport 1;" + free(100)},
		{"a descriptor without a mark", "init ctx 0 vcreate 0 30 vexport 0 vunmark 0 vimport 0 info vrelease 1 info",
			"vcreate 0;vexport 0;vunmark 0;vimport 0;" + free(40) + "vrelease 0;" + free(70)},
	} {
		t.Run(test.description, func(t *testing.T) {
			c := oneGPU(t, 100*miB)
			lines, stderr := c.probe(t, test.script)
			var got string
			for _, line := range lines {
				if line != "init 0" && line != "ctx 0" {
					got += line + ";"
				}
			}
			assert.Equal(t, test.want, got)
			assert.Empty(t, stderr)
			peak, now := c.peak(t)
			assert.LessOrEqual(t, peak, uint64(100*miB))
			assert.Zero(t, now)
			assert.Zero(t, c.used(t))
		})
	}
}

// Of more processes than a slot has places for, imports are charged in full.
func TestImportsOfManyProcesses(t *testing.T) {
	const most = 40
	c := oneGPU(t, 200*miB)
	lines, _ := c.probe(t, strings.Repeat("vborn 2 ", most+1)+"init ctx 0 info "+strings.Join(numbered("vimport", most), " ")+" info vimport 40 info vrelease 0 vimport 0 info")
	free := func(mib int) string { return fmt.Sprintf("info 0 free %d total %d", mib*miB, 200*miB) }
	lines = lines[most+3:]
	assert.Equal(t, free(200-2*(most+1)), lines[0])
	lines = lines[1+most:]
	assert.Equal(t, []string{free(200 - 2*(most+1)), "vimport 0", free(200 - 2*(most+2)), "vrelease 0", "vimport 0", free(200 - 2*(most+2))}, lines)
	assert.Zero(t, c.used(t))
}

func numbered(word string, count int) (words []string) {
	for i := range count {
		words = append(words, fmt.Sprint(word, " ", i))
	}
	return words
}

// Another container is charged for its import of the same memory, in full.
func TestImportIntoAnotherContainer(t *testing.T) {
	c := oneGPU(t, 100*miB)
	other := newContainer(t, c.state, gpu{gpuIDs[0], 100 * miB}).with("PROBE_EXPORTER=" + c.usage())
	importer := talk(t, other.command(filepath.Join(bin, "probe"), strings.Fields("vborn 60 init ctx 0 info vimport 0 info vimport 0 vdrop 0 line vrelease 0 info line")...))
	for _, want := range []string{"vborn 0", "init 0", "ctx 0", "info 0 free 104857600 total 104857600", "vimport 0",
		fmt.Sprintf("info 0 free %d total 104857600", 40*miB), "vimport 2", "vdrop 0"} {
		require.Equal(t, want, importer.hear(t))
	}
	assert.EqualValues(t, 60*miB, other.used(t))
	lines, _ := c.probe(t, "init ctx 0 info")
	assert.Equal(t, "info 0 free 104857600 total 104857600", lines[2], "it is charged there, and only there")
	importer.tell(t, "")
	require.Equal(t, "vrelease 0", importer.hear(t))
	require.Equal(t, "info 0 free 104857600 total 104857600", importer.hear(t))
	importer.tell(t, "")
	importer.cmd.Wait()
	assert.Zero(t, c.used(t))
	assert.Zero(t, other.used(t))
}

// The driver refuses to export or to import: nothing stays charged that was not before.
func TestRefusedExportsAndImports(t *testing.T) {
	const fromOutside, tried = "vcreate 0 20 vexport 0 vunmark 0 vimport 0 info", "vcreate 0;vexport 0;vunmark 0;vimport 801;info 0 free 83886080 total 104857600"
	for _, test := range []struct{ symbol, script, want string }{
		{"cuMemExportToShareableHandle", "vcreate 0 20 vexport 0 vrelease 0 info", "vcreate 0;vexport 2;vrelease 0;info 0 free 104857600 total 104857600"},
		{"cuMemImportFromShareableHandle", "vcreate 0 20 vexport 0 vimport 0 info", "vcreate 0;vexport 0;vimport 2;info 0 free 83886080 total 104857600"},
		{"cuMemMap", fromOutside, tried},
		{"cuMemAddressReserve", fromOutside, tried},
	} {
		t.Run(test.symbol, func(t *testing.T) {
			c := oneGPU(t, 100*miB)
			fail(t, c, test.symbol)
			lines, _ := c.probe(t, "init ctx 0 "+test.script)
			assert.Equal(t, strings.Split(test.want, ";"), lines[2:])
			assert.Zero(t, c.used(t))
		})
	}
	c := oneGPU(t, 100*miB)
	lines, stderr := c.probe(t, "init ctx 0 vfabric")
	assert.Equal(t, "vfabric 801", lines[2])
	assert.Contains(t, stderr, "handle type 8 (not a file descriptor) is not supported inside a limit")
}

// A process that exports and imports is killed at every place in the driver's accounting:
// nothing stays charged, and nothing stays taken.
func TestExportsUnderKills(t *testing.T) {
	c := oneGPU(t, 100*miB)
	program := exportedProgram(t)
	for point := 1; ; point++ {
		require.Less(t, point, 1000)
		lines, _ := c.with(fmt.Sprint("SIMGPU_CRASH=", point)).run(t, program, "own", "3", "20")
		peak, now := c.peak(t)
		require.LessOrEqual(t, peak, uint64(100*miB), "crash point %d", point)
		require.Zero(t, now, "crash point %d", point)
		require.Zero(t, c.used(t), "crash point %d", point)
		if lines[0] != "" {
			require.Equal(t, "made=3", lines[0])
			require.Greater(t, point, 30)
			return
		}
	}
}
