package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/page"
	"github.com/gpuslice/gpuslice/monitor/view"
	clusterpage "github.com/gpuslice/gpuslice/scheduler/page"
	"github.com/gpuslice/gpuslice/test/monitoring/sample"
)

// usual is a pod's name like any other.
const usual = "batch-17"

// serve is the address of a handler.
func serve(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// nodePage and clusterPage are the pages of the samples, in which a pod has that name.
func nodePage(t *testing.T, pod string) string {
	return serve(t, page.Handler(func(context.Context) (view.Node, error) {
		n := sample.Node(pod)
		n.Violations = []view.Violation{{Kind: "no-limiter", Container: "team-b/" + pod + "/train", Detail: "process 4242 (\"train\") uses the driver and has not loaded the limiter", Since: time.Now().Add(-5 * time.Minute)}}
		return n, nil
	}))
}

func clusterPage(t *testing.T, pod string) string {
	e, err := sample.Cluster(pod)
	require.NoError(t, err)
	return serve(t, clusterpage.Handler(e, nil))
}

// assertBars checks the length of the bars in a row's cells, as parts of the whole; nil: no bar.
// A pixel more or less is rounding.
func assertBars(t *testing.T, r row, want ...[]float64) {
	t.Helper()
	require.Len(t, r.Bars, len(want), r.Cells)
	for i := range want {
		require.Len(t, r.Bars[i], len(want[i]), r.Cells)
		for j := range want[i] {
			assert.InDelta(t, want[i][j], r.Bars[i][j], 1/r.Pixels, "%s: %s", r.Table, r.Cells[i])
		}
	}
}

func TestNodePage(t *testing.T) {
	b := browse(t)
	b.window(t, 1000, 1200, "light")
	b.open(t, nodePage(t, usual))
	text := b.text(t)
	for _, seen := range []string{
		"GPUs of gpu-node-7", "3 GPUs, 4 containers with a share; driver 575.57.08, CUDA 12.9",
		"Violations 1 now", "no-limiter", "process 4242", "for 5 min",
		"Problems", "GPU 2: nvmlDeviceGetUUID: GPU is lost",
		"GPU 0: NVIDIA H200", "3 of 10 containers · 61 °C · 412 W",
		"not healthy: XID 79: it has fallen off the bus", "No container has a share of it.",
		"4.00 GiB more counted by the driver", "3 allocations refused", "waited 1 min for its share", "active", "last launch 3 h ago",
		"usage file: it is shorter than it was made",
	} {
		assert.Contains(t, text, seen)
	}
	rows := b.rows(t)
	// By the sample: 96 of 128 GiB granted, 48 used; 75 of 100 % granted, 64 used.
	memory, compute := find(t, rows, "GPU in total", "Memory"), find(t, rows, "GPU in total", "Compute time")
	assert.Equal(t, []string{"Memory", "96.0 GiB of 128.0 GiB", "48.0 GiB of 128.0 GiB"}, memory.Cells)
	assertBars(t, memory, nil, []float64{0.75}, []float64{0.375})
	assert.Equal(t, []string{"Compute time", "75 of 100 %", "64 %"}, compute.Cells)
	assertBars(t, compute, nil, []float64{0.75}, []float64{0.64})

	server := find(t, rows, "Containers on GPU 0", "team-a/inference-6c5d/server")
	assert.Equal(t, []string{"team-a/inference-6c5d/server", "8.00 GiB of 32.0 GiB", "20 % of 50 %"}, server.Cells)
	assertBars(t, server, nil, []float64{0.25, 0.125}, []float64{0.4})
	notebook := find(t, rows, "Containers on GPU 0", "team-a/notebook-0/jupyter")
	assert.Equal(t, []string{"team-a/notebook-0/jupyter", "24.0 GiB of 48.0 GiB", "0 % of the GPU, not limited"}, notebook.Cells)
	assertBars(t, notebook, nil, []float64{0.5}, nil)
	spoilt := find(t, rows, "Containers on GPU 0", "team-b/")
	assert.Equal(t, []string{"not known, of 16.0 GiB", "not measured, of 25 %"}, spoilt.Cells[1:])
	assertBars(t, spoilt, nil, nil, nil)
	big := find(t, rows, "Containers on GPU 1", "team-c/big/train")
	assertBars(t, big, nil, []float64{0.9375}, []float64{0.97})
}

func TestClusterPage(t *testing.T) {
	b := browse(t)
	b.window(t, 1000, 1400, "light")
	b.open(t, clusterPage(t, usual))
	text := b.text(t)
	for _, seen := range []string{
		"2 nodes, 4 GPUs, 4 pods pending", "node-a", "node-b", "not healthy",
		"for 12 min", "CardInsufficientMemory", "with less than 90000 MiB free (most: 40000 MiB)",
		"The memory is free, but not on one GPU: it is fragmented.", "BadRequest",
	} {
		assert.Contains(t, text, seen)
	}
	rows := b.rows(t)
	all := find(t, rows, "Granted part of all GPUs", "Granted")
	assert.Equal(t, []string{"Granted", "117.2 GiB of 312.5 GiB", "110 of 400 %", "3 of 40"}, all.Cells)
	assertBars(t, all, nil, []float64{0.375}, []float64{0.275}, []float64{0.075})
	gpu := find(t, rows, "GPUs of node-a", "1: NVIDIA H100")
	assertBars(t, gpu, nil, []float64{0.75}, []float64{0.8})
	pod := find(t, rows, "Pods on node-a", "team-a/inference")
	assert.Equal(t, []string{"team-a/inference", "0: NVIDIA H100 80GB HBM3", "39.1 GiB, 30 % of compute time"}, pod.Cells)
	assert.Equal(t, 1, strings.Count(text, "it is fragmented"), "of two pods that want more memory than any GPU has free")
	assert.Contains(t, find(t, rows, "Pending pods that request GPUs", "team-a/fragmented").Cells[1], "with less than 70000 MiB free")
}

// Whatever the names are: no script runs, nothing is loaded, and Chromium has nothing against the page.
func TestHostileNames(t *testing.T) {
	for name, url := range map[string]string{"node": nodePage(t, sample.Hostile), "cluster": clusterPage(t, sample.Hostile)} {
		b := browse(t)
		b.open(t, url)
		assert.Contains(t, b.text(t), `<script>document.title='hacked'</script>\u202e`, "%s: the name is seen as it is", name)
		assert.NotEqual(t, "hacked", ask[string](t, b, "document.title"), name)
		assert.Zero(t, ask[int](t, b, "document.scripts.length + document.images.length"), name)
		b.mu.Lock()
		assert.Empty(t, b.complaints, name)
		for _, request := range b.requests {
			assert.True(t, request == url || request == url+"favicon.ico", "%s: %s", name, request)
		}
		assert.NotEmpty(t, b.requests)
		b.mu.Unlock()
	}
}

// The page fits the width of a telephone: no horizontal scrolling, nothing is cut off, and bars are visible.
func TestNarrow(t *testing.T) {
	for name, url := range map[string]string{"node": nodePage(t, sample.Hostile), "cluster": clusterPage(t, sample.Hostile)} {
		b := browse(t)
		for _, width := range []int64{400, 320} {
			b.window(t, width, 800, "light")
			b.open(t, url)
			assert.LessOrEqual(t, ask[int64](t, b, "document.documentElement.scrollWidth"), width, name)
			assert.Empty(t, ask[[]string](t, b, `[...document.querySelectorAll("th, td, p, h1, h2, li")]
				.filter(e => e.scrollWidth > Math.ceil(e.getBoundingClientRect().width) || e.getBoundingClientRect().right > innerWidth).map(e => e.innerText)`), name)
			assert.GreaterOrEqual(t, ask[float64](t, b, `Math.min(...[...document.querySelectorAll("svg.bar")].map(e => e.getBoundingClientRect().width))`), 50.0, name)
		}
	}
}

// contrast gives, for each element with a text of its own, how much it stands out from what is behind it (WCAG 2.1).
const contrast = `(() => {
	const channels = c => c.match(/[\d.]+/g).map(Number)
	const light = c => { const [r, g, b] = channels(c).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
	const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (channels(c)[3] !== 0) return c } }
	const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05) }
	const texts = [...document.body.querySelectorAll("*")].filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()))
	const bars = [...document.querySelectorAll("svg.bar rect")]
	return {
		Text: Math.min(...texts.map(e => ratio(getComputedStyle(e).color, behind(e)))),
		Bar: Math.min(...bars.map(e => ratio(getComputedStyle(e).fill, getComputedStyle(e.parentElement).backgroundColor))),
		Paper: light(getComputedStyle(document.body).backgroundColor), Texts: texts.length,
	}
})()`

// It can be read where it is light and where it is dark.
func TestContrast(t *testing.T) {
	type seen struct{ Text, Bar, Paper, Texts float64 }
	for name, url := range map[string]string{"node": nodePage(t, usual), "cluster": clusterPage(t, usual)} {
		b := browse(t)
		for _, scheme := range []string{"light", "dark"} {
			b.window(t, 1000, 1000, scheme)
			b.open(t, url)
			got := ask[seen](t, b, contrast)
			assert.Greater(t, got.Texts, 20.0, name)
			assert.GreaterOrEqual(t, got.Text, 4.5, "%s, %s", name, scheme)
			assert.GreaterOrEqual(t, got.Bar, 1.5, "%s, %s: the numbers show the same", name, scheme)
			assert.Equal(t, scheme == "light", got.Paper > 0.5, "%s, %s", name, scheme)
		}
	}
}

// The page is accessible: tables have captions and headings, and a screen reader skips the bars.
func TestStructure(t *testing.T) {
	for name, url := range map[string]string{"node": nodePage(t, usual), "cluster": clusterPage(t, usual)} {
		b := browse(t)
		b.open(t, url)
		for expression, want := range map[string]int{
			"table:not(:has(> caption))": 0, "tbody tr:not(:has(> th[scope=row]:first-child))": 0, "thead th:not([scope=col])": 0,
			"svg:not([aria-hidden=true])": 0, "h1": 1, "main": 1, "html:not([lang])": 0,
		} {
			assert.Equal(t, want, ask[int](t, b, "document.querySelectorAll('"+expression+"').length"), "%s: %s", name, expression)
		}
		assert.Empty(t, ask[[]string](t, b, `[...document.querySelectorAll("tbody tr")].filter(tr => tr.children.length != tr.closest("table").querySelectorAll("thead th").length).map(tr => tr.innerText)`), name)
	}
}

// A user can stop the page from being loaded again.
func TestStopRefreshing(t *testing.T) {
	b := browse(t)
	b.open(t, nodePage(t, usual))
	const again = `!!document.querySelector("meta[http-equiv=refresh]")`
	require.True(t, ask[bool](t, b, again))
	b.open(t, ask[string](t, b, `document.querySelector("header a").href`))
	assert.False(t, ask[bool](t, b, again))
	b.open(t, ask[string](t, b, `document.querySelector("header a").href`))
	assert.True(t, ask[bool](t, b, again))
}
