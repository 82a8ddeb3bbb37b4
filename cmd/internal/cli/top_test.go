package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// workingNode is a node with two readings, a second apart, in which its containers
// worked.
func workingNode(t *testing.T) (s *nodetest.StateDir, before, now reading) {
	s = busyNode(t)
	s.Claim("c-infer", "infer-7c9d8f6b5-x2x4q", grant.Share{UUID: nodetest.T4, MemoryMiB: 4000, CorePercent: 50})
	s.Use("c-infer", 0, 3900<<20)
	s.Compute("c-train", 0, 10*time.Second, time.Second, 1000)
	s.Compute("c-infer", 0, time.Second, 0, 50)
	before = readingOf(t, s, nodetest.Time)
	s.Compute("c-train", 0, 10*time.Second+282*time.Millisecond, time.Second+400*time.Millisecond, 1500)
	s.Compute("c-infer", 0, time.Second+120*time.Millisecond, 0, 62)
	s.Compute("c-hostile", 0, math.MaxInt64, math.MaxInt64, math.MaxUint64)
	return s, before, readingOf(t, s, nodetest.Time.Add(time.Second))
}

func readingOf(t *testing.T, s *nodetest.StateDir, at time.Time) reading {
	n, err := nodeview.Read(t.Context(), s.Dir)
	require.NoError(t, err)
	n.Problems = nil // they have the directory's path
	return reading{at: at, node: n}
}

func workingModel(t *testing.T) *topModel {
	_, before, now := workingNode(t)
	m := &topModel{interval: time.Second, by: "memory"}
	m.take(before)
	m.take(now)
	return m
}

func TestTopOf(t *testing.T) {
	_, before, now := workingNode(t)
	shown := topOf(before, now)
	rows := map[string]topRow{}
	for _, r := range shown.Containers {
		rows[r.key()] = r
	}
	train := rows["c-train "+nodetest.H200]
	assert.InDelta(t, 28.2, *train.CoresUsedPercent, 0.001)
	assert.InDelta(t, 40, *train.WaitedPercent, 0.001)
	assert.InDelta(t, 500, *train.LaunchesPerSec, 0.001)
	assert.Nil(t, rows["c-train "+nodetest.T4].CoresUsedPercent, "not counted without a limit")
	assert.InDelta(t, 100, *rows["c-hostile "+nodetest.T4].CoresUsedPercent, 0, "limited to 100 %")
	assert.InDelta(t, 100, *shown.GPUs[1].CoresUsedPercent, 0)
	assert.InDelta(t, 28.2, *shown.GPUs[0].CoresUsedPercent, 0.001)
	assert.InDelta(t, 1, shown.IntervalSeconds, 0)

	assert.Nil(t, topOf(reading{}, now).GPUs[0].CoresUsedPercent, "one reading has no rates")
	back := topOf(reading{at: before.at, node: now.node}, reading{at: now.at, node: before.node})
	for _, r := range back.Containers {
		if r.ContainerID == "c-train" {
			assert.Nil(t, r.CoresUsedPercent, "a counter that went back")
		}
	}
}

