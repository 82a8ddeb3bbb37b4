package page

import (
	"context"
	"errors"
	"math"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/htmlpage"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// known is a GPU with all numbers.
func known() view.GPU {
	return view.GPU{
		UUID: "GPU-1", Index: 3, Model: "NVIDIA H200", MemoryMiB: 1024, GrantableMiB: 2048, GrantedMemoryMiB: 512, GrantableCores: 100, GrantedCores: 30,
		GrantableReplicas: 10, GrantedContainers: 2, UsedBytes: 100 << 20, Healthy: true,
		Telemetry: &nvidia.Telemetry{MemoryUsedBytes: ptr(uint64(256 << 20)), UtilizationPercent: ptr(45), TemperatureCelsius: ptr(61), PowerMilliwatts: ptr(uint32(350400))},
	}
}

func TestGPU(t *testing.T) {
	c := known()
	s := gpu(&c, nil, now)
	assert.Equal(t, "GPU 3: NVIDIA H200", s.Title)
	assert.Equal(t, "GPU-1 · 2 of 10 containers · 61 °C · 350 W", s.Lead)
	assert.Empty(t, s.Warning)
	assert.Equal(t, [][]htmlpage.Cell{
		{{Text: "Memory"}, bar(htmlpage.Granted, 512*mib, 2048*mib, "0.50 GiB of 2.00 GiB"), bar(htmlpage.Used, 256*mib, 1024*mib, "0.25 GiB of 1.00 GiB", "from NVML")},
		{{Text: "Compute time"}, bar(htmlpage.Granted, 30, 100, "30 of 100 %"), bar(htmlpage.Used, 45, 100, "45 %")},
	}, s.Tables[0].Rows)
}

func bar(kind string, value, of float64, text string, notes ...string) htmlpage.Cell {
	return htmlpage.Cell{Text: text, Notes: notes, Bars: []htmlpage.Bar{{Of: of, Parts: []htmlpage.Part{{Kind: kind, Value: value}}}}}
}

// A missing measurement is not shown as zero.
func TestGPUUnknown(t *testing.T) {
	for description, telemetry := range map[string]*nvidia.Telemetry{"no telemetry": nil, "empty telemetry": {}} {
		c := known()
		c.Telemetry = telemetry
		s := gpu(&c, nil, now)
		assert.Equal(t, "GPU-1 · 2 of 10 containers", s.Lead, description)
		assert.Equal(t, bar(htmlpage.Used, 100*mib, 1024*mib, "0.10 GiB of 1.00 GiB", "as containers count it"), s.Tables[0].Rows[0][2], description)
		assert.Equal(t, htmlpage.Cell{Text: "not measured"}, s.Tables[0].Rows[1][2], description)
	}
}

func TestGPUWarnings(t *testing.T) {
	for _, test := range []struct {
		description string
		change      func(*view.GPU)
		want        string
	}{
		{"healthy", func(*view.GPU) {}, ""},
		{"unhealthy", func(c *view.GPU) { c.Healthy = false }, "not healthy"},
		{"unhealthy with a reason", func(c *view.GPU) { c.Healthy, c.Unhealthy = false, "XID 79" }, "not healthy: XID 79"},
		{"not offered", func(c *view.GPU) { c.GrantableReplicas = 0 }, "not offered"},
	} {
		c := known()
		test.change(&c)
		s := gpu(&c, nil, now)
		assert.Equal(t, test.want, s.Warning, test.description)
	}
	c := known()
	c.GrantedMemoryMiB = 4096
	s := gpu(&c, nil, now)
	assert.Equal(t, "more than there is", s.Tables[0].Rows[0][1].Warning)
}

func TestShares(t *testing.T) {
	active := view.Container{State: "active"}
	memory := func(s view.Share) htmlpage.Cell { return shareMemory(&active, &s) }
	compute := func(s view.Share) htmlpage.Cell { return shareCompute(&s, now) }
	assert.Equal(t, "0.50 GiB of 1.00 GiB", memory(view.Share{MemoryMiB: 1024, UsedBytes: 512 << 20}).Text)
	assert.Equal(t, []string{"0 processes"}, memory(view.Share{MemoryMiB: 1024}).Notes)
	full := memory(view.Share{MemoryMiB: 1024, UsedBytes: 512 << 20, ResidueBytes: 256 << 20, Processes: 1, RefusedAllocations: 3})
	assert.Equal(t, []string{"1 process", "0.25 GiB more counted by the driver", "3 allocations refused"}, full.Notes)
	assert.Equal(t, []htmlpage.Part{{Kind: htmlpage.Used, Value: 512 * mib}, {Kind: htmlpage.Residue, Value: 256 * mib}}, full.Bars[0].Parts)
	assert.Empty(t, full.Warning)
	over := memory(view.Share{MemoryMiB: 1, UsedBytes: math.MaxUint64})
	assert.Equal(t, "more than granted", over.Warning)
	assert.Equal(t, "> 1000000 GiB of < 0.01 GiB", over.Text)
	damaged := shareMemory(&view.Container{UsageProblem: "too short"}, &view.Share{MemoryMiB: 1024})
	assert.Equal(t, htmlpage.Cell{Text: "not known, of 1.00 GiB"}, damaged, "without a bar")

	assert.Equal(t, htmlpage.Cell{Text: "not measured, of 30 %"}, compute(view.Share{CorePercent: 30}))
	assert.Equal(t, bar(htmlpage.Used, 12.4, 30, "12 % of 30 %"), compute(view.Share{CorePercent: 30, CoreUsedPercent: ptr(12.4)}))
	assert.Equal(t, bar(htmlpage.Used, 60, 100, "60 % of the GPU, not limited"), compute(view.Share{CoreUsedPercent: ptr(60.0)}))
	assert.Equal(t, []string{"waited 1 h for its share", "active"},
		compute(view.Share{ThrottledNanoseconds: uint64(90 * time.Minute), LastLaunch: now.Add(-time.Second)}).Notes[:2])
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "< 1 s", 999 * time.Millisecond: "< 1 s", 59 * time.Second: "59 s", 59 * time.Minute: "59 min", 47 * time.Hour: "47 h", 48 * time.Hour: "2 d",
		time.Duration(1 << 62): "53375 d",
	} {
		assert.Equal(t, want, duration(d))
	}
}

