package browser

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// program is a Chromium: Debian's without a screen, which test/setup.sh --monitoring installs.
func program(t *testing.T) string {
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no chromium-headless-shell: test/setup.sh --monitoring installs it")
	return ""
}

// tab is a browser's, and what it has done beside showing the page.
type tab struct {
	context.Context
	mu sync.Mutex
	// requests are all that it has sent, and complaints are the page's errors.
	requests, complaints []string
}

// browse opens a browser of its own that ends with the test.
func browse(t *testing.T) *tab {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program(t)),
		chromedp.Flag("disable-lcd-text", true)) // letters' edges are grey: pictures are small
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox is for users; the pages are ours
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	b := &tab{}
	b.Context, end = chromedp.NewContext(allocator, chromedp.WithListener(b.hear))
	t.Cleanup(end)
	require.NoError(t, chromedp.Do(b))
	t.Cleanup(func() { assert.NoError(t, chromedp.Cancel(b.Context)) }) // waits for the process
	return b
}

// hear receives the tab's events.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, string(e.Type))
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text)
	case *log.EventEntryAdded: // what the page's policy forbids, above all
		b.complaints = append(b.complaints, e.Entry.Text+" "+e.Entry.URL)
	}
}

// window sets how large the page is shown, and whether it is dark.
func (b *tab) window(t *testing.T, width, height int64, scheme string) {
	require.NoError(t, chromedp.Do(b, chromedp.EmulateViewport(width, height)))
	_, err := chromedp.Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(t, err)
}

// open shows a page.
func (b *tab) open(t *testing.T, url string) {
	require.NoError(t, chromedp.Do(b, chromedp.Navigate(url)))
}

// ask is what an expression gives.
func ask[T any](t *testing.T, b *tab, expression string) T {
	answer, err := chromedp.Run(b, chromedp.Evaluate[T](expression))
	require.NoError(t, err)
	return answer
}

// text is what is seen.
func (b *tab) text(t *testing.T) string { return ask[string](t, b, "document.body.innerText") }

// row is a line of a table as it is seen: its cells' texts, without what stands beneath them, and
// how long the parts of each cell's bar are, as parts of the bar.
type row struct {
	Table string
	Cells []string
	Bars  [][]float64
	// Pixels is how long the first bar is in all.
	Pixels float64
}

// rows are all tables'.
func (b *tab) rows(t *testing.T) []row {
	return ask[[]row](t, b, `[...document.querySelectorAll("tbody tr")].map(tr => {
		const cells = [...tr.children]
		const width = e => e.getBoundingClientRect().width
		return {
			Table: tr.closest("table").caption.innerText,
			Cells: cells.map(c => [...c.children].filter(e => e.tagName == "BDI").map(e => e.innerText).join(" ")),
			Bars: cells.map(c => [...c.querySelectorAll("svg.bar rect")].map(r => width(r) / width(r.parentElement))),
			Pixels: Math.max(0, ...[...tr.querySelectorAll("svg.bar")].slice(0, 1).map(width)),
		}
	})`)
}

// find returns the row of a table by the start of its first cell.
func find(t *testing.T, rows []row, table, first string) row {
	for _, r := range rows {
		if r.Table == table && strings.HasPrefix(r.Cells[0], first) {
			return r
		}
	}
	require.Failf(t, "no such row", "%s in %s; there are %+v", first, table, rows)
	return row{}
}
