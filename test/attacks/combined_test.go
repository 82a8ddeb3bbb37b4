//go:build attacks

package attacks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	// settles is how long shares are given to follow a change, and measured how long they are measured at least, both by
	// the simulated GPUs' own clocks. The agent corrects shares once a second.
	settles  = 15 * time.Second
	measured = 20 * time.Second
	// mostMeasured bounds the measurement. A process that waits for a processor launches nothing: that averages out in the
	// longer measurement, and compute time that another container takes does not.
	mostMeasured = 6 * measured
	// sharePoints is how far a share may be off, in percent of the GPU.
	sharePoints = 3
	// hostileMiB is an attacker's share: room for its processes' contexts.
	hostileMiB = 8000
	// hostileShares is an attacker's weight of the processors: it has requested next to none, and a worker, which has the
	// default of 1024, some.
	hostileShares = 20
	// spinners are the processes by which an attacker keeps its GPU busy.
	spinners = 4
	// A violation is reported when two looks in a row have found it, and is over when three have not.
	looksToReport, looksToForget = 2, 3
	// A look of an agent that waits for a processor has no time for all processes, and the next one continues.
	mostLooksToReport = 12
	// answerOfABusyNode is the longest that an answer may take while nine hostile programs and twenty workers wait for two
	// processors: what an attack holds, it holds for longer (a lease for 45 s, a lock for ever).
	answerOfABusyNode = 30 * time.Second
)

// worker is a container that does what it may.
type worker struct {
	name   string
	gpu    int
	cores  int
	memory int
	id     string
	pid    int
	// mounts is its mount namespace, by which the simulated driver keeps account of its time.
	mounts uint64
}

// attacker is a container that attacks with all that it has.
type attacker struct {
	name string
	// line is the attack that the audit must report as one of kinds. It prints ready=1 when it is in place.
	line, kinds string
	// others run at the same time.
	others []string

	pod   *harness.Sandbox
	id    string
	since time.Time
}

// again runs a program for ever.
func again(line string) string { return "while true; do " + line + "; sleep 0.2; done" }

const (
	limitsFile = "/.gpuslice/limits"
	usageFile  = "/.gpuslice/usage"
	// spinner keeps a GPU busy with kernels that take one turn of the simulated GPU. The limiter measures a kernel between two
	// events: one that is longer than a turn contains turns of other containers, and costs more than it should by a
	// number that changes. By kernels of 50 ms shares are up to 4 points off without any attack.
	spinner = "--seconds=100000 --mode=async --kernels-us=2000 --window-ms=200"
)

// patchedProgram bypasses the limiter, as row 23 does.
var patchedProgram = "/bin/busybox cp /.gpuslice/driver/cuda /tmp/libcuda.so.1; /opt/loader --library-path /tmp:/lib/" + harness.Triplet + " "

// attackers are one for each GPU.
func attackers() []*attacker {
	attack := func(name, path string) string { return again(workload("attack") + " " + name + " " + path) }
	return []*attacker{
		{name: "locks", kinds: "tampered-files", line: attack("flock", limitsFile), others: []string{
			attack("flock", usageFile), attack("write-lease", limitsFile), attack("read-lease", limitsFile), attack("read-lease", usageFile),
			attack("write-lease", usageFile), attack("locks", usageFile),
		}},
		{name: "grows", kinds: "damaged-usage-file", line: attack("grow", usageFile), others: []string{attack("mounts", "20")}},
		{name: "environments", kinds: "no-limiter|over-limit", line: patchedProgram + workload("alloc") + " --chunk-mib=100 --max-mib=1200 --hold=0", others: []string{
			attack("descriptors", "20"),
		}},
		{name: "garbage", kinds: "damaged-usage-file", line: attack("garbage", usageFile), others: []string{attack("mappings", "60")}},
		{name: "exports", kinds: "no-limiter|over-limit", line: patchedProgram + workload("hold") + " --mib=100", others: []string{
			"sleep 1000000 | " + workload("exported") + " kept 40 512 >/tmp/exported",
			"until grep -q held_bytes /tmp/exported; do sleep 0.2; done; " + again(workload("alloc")+" --kind=vmm"),
		}},
	}
}