// An agent's view has NVML's values.
func TestTopOfAnAgentsView(t *testing.T) {
	percent, busy := 12.5, 80
	n := view.Node{
		GPUs: []view.GPU{{UUID: "a", Healthy: true, Telemetry: &nvidia.Telemetry{UtilizationPercent: &busy}}, {UUID: "b", Healthy: true}},
		Containers: []view.Container{{ContainerID: "c", Shares: []view.Share{
			{UUID: "a", CoreUsedPercent: &percent}, {UUID: "b", CoreUsedPercent: &percent, CorePercent: 50},
		}}},
	}
	shown := topOf(reading{}, reading{at: nodetest.Time, node: n})
	assert.InDelta(t, 80, *shown.GPUs[0].CoresUsedPercent, 0)
	assert.InDelta(t, 12.5, *shown.GPUs[1].CoresUsedPercent, 0)
	assert.InDelta(t, 12.5, *shown.Containers[0].CoresUsedPercent, 0)
	again := topOf(reading{at: nodetest.Time, node: n}, reading{at: nodetest.Time.Add(time.Second), node: n})
	assert.InDelta(t, 12.5, *again.Containers[1].CoresUsedPercent, 0, "NVML sees what no limiter counts, too")
	assert.Nil(t, again.Containers[0].LaunchesPerSec)

	memory, power, temperature := uint64(5<<20), uint32(350_500), 61
	n.GPUs[0].Telemetry = &nvidia.Telemetry{MemoryUsedBytes: &memory, UtilizationPercent: &busy, TemperatureCelsius: &temperature, PowerMilliwatts: &power}
	var out strings.Builder
	require.NoError(t, statusTables(page{Writer: &out, Wide: true}, n))
	assert.Contains(t, out.String(), "5 MiB      80 %  61 °C        350 W\n")
	assert.Contains(t, out.String(), "-          -     -            -\n")
}

// Without a share the limiter may not count: unchanged counters are not known as 0.
func TestTopWithoutAShare(t *testing.T) {
	at := nodetest.Time
	for cores, known := range map[int]bool{0: false, 100: false, 50: true} {
		s := nodetest.NewStateDir(t)
		s.Claim("c-single", "single", grant.Share{UUID: nodetest.T4, MemoryMiB: 4000, CorePercent: cores})
		s.Compute("c-single", 0, time.Second, time.Second, 50)
		read := func() reading { at = at.Add(time.Second); return readingOf(t, s, at) }
		first := read()
		row := topOf(first, read()).Containers[0]
		assert.Equal(t, known, row.CoresUsedPercent != nil, cores)
		assert.Equal(t, known, row.LaunchesPerSec != nil, cores)
		before := read()
		s.Compute("c-single", 0, 3*time.Second/2, time.Second, 60)
		assert.InDelta(t, 50, *topOf(before, read()).Containers[0].CoresUsedPercent, 0.1, cores)
	}
}

// Without a limit it is 100 %.
func TestPercentCell(t *testing.T) {
	percent := 45.0
	for _, test := range []struct {
		percent *float64
		limit   int
		want    string
	}{{nil, 0, "-"}, {nil, 50, "-/50%"}, {&percent, 50, "45/50%"}, {&percent, 0, "45/100%"}} {
		assert.Equal(t, test.want, percentCell(test.percent, test.limit).Text)
	}
	assert.InDelta(t, 0.45, percentCell(&percent, 0).Part, 0.001)
}

// Rates have limits, for all counters that tenants write.
func TestTopRatesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := func() view.Share {
			return view.Share{
				CorePercent: rapid.IntRange(0, 100).Draw(t, "cores"), ComputeNanoseconds: rapid.Uint64().Draw(t, "compute"),
				ThrottledNanoseconds: rapid.Uint64().Draw(t, "throttled"), Launches: rapid.Uint64().Draw(t, "launches"),
			}
		}
		var r topRow
		r.rates(share(), share(), time.Duration(rapid.Int64().Draw(t, "elapsed")))
		for _, p := range []*float64{r.CoresUsedPercent, r.WaitedPercent} {
			if p != nil && (*p < 0 || *p > 100) {
				t.Fatalf("%v %%", *p)
			}
		}
	})
}

