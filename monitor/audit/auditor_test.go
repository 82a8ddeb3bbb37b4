package audit

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// notified is an Events.
type notified []string

func (e *notified) Warn(c Container, reason, message string) {
	if reason != reasons[PrivilegedContainer] { // the tests run as root of the machine
		*e = append(*e, c.Namespace+"/"+c.Pod+" "+reason+": "+message)
	}
}

// audited is a node of real processes, with played answers of NVML and the ledger.
type audited struct {
	*Auditor
	devices map[string][]nvidia.Process
	claims  []Claim
	failure error
	ready   error
	events  notified
	log     bytes.Buffer
	root    string
	now     time.Time
}

func newAudited(t *testing.T, kill bool) *audited {
	file := filepath.Join(t.TempDir(), "audit-allowed.json")
	a := &audited{now: time.Unix(1e9, 0), devices: map[string][]nvidia.Process{}}
	for _, root := range hierarchies(t) {
		a.root = root // either will do
	}
	var holder limiter.Holder
	t.Cleanup(holder.Close)
	a.Auditor = New(Config{
		Locks:    func(c *Claim) ([]limiter.Lock, error) { return holder.Locks(c.ID, c.Dir) },
		Interval: 5 * time.Second, Grace: 10 * time.Second, Kill: kill,
		Devices: func(context.Context) (map[string][]nvidia.Process, error) { return a.devices, a.failure },
		Claims: func(context.Context) ([]Claim, error) {
			all := slices.Clone(a.claims)
			for i := range all {
				all[i].Devices = nil // as the ledger has them
			}
			return all, nil
		},
		Granted: func(c *Claim) ([]Device, error) {
			for _, of := range a.claims {
				if of.ID == c.ID {
					return slices.Clone(of.Devices), nil
				}
			}
			return nil, os.ErrNotExist
		},
		Inspector:   inspector(t, map[string]string{idA: "default", idB: "infra"}),
		AllowedFile: file,

		Ready:  func() error { return a.ready },
		Events: &a.events,
		Log:    slog.New(slog.NewTextHandler(&a.log, nil)),
	})
	return a
}

// looks are so many, five seconds apart.
func (a *audited) looks(n int) {
	for range n {
		a.now = a.now.Add(5 * time.Second)
		a.Once(context.Background(), a.now)
	}
}

// process starts one in a container's group and puts it on a GPU.
func (a *audited) process(t *testing.T, container string, bytes uint64) *exec.Cmd {
	c := begin(t, 0, "sleep", "1000")
	if container != "" {
		join(t, a.root, "gpuslice-test-audit/"+container, c.Process.Pid)
	}
	a.devices[gpuA] = append(a.devices[gpuA], nvidia.Process{PID: c.Process.Pid, Bytes: bytes, Known: true})
	return c
}

func (a *audited) total(kind Kind, action string) float64 {
	return testutil.ToFloat64(a.metrics.total.WithLabelValues(string(kind), action))
}

func (a *audited) lasting(kind Kind) float64 {
	return testutil.ToFloat64(a.metrics.now.WithLabelValues(string(kind)))
}

// A process that takes its time to end, as one with much memory does, is killed and counted once.
func TestSlowDeathIsCountedOnce(t *testing.T) {
	a, proc := newAudited(t, true), t.TempDir()
	a.config.Inspector = NewInspector(proc, t.TempDir(), runtimeOf(map[string]string{idA: "default"}))
	c := begin(t, 0, "sleep", "1000")
	pid := strconv.Itoa(c.Process.Pid)
	inProc(t, proc, pid, "/kubepods/"+idA)
	a.devices[gpuA] = []nvidia.Process{{PID: c.Process.Pid}}
	a.looks(8)
	require.Equal(t, 1.0, a.lasting(UngrantedProcess))
	require.Equal(t, 1.0, a.total(UngrantedProcess, actionKilled))
	require.Len(t, a.events, 2, "reported, and killed: %s", a.events)
	require.NoError(t, os.RemoveAll(filepath.Join(proc, pid)))
	a.devices[gpuA] = nil
	a.end(context.Background(), a.Violations())
	require.Empty(t, a.killed, "it is gone")
}

// startReady starts a program, and waits until it is ready.
func startReady(t *testing.T, c *exec.Cmd) {
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	_, err = out.Read(make([]byte, 16))
	require.NoError(t, err)
}

// maps starts a process of a container that maps a file and is on no GPU.
func (a *audited) maps(t *testing.T, container, path string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), mapping+"="+path)
	_, err = c.StdinPipe()
	require.NoError(t, err)
	startReady(t, c)
	join(t, a.root, "gpuslice-test-audit/"+container, c.Process.Pid)
	return c
}

func TestMetrics(t *testing.T) {
	a := newAudited(t, false)
	problems, err := testutil.CollectAndLint(a)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Equal(t, len(Kinds), testutil.CollectAndCount(a, "gpuslice_violations"), "all kinds from the start, with 0")
	assert.Equal(t, 3*len(Kinds)-2*3, testutil.CollectAndCount(a, "gpuslice_violations_total"), "three kinds are only reported")
}