// Five hostile containers attack at once, each in several ways, beside twenty that do what they may. Asserted are:
//   - each share, to ±3 points of the GPU's time: the mean over 20 s of the simulated GPU's own clock, or longer where a share
//     is off by more, before the attacks, under them, and when the attackers are gone;
//   - each container's memory, to the byte;
//   - the agent's health and state, and the creation of a container with a grant: each request is answered, and the connection
//     to the container runtime lasts. How long the longest request took is logged: on a machine with two busy processors that
//     is mostly the wait for a processor;
//   - each attacker, by the audit: its second look reports it, if the agent has a processor when it needs one;
//   - afterwards no violation lasts, and claims, state directory and the GPUs' memory are as before.
//
// All of it is absolute: nothing is compared with another measurement, and no duration is compared with a clock.
func TestAllAttacksAtOnce(t *testing.T) {
	ctx := context.Background()
	reserveProcessors(t)
	reserveDisk(t)
	at := freeMetrics(t)
	n := newNode(t, harness.NodeOptions{
		GPUs: slices.Repeat([]string{"H200"}, 6), AgentArgs: []string{"--audit-interval=5s", at.option()},
		Containerd: harness.ContainerdOptions{RequestTimeout: answerOfABusyNode},
	})
	workers := startWorkers(t, n)
	weighPods(t, n)
	var report strings.Builder
	defer func() { t.Logf("measured:\n%s", &report) }()

	elapse(t, n, settles)
	t.Run("shares before", func(t *testing.T) { requireShares(t, n, workers, "before", &report) })
	claims, bytes, memory := claimsOf(t, n), stateBytes(t, n), usedMemory(t, n)

	prober := probe(t, n, gpu(t, n, 5), answerOfABusyNode)
	audit := followLooks(t, at)
	hostile := attackers()
	startAttackers(t, n, hostile)
	environments := manyEnvironments(t, n, hostile[2].pod)
	for _, a := range hostile {
		t.Run("audit reports "+a.name, func(t *testing.T) { requireReported(t, n, audit, a, &report) })
	}
	elapse(t, n, settles)
	t.Run("shares under all attacks", func(t *testing.T) { requireShares(t, n, workers, "under all attacks", &report) })
	t.Run("memory under all attacks", func(t *testing.T) { requireMemory(t, n, workers) })
	t.Run("large environments", func(t *testing.T) { environments(t, &report) })
	t.Run("exported memory", func(t *testing.T) { requireExportHeld(t, n, hostile[4]) })
	for _, a := range hostile {
		require.NoError(t, a.pod.Remove(ctx))
	}
	gone := time.Now()
	fmt.Fprintf(&report, "longest grant: %v; /healthz: %v; gpuslice status: %v; look of the audit: %.2f s\n",
		prober.most("grant"), prober.most("healthz"), prober.most("status"), audit.longest())

	t.Run("violations end", func(t *testing.T) {
		audit.wait(t, gone, looksToForget)
		requireNoViolation(t, at)
	})
	t.Run("requests are answered", prober.stop)
	t.Run("nothing is left", func(t *testing.T) {
		until(t, func(context.Context) error {
			if now := claimsOf(t, n); !slices.Equal(claims, now) {
				return fmt.Errorf("claims: %v, before: %v", now, claims)
			}
			return nil
		})
		assert.LessOrEqual(t, stateBytes(t, n), bytes+64<<10, "of the state directory's file system are in use")
		assert.Equal(t, memory, usedMemory(t, n), "bytes of the GPUs are in use")
	})
	elapse(t, n, settles)
	t.Run("shares afterwards", func(t *testing.T) { requireShares(t, n, workers, "afterwards", &report) })
	t.Run("memory afterwards", func(t *testing.T) { requireMemory(t, n, workers) })
	require.NoError(t, n.Health(ctx, "/healthz"))
	require.NoError(t, n.Health(ctx, "/readyz"))
	assert.Equal(t, 1, connections(t, n))
}

const (
	chunkMiB = 10
	// workerMiB is half a chunk more than two contexts and a multiple of it. The page of the worker's module is in the
	// limit after the agent has measured it, and makes no difference.
	workerMiB = 2*contextMiB + 296*chunkMiB + chunkMiB/2
)

