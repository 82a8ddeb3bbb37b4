//go:build root

package audit

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

func lives(c *exec.Cmd) bool {
	s, err := procfs.FS("/proc").Stat(strconv.Itoa(c.Process.Pid))
	return err == nil && !s.Zombie
}

func TestAuditorKills(t *testing.T) {
	a := newAudited(t, true)
	thief, host, exempt := a.process(t, idA, 5), a.process(t, "", 5), a.process(t, idB, 5)
	a.looks(2)
	assert.Equal(t, 1.0, a.lasting(UngrantedProcess))
	assert.Equal(t, 1.0, a.total(UngrantedProcess, actionReported))
	require.Len(t, a.events, 1)
	assert.Regexp(t, `^default/p UngrantedGPUProcess: process \d+ \("sleep"\) uses `+gpuA+`, and its container has no grant. These processes are killed after 10s$`, a.events[0])
	assert.True(t, lives(thief), "the grace is not over")
	a.ready = errors.New("not connected")
	a.looks(1)
	assert.True(t, lives(thief), "which containers there are is not known")
	a.ready = nil
	a.looks(1)
	require.EqualError(t, thief.Wait(), "signal: killed")
	assert.True(t, lives(host))
	assert.True(t, lives(exempt))
	assert.Equal(t, 1.0, a.total(UngrantedProcess, actionKilled))
	assert.Zero(t, a.total(UngrantedProcess, actionFailed))
	assert.Equal(t, 1.0, a.lasting(HostProcess))
	assert.Equal(t, 1.0, a.total(HostProcess, actionReported))
	require.Len(t, a.events, 2, "the host has no pod")
	assert.Contains(t, a.events[1], "GPUProcessKilled: killed for UngrantedGPUProcess: ")
	assert.Len(t, a.Violations(), 2)

	a.looks(overAfter)
	assert.Zero(t, a.lasting(UngrantedProcess))
	assert.Empty(t, a.allowed.bytes)
	assert.Contains(t, a.log.String(), "violation ended")

	next := a.process(t, idA, 5)
	a.looks(2)
	assert.True(t, lives(next), "a new violation has a new grace")
}

func TestAuditorReports(t *testing.T) {
	a := newAudited(t, false)
	thief := a.process(t, idA, 5)
	a.looks(int(repeatEvent/(5*time.Second)) + 1)
	assert.True(t, lives(thief))
	assert.Len(t, a.events, 1)
	assert.NotContains(t, a.events[0], "killed")
	a.looks(2)
	assert.Len(t, a.events, 2, "the API server forgets events")
	assert.Equal(t, 1.0, a.total(UngrantedProcess, actionReported))
	assert.Equal(t, 1, strings.Count(a.log.String(), "violation found"))

	// Where NVML can't be asked nothing is over.
	a.devices, a.failure = nil, errors.New("no NVML")
	a.looks(10)
	assert.Equal(t, 1.0, a.lasting(UngrantedProcess))
	assert.Equal(t, 1, strings.Count(a.log.String(), "no NVML"))
}

// What has changed since the look spares a process: it has left for a container that may,
// its container has a grant now, or it is another by the same number.
func TestAuditorLooksOnceMore(t *testing.T) {
	a := newAudited(t, true)
	c := a.process(t, idA, 5)
	i := a.config.Inspector
	p := look(t, i, c.Process.Pid)
	v := Violation{Finding: Finding{Kind: UngrantedProcess, Container: p.Container}}
	o := Offender{Process: p.Process, Devices: []string{gpuA}}
	none := map[string]*Claim{}
	require.NoError(t, i.Still(v, o, none))

	assert.NoError(t, i.Still(v, o, map[string]*Claim{idA: granted(idA, limit(gpuB, 1))}), "a grant of another GPU")
	assert.ErrorIs(t, i.Still(v, o, map[string]*Claim{idA: granted(idA, limit(gpuA, 1))}), errProcessChanged)
	assert.ErrorIs(t, i.Still(v, o, map[string]*Claim{idA: {Container: p.Container, Unknown: true}}), errProcessChanged)
	reused := o
	reused.Start--
	assert.ErrorIs(t, i.Still(v, reused, none), errProcessChanged)
	other := v
	other.Container.ID = idB
	assert.ErrorIs(t, i.Still(other, o, none), errProcessChanged)

	v.Kind = NoLimiter
	claims := map[string]*Claim{idA: granted(idA, limit(gpuA, 1))}
	assert.NoError(t, i.Still(v, o, claims))
	claims[idA].Uncontrolled = true
	assert.ErrorIs(t, i.Still(v, o, claims), errProcessChanged, "its limiter may be off now")

	v.Kind = OverLimit
	require.NoError(t, i.Still(v, o, claims))
	join(t, a.root, "gpuslice-test-audit/"+idB, c.Process.Pid)
	assert.ErrorIs(t, i.Still(v, o, none), errProcessChanged)
	require.NoError(t, os.WriteFile(filepath.Join(a.root, "cgroup.procs"), []byte(strconv.Itoa(c.Process.Pid)), 0))
	assert.ErrorIs(t, i.Still(v, o, none), errProcessChanged, "of the host")
	_ = c.Process.Kill()
	_ = c.Wait()
	assert.True(t, gone(i.Still(v, o, none)))
	assert.True(t, gone(i.Still(v, Offender{}, none)))
}