func TestTopSort(t *testing.T) {
	m := workingModel(t)
	order := func() string {
		var ids []string
		for _, r := range m.rows() {
			ids = append(ids, r.ContainerID+"/"+r.GPU)
		}
		return strings.Join(ids, " ")
	}
	for _, test := range []struct {
		keys string
		want string
	}{
		{"", "c-hostile/1 c-train/0 c-infer/1 c-train/1 c-corrupt/0 c-done/0"},
		{"s", "c-hostile/1 c-train/0 c-infer/1 c-corrupt/0 c-done/0 c-train/1"}, // cores
		{"s", "c-hostile/1 c-train/0 c-corrupt/0 c-done/0 c-infer/1 c-train/1"}, // waited
		{"s", "c-corrupt/0 c-done/0 c-hostile/1 c-infer/1 c-train/0 c-train/1"}, // pod
		{"s", "c-corrupt/0 c-done/0 c-train/0 c-hostile/1 c-infer/1 c-train/1"}, // gpu
		{"r", "c-train/1 c-infer/1 c-hostile/1 c-train/0 c-done/0 c-corrupt/0"},
		{"rM", "c-hostile/1 c-train/0 c-infer/1 c-train/1 c-corrupt/0 c-done/0"},
		{"N", "c-corrupt/0 c-done/0 c-hostile/1 c-infer/1 c-train/0 c-train/1"},
	} {
		for _, key := range test.keys {
			m.press(string(key), 5)
		}
		assert.Equal(t, test.want, order(), "after %q", test.keys)
	}
}

func TestTopFilter(t *testing.T) {
	m := workingModel(t)
	press := func(keys ...string) {
		for _, key := range keys {
			m.press(key, 5)
		}
	}
	press("/", "T", "r", "a", "x", "backspace", "i")
	assert.Equal(t, "Trai", m.filter)
	assert.Len(t, m.rows(), 2, "while it is typed")
	press("q")
	assert.False(t, m.done, "a letter is one")
	press("backspace", "enter", "up")
	assert.Len(t, m.rows(), 2)
	press("/", "ctrl+u", "n", "o", "n", "e", "esc")
	assert.Equal(t, "Trai", m.filter, "Escape while typing: the one before")
	press("esc")
	assert.Len(t, m.rows(), 6)
	press("/", "\x1b[2J")
	assert.Empty(t, m.filter)
	press("backspace")
	assert.Empty(t, m.filter)
	press("ctrl+c")
	assert.True(t, m.done)
}

func TestTopSelect(t *testing.T) {
	m := workingModel(t)
	at := func() int { return m.at(m.rows()) }
	assert.Equal(t, -1, at())
	for _, test := range []struct {
		key  string
		want int
	}{
		{"down", 0},
		{"down", 1},
		{"up", 0},
		{"up", 0},
		{"pgdown", 4},
		{"pgdown", 5},
		{"home", 0},
		{"end", 5},
		{"pgup", 1},
	} {
		m.press(test.key, 4)
		assert.Equal(t, test.want, at(), test.key)
	}
	selected := m.rows()[1].key()
	m.press("N", 4)
	assert.Equal(t, selected, m.rows()[at()].key(), "it stays selected in another order")
	m.press("/", 4)
	for _, key := range "nothing" {
		m.press(string(key), 4)
	}
	m.press("enter", 4)
	m.press("down", 4)
	assert.Equal(t, -1, at(), "no such row")
}

func TestTopPauseAndFailure(t *testing.T) {
	_, before, now := workingNode(t)
	m := &topModel{interval: time.Second, by: "memory"}
	m.take(before)
	m.press(" ", 5)
	m.take(now)
	assert.Equal(t, before.at, m.shown.TakenAt)
	m.press("p", 5)
	m.take(now)
	assert.Equal(t, now.at, m.shown.TakenAt)
	m.failure = "the directory\x1b[2J is gone"
	lines := m.page(term.Style{}, 80, 24)
	assert.Equal(t, "problem: the directory?[2J is gone", lines[23])
}