// startWorkers starts four on each of five GPUs, which have 95 percent of it together.
func startWorkers(t *testing.T, n *harness.Node) (workers []*worker) {
	for g := range 5 {
		for _, cores := range []int{10, 20, 30, 35} {
			workers = append(workers, &worker{name: fmt.Sprintf("worker-%d-%d", g, cores), gpu: g, cores: cores, memory: workerMiB})
		}
	}
	for _, w := range workers {
		c := harness.Container{Command: append([]string{workload("spin")}, strings.Fields(spinner)...)}
		s, id := run(t, n, harness.Pod{Name: w.name, Annotations: granted(gpu(t, n, w.gpu), w.memory, w.cores)}, c)
		w.id = id
		wait(t, s, "ready", "1")
		w.pid = processOf(t, n, id)
		var st syscall.Stat_t
		require.NoError(t, syscall.Stat(fmt.Sprintf("/proc/%d/ns/mnt", w.pid), &st))
		w.mounts = st.Ino
	}
	return workers
}

// processOf is the first process of a container.
func processOf(t *testing.T, n *harness.Node, id string) int {
	r, err := n.CRI.ContainerStatus(context.Background(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	require.NoError(t, err)
	var info struct {
		PID int `json:"pid"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.Info["info"]), &info))
	return info.PID
}

// startAttackers starts each in a container with a small share of a GPU of its own: root, with the default capabilities. Each
// keeps its GPU busy, too.
func startAttackers(t *testing.T, n *harness.Node, hostile []*attacker) {
	loader, err := os.ReadFile(harness.Loader)
	require.NoError(t, err)
	path := t.TempDir() + "/loader"
	require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(loader, []byte("/etc/ld.so.preload"), []byte("/etc/ld.so.prelaod")), 0o755))
	for i, a := range hostile {
		var script strings.Builder
		for s := range spinners {
			fmt.Fprintf(&script, "%s %s >/tmp/spin%d & ", workload("spin"), spinner, s)
		}
		fmt.Fprintf(&script, "until [ $(cat /tmp/spin* | grep -c ready=1) = %d ]; do sleep 0.1; done; ", spinners)
		// The container's processors go to its spinners first. One that waits for a processor while it has the lock of the
		// simulated GPU would stop all others on that GPU, which no real driver does.
		script.WriteString("/bin/busybox renice -n 19 -p $$ >/dev/null; ")
		for _, line := range a.others {
			fmt.Fprintf(&script, "(%s) >/dev/null 2>&1 & ", line)
		}
		fmt.Fprintf(&script, "(%s) & wait; sleep 1000000", a.line)
		c := harness.Container{Mounts: mountOf(path, "/opt/loader"), Command: []string{"/bin/sh", "-c", script.String()}}
		a.pod, a.id = run(t, n, harness.Pod{Name: "attacker-" + a.name, Annotations: granted(gpu(t, n, i), hostileMiB, 5)}, c)
		weighContainer(t, n, a.id, hostileShares)
	}
	for _, a := range hostile {
		wait(t, a.pod, "ready", "1")
		a.since = time.Now()
	}
}

// manyEnvironments creates containers with 10,000 of gpuslice's variables, and with the largest environment that can be
// started, in a loop, as the author of an attacker's pod can. In the end none of them must have been created.
func manyEnvironments(t *testing.T, n *harness.Node, pod *harness.Sandbox) (stop func(t *testing.T, report io.Writer)) {
	ctx, cancel := context.WithCancel(context.Background())
	var stray, large []string
	for i := range 10000 {
		stray = append(stray, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%s%d=1", strings.Repeat("x", 220), i))
	}
	for i := range 10 {
		large = append(large, fmt.Sprintf("LARGE_%d=%s", i, strings.Repeat("x", 110<<10)))
	}
	var waiting sync.WaitGroup
	refused := map[string]int{}
	waiting.Go(func() {
		for i := uint32(0); ctx.Err() == nil; i++ {
			for _, c := range []harness.Container{{Name: "stray", Env: stray}, {Name: "large", Env: large}} {
				c.Attempt = i
				id, err := pod.Create(ctx, c)
				if ctx.Err() != nil {
					return
				}
				if assert.ErrorContains(t, err, "gpuslice allows 384 KiB", c.Name) {
					refused[c.Name]++
				} else if err == nil {
					assert.NoError(t, n.RemoveContainer(context.Background(), id))
				}
			}
		}
	})
	t.Cleanup(func() { cancel(); waiting.Wait() })
	return func(t *testing.T, report io.Writer) {
		cancel()
		waiting.Wait()
		assert.Len(t, refused, 2)
		fmt.Fprintf(report, "containers with large environments refused: %v\n", refused)
	}
}

// gpuTimes are the simulated GPUs' clocks, and the time of each GPU that each mount namespace had.
type gpuTimes struct {
	clocks []int64
	busy   map[[2]uint64]int64
	memory []int64
}

func lookAtGPUs(t *testing.T, n *harness.Node) (at gpuTimes) {
	t.Helper()
	out, err := n.Simctl(context.Background(), "status", "-o", "json")
	require.NoError(t, err)
	var status struct {
		GPUs []struct {
			ClockNS int64 `json:"clock_ns"`
			Used    int64 `json:"memory_used_bytes"`
		}
		Groups []struct {
			ID   uint64
			GPUs []struct {
				Index  int
				BusyNS int64 `json:"busy_ns"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &status))
	at.busy = map[[2]uint64]int64{}
	for _, c := range status.GPUs {
		at.clocks = append(at.clocks, c.ClockNS)
		at.memory = append(at.memory, c.Used)
	}
	for _, g := range status.Groups {
		for _, c := range g.GPUs {
			at.busy[[2]uint64{g.ID, uint64(c.Index)}] = c.BusyNS
		}
	}
	return at
}

func usedMemory(t *testing.T, n *harness.Node) []int64 { return lookAtGPUs(t, n).memory }

// elapse waits until each GPU that is in use has gone on for so long by its own clock.
func elapse(t *testing.T, n *harness.Node, long time.Duration) (from, to gpuTimes) {
	t.Helper()
	from = lookAtGPUs(t, n)
	for {
		to = lookAtGPUs(t, n)
		left := time.Duration(0)
		for i, clock := range to.clocks {
			if clock > 0 {
				left = max(left, long-time.Duration(clock-from.clocks[i]))
			}
		}
		if left <= 0 {
			return from, to
		}
		<-time.After(min(left, time.Second)) // a look stops the GPUs for a moment
	}
}

// requireShares measures what the workers have of their GPUs' time, and requires their shares.
func requireShares(t *testing.T, n *harness.Node, workers []*worker, when string, report io.Writer) {
	t.Helper()
	delayed := delays(t, workers)
	from, to := elapse(t, n, measured)
	off := func(w *worker) bool { return math.Abs(share(w, from, to)-float64(w.cores)) > sharePoints }
	took := measured
	for ; took < mostMeasured && slices.ContainsFunc(workers, off); took += measured {
		_, to = elapse(t, n, measured)
	}
	later := delays(t, workers)
	least, most, sum, delay := math.Inf(1), math.Inf(-1), 0.0, time.Duration(0)
	var all []string
	for i, w := range workers {
		got := share(w, from, to)
		off := got - float64(w.cores)
		least, most, sum, delay = min(least, off), max(most, off), sum+math.Abs(off), max(delay, later[i]-delayed[i])
		all = append(all, fmt.Sprintf("%d:%.1f", w.cores, got))
		assert.InDelta(t, w.cores, got, sharePoints, "%s: share of %s", when, w.name)
	}
	fmt.Fprintf(report, "shares %s, over %v: %+.1f to %+.1f points, mean %.1f (%s); a worker waited %v for a processor at most\n",
		when, took, least, most, sum/float64(len(workers)), strings.Join(all, " "), delay.Round(time.Millisecond))
}

// share is what a worker had of its GPU's time, in percent.
func share(w *worker, from, to gpuTimes) float64 {
	key := [2]uint64{w.mounts, uint64(w.gpu)}
	return 100 * float64(to.busy[key]-from.busy[key]) / float64(to.clocks[w.gpu]-from.clocks[w.gpu])
}

// delays are how long each worker has waited for a processor: without one it launches nothing, whatever its share is.
func delays(t *testing.T, workers []*worker) (all []time.Duration) {
	for _, w := range workers {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", w.pid))
		require.NoError(t, err)
		fields := strings.Fields(string(text))
		require.Len(t, fields, 3)
		waited, err := strconv.ParseInt(fields[1], 10, 64)
		require.NoError(t, err)
		all = append(all, time.Duration(waited))
	}
	return all
}

// requireMemory has each worker's container take all that it may have, beside the worker.
func requireMemory(t *testing.T, n *harness.Node, workers []*worker) {
	t.Helper()
	var waiting sync.WaitGroup
	turns := make(chan struct{}, 4)
	for _, w := range workers {
		turns <- struct{}{}
		waiting.Go(func() {
			defer func() { <-turns }()
			stdout, stderr, code, err := n.Exec(context.Background(), w.id, workload("alloc"), fmt.Sprintf("--chunk-mib=%d", chunkMiB))
			assert.NoError(t, err)
			assert.Zero(t, code, stderr)
			v := harness.KeyValues(stdout)
			assert.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], w.name)
			assert.Equal(t, strconv.Itoa((w.memory-2*contextMiB)/chunkMiB*chunkMiB*mib), v["allocated_bytes"], w.name)
		})
	}
	waiting.Wait()
}