// A container over its limit: all of its processes on that GPU end, and no other.
func TestAuditorEndsWhoIsOverTheLimit(t *testing.T) {
	a := newAudited(t, true)
	one, two, free := a.process(t, idA, 900*mib), a.process(t, idA, 900*mib), begin(t, 0, "sleep", "1000")
	join(t, a.root, "gpuslice-test-audit/"+idA, free.Process.Pid)
	neighbour := a.process(t, idB, 900*mib)
	for _, id := range []string{idA, idB} {
		dir := t.TempDir()
		require.NoError(t, limiter.CreateUsage(limiter.UsagePath(dir), []string{gpuA}))
		c := *granted(id, limit(gpuA, 1000))
		c.Dir, c.Uncontrolled = dir, false
		a.claims = append(a.claims, c)
	}
	a.looks(1)
	assert.Zero(t, a.lasting(OverLimit), "one look proves nothing")
	a.looks(1)
	assert.Equal(t, 1.0, a.lasting(OverLimit))
	assert.Equal(t, 2.0, a.lasting(NoLimiter), "sleep has no limiter")

	// Their limiter is partly disabled, so that there is one violation.
	a.claims[1].Uncontrolled = true
	a.looks(1)
	assert.EqualError(t, one.Wait(), "signal: killed")
	assert.EqualError(t, two.Wait(), "signal: killed")
	assert.True(t, lives(neighbour))
	assert.True(t, lives(free), "it is on no GPU and has no driver")

	// One of another version is no damage.
	file, err := os.OpenFile(a.claims[0].usageFile(), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteAt([]byte{2}, 8) // the layout's number
	require.NoError(t, err)
	a.looks(fullPass + 1)
	assert.Zero(t, a.lasting(DamagedUsageFile))

	// The damaged file is reported, with or without a process on a GPU.
	require.NoError(t, os.Truncate(a.claims[0].usageFile(), 3))
	a.looks(fullPass + 1)
	assert.Equal(t, 1.0, a.lasting(DamagedUsageFile))
	assert.Contains(t, a.events[len(a.events)-1], "its size is 3 bytes")
}

// A file that was cut back before a look saw it is notified of all the same, once.
func TestAuditorFollowsResizedFiles(t *testing.T) {
	a := newAudited(t, true)
	dir := t.TempDir()
	require.NoError(t, limiter.CreateUsage(limiter.UsagePath(dir), []string{gpuA}))
	a.claims = []Claim{{Container: Container{ID: idA, Namespace: "ns", Pod: "a"}, Dir: dir, Devices: []Device{{UUID: gpuA, LimitBytes: 1000 * mib}}, Uncontrolled: true}}
	job := a.process(t, idA, 10*mib)
	a.looks(2)
	require.Zero(t, a.lasting(DamagedUsageFile))
	a.Resized(idA)
	a.Resized("of a container that is gone")
	devices := a.devices
	a.devices, a.failure = nil, errors.New("no NVML")
	a.looks(3)
	a.devices, a.failure = devices, nil
	a.looks(1)
	assert.Empty(t, a.events, "one look proves nothing")
	a.looks(1)
	assert.Equal(t, 1.0, a.lasting(DamagedUsageFile))
	require.Len(t, a.events, 1)
	assert.Contains(t, a.events[0], "changed the size of its usage file")
	a.looks(overAfter)
	assert.Zero(t, a.lasting(DamagedUsageFile), "it was not changed since")
	assert.Empty(t, a.resized)
	assert.Len(t, a.events, 1)
	assert.True(t, lives(job))
}

// After the decision NVML is read again: a process that has left the GPU meanwhile, or has given
// back what was too much, lives, and so does everybody where NVML doesn't answer.
func TestAuditorAsksNVMLOnceMore(t *testing.T) {
	for name, meanwhile := range map[string]func(a *audited){
		"off the GPU":      func(a *audited) { a.devices[gpuA] = nil },
		"on a granted GPU": func(a *audited) { a.devices = map[string][]nvidia.Process{gpuB: a.devices[gpuA]} },
		"within its limit": func(a *audited) { a.devices[gpuA][0].Bytes = 1 * mib },
		"no answer":        func(a *audited) { a.devices, a.failure = nil, errors.New("no NVML") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAudited(t, true)
			// It is where it has no grant, or beyond its limit, and has the limiter.
			job := a.process(t, idA, 900*mib)
			i := a.config.Inspector
			i.mapped[look(t, i, job.Process.Pid).Process] = seenMaps{mapped{driver: true, limiter: LimiterPresent, files: FilesOwn}, 1 << 30}
			if name == "within its limit" {
				claim := *granted(idA, limit(gpuA, 100))
				claim.Uncontrolled = false
				a.claims = []Claim{claim}
			} else {
				a.claims = []Claim{*granted(idA, limit(gpuB, 1000))}
				a.claims[0].Uncontrolled = true
			}
			devices, asked := a.config.Devices, 0
			a.config.Devices = func(ctx context.Context) (map[string][]nvidia.Process, error) {
				if asked++; asked == 4 { // the third look decides
					meanwhile(a)
				}
				return devices(ctx)
			}
			kind := UngrantedProcess
			if name == "within its limit" {
				kind = OverLimit
			}
			a.looks(2)
			require.Equal(t, 1.0, a.lasting(kind))
			a.looks(1)
			assert.Equal(t, 4, asked, "once to look, and once more before the end")
			assert.True(t, lives(job))
			assert.Zero(t, a.total(kind, actionKilled))
		})
	}
}