// Each page is as large as the terminal, and no line is longer, whatever its size.
func TestTopPages(t *testing.T) {
	m := workingModel(t)
	for _, size := range []struct {
		name          string
		columns, rows int
		keys          []string
	}{
		{"100x20", 100, 20, nil},
		{"80x24-selected", 80, 24, []string{"down", "down"}},
		{"150x16-wide", 150, 16, []string{"w"}},
		{"100x12-filter", 100, 12, []string{"w", "esc", "/", "t", "r"}},
		{"80x12-kept", 80, 12, []string{"enter"}},
		{"60x9-scrolled", 60, 9, []string{"esc", "end"}},
		{"80x24-help", 80, 24, []string{"h"}},
	} {
		for _, key := range size.keys {
			m.press(key, 5)
		}
		lines := m.page(term.Style{}, size.columns, size.rows)
		golden.Check(t, "testdata/"+"top-"+size.name+".txt", strings.Join(lines, "\n")+"\n")
		if !m.help {
			assert.Len(t, lines, size.rows)
		}
	}
	m.press("x", 5)
	assert.False(t, m.help)
	for columns := 1; columns < 140; columns += 7 {
		for rows := 1; rows < 30; rows++ {
			assert.Len(t, m.page(term.Style{Colors: true}, columns, rows), rows, "%dx%d", columns, rows)
		}
	}
}

// With many GPUs the page still shows containers.
func TestTopOfManyGPUs(t *testing.T) {
	s := nodetest.NewStateDirOf(t, nodeOf(t, 16, "topo-16-switches.txt"))
	s.Claim("c-train", "train", grant.Share{UUID: gpuUUID(9), MemoryMiB: 1000})
	m := &topModel{interval: time.Second, by: "memory"}
	m.take(readingOf(t, s, nodetest.Time))
	golden.Check(t, "testdata/top-gpus.txt", strings.Join(m.page(term.Style{}, 100, 24), "\n")+"\n")
}

func TestTopOnce(t *testing.T) {
	s, _, _ := workingNode(t)
	table := shows(t, "top", "--once", "--interval", "100ms", "--state-dir", s.Dir, "--filter", "infer")
	assert.Contains(t, table, "default/infer-7c9d8f6b5-x2x4q  main       1    [|||||||||| 3900M/4000M]  [                 0/50%]      0%     1  active")
	assert.NotContains(t, table, "default/train")
	assert.Contains(t, table, "problem: container c-corrupt")

	var shown topShown
	require.NoError(t, json.Unmarshal([]byte(shows(t, "top", "-o", "json", "--interval=100ms", "--state-dir", s.Dir, "--sort=pod", "--reverse")), &shown))
	require.Len(t, shown.Containers, 6)
	assert.Equal(t, "default/train", shown.Containers[0].Pod)
	i := slices.IndexFunc(shown.Containers, func(r topRow) bool { return r.ContainerID == "c-train" && r.UUID == nodetest.H200 })
	assert.Zero(t, *shown.Containers[i].CoresUsedPercent)
	assert.Greater(t, shown.IntervalSeconds, 0.09)
	yaml := shows(t, "top", "-o", "yaml", "--interval=100ms", "--state-dir", s.Dir)
	assert.Contains(t, yaml, "\n  coresUsedPercent: 0\n")
	assert.Contains(t, shows(t, "top", "-o", "wide", "--interval=100ms", "--state-dir", s.Dir), "ENFORCEMENT")
}

// A signal causes an error, not an empty output.
func TestTopOnceEndedByASignal(t *testing.T) {
	s, _, _ := workingNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, stderr strings.Builder
	status := execute(ctx, []string{"top", "-o", "json", "--interval=1h", "--state-dir", s.Dir}, &out, &stderr)
	assert.Equal(t, exitFailed, status)
	assert.Empty(t, out.String())
	assert.Equal(t, "gpuslice: "+errInterrupted.Error()+"\n", stderr.String())
}

func TestTopOfAnEmptyNode(t *testing.T) {
	s := nodetest.NewStateDir(t)
	require.NoError(t, os.Remove(s.Dir+"/node.json"))
	out := shows(t, "top", "--interval", "100ms", "--state-dir", s.Dir)
	assert.Contains(t, out, "\n(no GPUs)\n")
	assert.Contains(t, out, "\n(none)\n")
}