// Each container has a row for each of its shares. Those on no GPU have a section.
func TestContainers(t *testing.T) {
	other := known()
	other.UUID, other.Index = "GPU-2", 4
	share := func(uuid string) view.Share { return view.Share{UUID: uuid, MemoryMiB: 1} }
	p := describe(view.Node{Name: "n", GPUs: []view.GPU{known(), other}, Problems: []string{"a problem"}, Containers: []view.Container{
		{ContainerID: "1", Pod: "d/p", Name: "both", State: "active", Enforcement: "preload", Shares: []view.Share{share("GPU-1"), share("GPU-2")}},
		{ContainerID: "2", Name: "docker", State: "active", Shares: []view.Share{share("GPU-2")}},
		{ContainerID: "3", Name: "lost", State: "active", Shares: []view.Share{share("GPU-9")}},
		{ContainerID: "4", State: "blocking", Blocks: []string{"GPU-1"}},
	}}, now)
	require.Len(t, p.Sections, 3)
	names := func(s htmlpage.Section, table int) (all []string) {
		for _, row := range s.Tables[table].Rows {
			all = append(all, row[0].Text)
		}
		return all
	}
	assert.Equal(t, []string{"d/p/both"}, names(p.Sections[0], 1))
	assert.Equal(t, []string{"d/p/both", "docker"}, names(p.Sections[1], 1))
	assert.Equal(t, []string{"lost", "4"}, names(p.Sections[2], 0))
	assert.Equal(t, []string{"blocking", "blocks GPU-1"}, p.Sections[2].Tables[0].Rows[1][0].Notes)
	assert.Equal(t, []string{"a problem"}, p.Problems)
	assert.Equal(t, "2 GPUs, 3 containers with a share", p.Lead)
}

// End to end, with names that tenants chose.
func TestHandler(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c1", "<b>evil</b>", grant.Share{UUID: nodetest.H200, MemoryMiB: 2048, CorePercent: 20})
	s.Use("c1", 0, 1<<30)
	var found []view.Violation
	answer := func(read func(context.Context) (view.Node, error)) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		Handler(func(ctx context.Context) (view.Node, error) {
			n, err := read(ctx)
			n.Violations = found
			return n, err
		}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w
	}
	w := answer(func(ctx context.Context) (view.Node, error) { return nodeview.Read(ctx, s.Dir) })
	assert.Equal(t, 200, w.Code)
	for _, want := range []string{"GPUs of node-1", "GPU 0: NVIDIA H200", "GPU 1: Tesla T4", "default/&lt;b&gt;evil&lt;/b&gt;/main", "1.00 GiB of 2.00 GiB", "No container has a share of it."} {
		assert.Contains(t, w.Body.String(), want)
	}
	assert.NotContains(t, w.Body.String(), "<b>")
	assert.NotContains(t, w.Body.String(), "Violations")

	found = []view.Violation{
		{Kind: "no-limiter", Container: "d/<b>p</b>/c", Detail: `process 7 ("<i>") has not loaded the limiter`, Since: time.Now().Add(-3 * time.Minute)},
		{Kind: "host-process", Detail: "process 8", Since: time.Now()},
	}
	w = answer(func(ctx context.Context) (view.Node, error) { return nodeview.Read(ctx, s.Dir) })
	for _, want := range []string{"Violations", "2 now", "d/&lt;b&gt;p&lt;/b&gt;/c", "for 3 min", "no-limiter", "process 7 (&#34;&lt;i&gt;&#34;)", "no container", "host-process"} {
		assert.Contains(t, w.Body.String(), want)
	}

	w = answer(func(context.Context) (view.Node, error) { return view.Node{}, errors.New("no ledger") })
	assert.Equal(t, 503, w.Code)
	assert.Contains(t, w.Body.String(), "no ledger")
}