// A limit that was lowered below the use kills no process: not when the agent starts
// again, not when a GPU does not answer, and not for what another process has done.
func TestAuditorLetsKeepWhatALowerLimitFinds(t *testing.T) {
	a := newAudited(t, true)
	job := a.process(t, idA, 900*mib)
	claim := *granted(idA, limit(gpuA, 1000))
	claim.Uncontrolled = false
	claim.Dir = t.TempDir()
	require.NoError(t, limiter.CreateUsage(claim.usageFile(), []string{gpuA}))
	a.claims = []Claim{claim}
	a.history.grace = time.Hour // the job has no limiter, which is not what this is about
	a.looks(1)
	a.claims[0].Devices = []Device{limit(gpuA, 100)}
	a.looks(3)
	require.Zero(t, a.lasting(OverLimit))

	processes := a.devices
	a.devices, a.failure = map[string][]nvidia.Process{}, errors.New("the GPU does not answer")
	a.looks(2)
	a.devices, a.failure = processes, nil
	a.looks(3)
	assert.Zero(t, a.lasting(OverLimit), "the GPU has answered again")

	a.end(context.Background(), []Violation{{Finding: Finding{Kind: NoLimiter, Container: claim.Container}}})
	a.looks(3)
	assert.Zero(t, a.lasting(OverLimit), "another process was killed")

	a.Auditor = New(a.config)
	a.history.grace = time.Hour
	a.claims[0].Devices = []Device{limit(gpuA, 50)} // lowered again while there was no agent
	a.looks(3)
	assert.Zero(t, a.lasting(OverLimit), "of the next agent")

	// What it gives back does not come again.
	a.devices[gpuA][0].Bytes = 200 * mib
	a.looks(1)
	a.devices[gpuA][0].Bytes = 900 * mib
	a.looks(2)
	assert.Equal(t, 1.0, a.lasting(OverLimit))
	assert.True(t, lives(job))

	// Ended containers and an unreadable file are forgotten.
	a.devices[gpuA] = nil
	a.looks(1)
	assert.Empty(t, a.allowed.bytes)
	require.NoError(t, os.WriteFile(a.config.AllowedFile, []byte("{"), 0o600))
	assert.Empty(t, New(a.config).allowed.bytes)
	assert.Contains(t, a.log.String(), "memory that containers may keep")
}