func TestTopBadCalls(t *testing.T) {
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--interval", "10ms"}, exitUsage, "--interval: 10ms is too short: use 100ms or more"},
		{[]string{"--sort", "size"}, exitUsage, "unknown value \"size\": use memory, cores, waited, pod or gpu"},
		{[]string{"x"}, exitUsage, "x"},
		{[]string{"--state-dir", "/no/such/directory"}, exitFailed, "set --state-dir to its directory"},
	} {
		status, out, stderr := gpuslice(append([]string{"top"}, test.args...)...)
		assert.Equal(t, test.status, status)
		assert.Empty(t, out)
		assert.Contains(t, stderr, test.want)
	}
}

// What top does each second on a node of 500 containers: to read it, and to draw it.
func BenchmarkTop(b *testing.B) {
	f := nodeOf(b, 16, "topo-16-switches.txt")
	for i := range f.Devices {
		f.Devices[i].Replicas = 100
	}
	s := nodetest.NewStateDirOf(b, f)
	require.NoError(b, node.Write(s.Dir, f))
	for i := range 500 {
		s.Claim(fmt.Sprintf("c-%04d", i), fmt.Sprintf("pod-%d", i), grant.Share{UUID: gpuUUID(i % 16), MemoryMiB: 1000, CorePercent: 1})
	}
	n, err := nodeview.Read(b.Context(), s.Dir)
	require.NoError(b, err)
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			_, err := nodeview.Read(b.Context(), s.Dir)
			require.NoError(b, err)
		}
	})
	b.Run("draw", func(b *testing.B) {
		m := &topModel{interval: time.Second, by: "memory"}
		for b.Loop() {
			m.take(reading{at: nodetest.Time, node: n})
			require.Len(b, m.page(term.Style{Colors: true}, 160, 50), 50)
		}
	})
}

// One tenant at work, which no limit counts, beside idle ones: the sum is not 0 but unknown, and NVML's figure where the
// agent has one.
func TestTopOfAFullGPU(t *testing.T) {
	node := view.Node{GPUs: []view.GPU{{UUID: "g", MemoryMiB: 1000}}, Containers: []view.Container{
		{ContainerID: "busy", State: "active", Shares: []view.Share{{UUID: "g", CorePercent: 0}}},
		{ContainerID: "idle", State: "active", Shares: []view.Share{{UUID: "g", CorePercent: 20}}},
		{ContainerID: "ended", State: "released", Shares: []view.Share{{UUID: "g", CorePercent: 0}}},
	}}
	at := time.Now()
	shown := topOf(reading{at: at, node: node}, reading{at: at.Add(time.Second), node: node})
	assert.Nil(t, shown.GPUs[0].CoresUsedPercent)
	assert.Equal(t, "-/100%", coresCell(shown.GPUs[0]).Text)

	worked := node
	worked.Containers = slices.Clone(node.Containers)
	worked.Containers[1].Shares = []view.Share{{UUID: "g", CorePercent: 20, ComputeNanoseconds: 2e8, Launches: 1}}
	shown = topOf(reading{at: at, node: node}, reading{at: at.Add(time.Second), node: worked})
	assert.Equal(t, "≥20/100%", coresCell(shown.GPUs[0]).Text)

	busy, percent := 100, 97.5
	addUse(&node, view.Node{GPUs: []view.GPU{{UUID: "g", Telemetry: &nvidia.Telemetry{UtilizationPercent: &busy}}, {UUID: "other"}},
		Containers: []view.Container{{ContainerID: "busy", Shares: []view.Share{{UUID: "g", CoreUsedPercent: &percent}}}, {ContainerID: "gone"}}})
	shown = topOf(reading{at: at, node: node}, reading{at: at.Add(time.Second), node: node})
	assert.InDelta(t, 100, *shown.GPUs[0].CoresUsedPercent, 0)
	assert.InDelta(t, 97.5, *shown.Containers[0].CoresUsedPercent, 0)
	assert.Nil(t, shown.GPUs[0].Telemetry.MemoryUsedBytes)
}