// requireReported waits until the audit has reported an attacker.
func requireReported(t *testing.T, n *harness.Node, audit *looks, a *attacker, report io.Writer) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^time=(\S+) .*violation found.*kind=(` + a.kinds + `) .*pod=default/attacker-` + a.name + ` `)
	var found [][]byte
	took := looksToReport
	for ; found == nil; took++ {
		require.LessOrEqual(t, took, mostLooksToReport, "looks without a report")
		audit.wait(t, a.since, took)
		log, err := os.ReadFile(n.Agent.LogPath)
		require.NoError(t, err)
		found = line.FindSubmatch(log)
	}
	when, err := time.Parse(time.RFC3339Nano, string(found[1]))
	require.NoError(t, err)
	fmt.Fprintf(report, "attacker %s: %s, %.1f s after the attack was in place, by look %d\n", a.name, found[2], when.Sub(a.since).Seconds(), took-1)
}

// requireExportHeld reads how much memory an attacker has after it was exported: not more than its share.
func requireExportHeld(t *testing.T, n *harness.Node, a *attacker) {
	v := exec(t, n, a.id, "/bin/cat", "/tmp/exported")
	held, err := strconv.ParseInt(v["held_bytes"], 10, 64)
	require.NoError(t, err, v)
	require.Positive(t, held)
	require.LessOrEqual(t, held, int64(hostileMiB*mib))
}

// looks are those of the audit that have ended, by the agent's metrics.
type looks struct {
	mu  sync.Mutex
	all []auditLook
}

// auditLook has seconds since 1970.
type auditLook struct{ began, ended float64 }

// followLooks follows the audit until the test ends.
func followLooks(t *testing.T, at metrics) *looks {
	l := &looks{}
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		last := 0.0
		for ctx.Err() == nil {
			if all, err := at.all(ctx); err == nil {
				// The two are set one after the other: they are of one look when the first has not changed.
				ended, took := all["gpuslice_audit_last_timestamp_seconds"], all["gpuslice_audit_duration_seconds"]
				l.mu.Lock()
				if seen := len(l.all); ended > 0 && ended == last && (seen == 0 || l.all[seen-1].ended != ended) {
					l.all = append(l.all, auditLook{ended - took, ended})
				}
				l.mu.Unlock()
				last = ended
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { cancel(); waiting.Wait() })
	return l
}

// wait waits until so many looks have ended that began after a moment.
func (l *looks) wait(t *testing.T, since time.Time, count int) {
	t.Helper()
	require.NoError(t, harness.Until(context.Background(), 4*patience, func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		after := 0
		for _, one := range l.all {
			if one.began > float64(since.UnixNano())/1e9 {
				after++
			}
		}
		if after < count {
			return fmt.Errorf("the audit has looked %d times of %d", after, count)
		}
		return nil
	}))
}

// longest is how long the longest look took, in seconds.
func (l *looks) longest() (longest float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.all {
		longest = max(longest, one.ended-one.began)
	}
	return longest
}

// requireNoViolation requires that no violation lasts.
func requireNoViolation(t *testing.T, at metrics) {
	all, err := at.all(context.Background())
	require.NoError(t, err)
	maps.DeleteFunc(all, func(name string, _ float64) bool { return !strings.HasPrefix(name, "gpuslice_violations{") })
	require.NotEmpty(t, all)
	maps.DeleteFunc(all, func(_ string, count float64) bool { return count == 0 })
	require.Empty(t, all, "violations that last")
}

// claimsOf are the names of a node's claims.
func claimsOf(t *testing.T, n *harness.Node) []string {
	names, err := n.StateDirs()
	require.NoError(t, err)
	slices.Sort(names)
	return names
}

// stateBytes is how much of the state directory's file system is in use.
func stateBytes(t *testing.T, n *harness.Node) int64 {
	var fs syscall.Statfs_t
	require.NoError(t, syscall.Statfs(n.StateDir(), &fs))
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize
}