// A process that has the driver and not the limiter is found before it is on a GPU, and
// followed from then on; one that has an installed limiter is not at fault.
func TestAuditorFindsTheDriverOnNoGPU(t *testing.T) {
	a := newAudited(t, true)
	dir := a.config.Inspector.libraries.dir
	driver, ours := filepath.Join(t.TempDir(), "libcuda.so.1"), filepath.Join(dir, "libvgpu-0123456789abcdef.so")
	mounted := filepath.Join(t.TempDir(), "libvgpu.so")
	for _, path := range []string{driver, ours} {
		require.NoError(t, os.WriteFile(path, make([]byte, os.Getpagesize()), 0o755))
	}
	require.NoError(t, os.Link(ours, mounted)) // as a container has it mounted
	claim := *granted(idA, limit(gpuA, 1000))
	claim.Dir = t.TempDir()
	require.NoError(t, limiter.CreateUsage(claim.usageFile(), []string{gpuA}))
	a.claims = []Claim{claim}
	without, with := a.maps(t, idA, driver), a.maps(t, idA, mounted)
	a.looks(2)
	require.Equal(t, 1.0, a.lasting(NoLimiter))
	require.Len(t, a.Violations()[0].Offenders, 1)
	assert.Equal(t, without.Process.Pid, a.Violations()[0].Offenders[0].PID)
	a.looks(1)
	assert.EqualError(t, without.Wait(), "signal: killed")
	assert.True(t, lives(with))

	// On a GPU it has the limiter too.
	a.devices[gpuA] = []nvidia.Process{{PID: with.Process.Pid, Bytes: 1, Known: true}}
	a.looks(8)
	assert.True(t, lives(with))
	assert.Zero(t, a.lasting(NoLimiter))
}

// What stops a look by its context changes nothing, and Run ends.
func TestAuditorEnds(t *testing.T) {
	a := newAudited(t, false)
	a.process(t, idA, 5)
	a.looks(2)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a.devices = map[string][]nvidia.Process{}
	for range 5 {
		a.Once(ctx, a.now)
	}
	assert.Equal(t, 1.0, a.lasting(UngrantedProcess))
	a.Run(ctx)
}

// A process with the genuine limiter and forged limits is killed. After a restore of the claim it is not: the claim's files are newer.
func TestAuditorFindsForeignFiles(t *testing.T) {
	a := newAudited(t, true)
	ours := filepath.Join(a.config.Inspector.libraries.dir, "libvgpu-0123456789abcdef.so")
	require.NoError(t, os.WriteFile(ours, make([]byte, os.Getpagesize()), 0o755))
	mounted := filepath.Join(t.TempDir(), "libvgpu.so")
	require.NoError(t, os.Link(ours, mounted))
	driver := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(driver, make([]byte, os.Getpagesize()), 0o755))
	idC, idD := strings.Repeat("c", 64), strings.Repeat("d", 64)
	for _, id := range []string{idA, idC, idD} {
		claim := *granted(id, limit(gpuA, 1000))
		claim.Dir = t.TempDir()
		if id == idC {
			require.NoError(t, oci.NoteRestored(claim.Dir))
		}
		share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
		require.NoError(t, oci.Populate(claim.Dir, ledger.Claim{Shares: []grant.Share{share}}, oci.Settings{LibraryPath: ours}))
		a.claims = append(a.claims, claim)
	}
	both := mounted + string(filepath.ListSeparator) + driver
	forger, restored, opencl := a.maps(t, idA, both), a.maps(t, idC, both), a.maps(t, idD, mounted)
	for _, c := range []*exec.Cmd{forger, restored, opencl} {
		a.devices[gpuA] = append(a.devices[gpuA], nvidia.Process{PID: c.Process.Pid, Bytes: 1, Known: true})
	}
	a.looks(2)
	require.Equal(t, 2.0, a.lasting(ForeignFiles))
	a.looks(1)
	assert.EqualError(t, forger.Wait(), "signal: killed")
	a.looks(fullPass)
	assert.True(t, lives(restored))
	assert.True(t, lives(opencl), "without libcuda it is spared")
	assert.Equal(t, 1.0, a.lasting(ForeignFiles))
	assert.Contains(t, a.events[0], "GPULimiterFilesForeign: ")
}