// With an agent, what programs use outside of the shares is visible, and so are violations.
func TestTopShowsUseOutsideOfShares(t *testing.T) {
	const gib = 1 << 30
	busy, memory := 100, uint64(20*gib)
	node := view.Node{GPUs: []view.GPU{
		{UUID: "g", Index: 0, Model: "NVIDIA H200", Healthy: true, MemoryMiB: 143771, UsedBytes: 6 * gib},
		{UUID: "h", Index: 1, Model: "NVIDIA H200", Healthy: true, MemoryMiB: 143771, UsedBytes: gib},
	}, Containers: []view.Container{
		{ContainerID: "c", Name: "train", State: "active", Shares: []view.Share{{UUID: "g", MemoryMiB: 8 << 10, UsedBytes: 6 * gib, ResidueBytes: 2 * gib}}},
	}}
	addUse(&node, view.Node{
		GPUs:       []view.GPU{{UUID: "g", Telemetry: &nvidia.Telemetry{UtilizationPercent: &busy, MemoryUsedBytes: &memory}}},
		Violations: []view.Violation{{Kind: "no-limiter", Container: "train", Detail: "process 7 (\"x\") has not loaded the limiter"}},
	})
	shown := topOf(reading{}, reading{at: nodetest.Time, node: node})
	assert.EqualValues(t, 12*gib, *shown.GPUs[0].OutsideBytes)
	assert.Nil(t, shown.GPUs[1].OutsideBytes)
	m := &topModel{interval: time.Second, by: "memory", shown: shown}
	lines := m.page(term.Style{}, 80, 24)
	for _, line := range lines {
		assert.LessOrEqual(t, len([]rune(line)), 80, line)
	}
	text := strings.Join(lines, "\n")
	assert.Regexp(t, `(?m)^0 +NVIDIA H200 +\[\|+ +20\.0G/140G\] +\[\|+ +100/100%\] .* 12\.0G$`, text)
	assert.Regexp(t, `(?m)^1 +NVIDIA H200 +\[\|* +1024M/140G\] .* -$`, text)
	assert.Contains(t, text, `problem: violation no-limiter of train: process 7 ("x") has not loaded`)
	var out strings.Builder
	require.NoError(t, writeTop(page{Writer: &out}, shown))
	assert.Contains(t, out.String(), "problem: violation no-limiter of train")
}

// On 80 columns no line is longer, and no state, number or head is cut.
func TestTopFitsEightyColumns(t *testing.T) {
	percent := 100.0
	for _, label := range []string{"0", "15", "0/1g.10gb"} {
		for _, by := range sortKeys {
			m := &topModel{interval: time.Second, by: by}
			for _, state := range []string{"active", "released", "corrupt", "blocking"} {
				m.shown.Containers = append(m.shown.Containers, topRow{Pod: "a-namespace/with-a-long-pod-name", Container: strings.Repeat("0123456789", 6), ContainerID: state,
					State: state, GPU: label, UUID: "g", UsedBytes: 9999 << 20, MemoryMiB: 9999, Cores: 100, CoresUsedPercent: &percent, WaitedPercent: &percent})
			}
			page := m.page(term.Style{}, 80, 24)
			text := strings.Join(page, "\n")
			for _, line := range page {
				assert.LessOrEqual(t, len([]rune(line)), 80, line)
			}
			for _, word := range []string{"active", "released", "corrupt", "blocking", "9999M/9999M", "100/100%", " 100%", "MEMORY", "CORES", "WAITED", "STATE", label} {
				assert.Contains(t, text, word)
			}
		}
	}
}
