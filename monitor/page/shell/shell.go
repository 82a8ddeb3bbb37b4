// Package shell renders the small pages of the agent and of the scheduler: headings,
// tables, bars with their numbers beside them, and what is wrong. There is no script and
// nothing is loaded from anywhere, so that a page works through the API server's proxy, in
// a text browser, and with what a tenant has named his pod. It imports nothing of ours;
// monitor/page and scheduler/page call it.
package shell

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the template and the style
	"encoding/base64"
	"html/template"
	"net/http"
	"time"
)

// Refresh is how often a browser loads the page again, unless ?refresh=off asks it not to.
const Refresh = 10 * time.Second

// Page is what one page shows. All of its texts may be a stranger's.
type Page struct {
	Title string
	// Lead is a line under the title.
	Lead string
	// Problems are what somebody has to look at; they come first.
	Problems []string
	// Legend says what the colours of the bars are.
	Legend   []Key
	Sections []Section
}

// Key is a line of a legend: a part's kind, and what it means.
type Key struct{ Kind, Text string }

// Section is a heading and what belongs to it.
type Section struct {
	Title, Lead string
	// Warning is shown beside the title; empty: all is well.
	Warning string
	Tables  []Table
	// Links lead to further pages.
	Links []Link
}

// Link is a link within the page: a query, "?page=2".
type Link struct{ Text, Query string }

// Table is a table. The first cell of a row is the row's heading.
type Table struct {
	// Caption says what it is of, for who can't see where it stands; Empty is shown in
	// place of a table without rows.
	Caption, Empty string
	Columns        []string
	Rows           [][]Cell
}

// Cell is a text with bars over it and notes under it.
type Cell struct {
	Text  string
	Bars  []Bar
	Notes []string
	// Warning is a note that is marked.
	Warning string
}

// Kinds of a bar's parts.
const (
	Granted = "granted"
	Used    = "used"
	Residue = "residue"
)

// Bar is a bar of parts, one after another. It says nothing that the cell's text doesn't.
type Bar struct {
	// Of is the whole bar's length; where it is not positive the bar is empty.
	Of    float64
	Parts []Part
}

// Part is a part of a bar.
type Part struct {
	Kind  string
	Value float64
}

// segment is a part as it is drawn.
type segment struct {
	Kind        string
	From, Width float64
}

// barWidth is a bar's length in the units of its drawing.
const barWidth = 1000

// Segments are the parts where they are drawn: never outside of the bar, whatever the numbers are.
func (b Bar) Segments() (drawn []segment) {
	from := 0.0
	for _, p := range b.Parts {
		width := barWidth * p.Value / b.Of
		if !(b.Of > 0) || !(width > 0) { // nor what is no number
			continue
		}
		width = min(width, barWidth-from)
		if width > 0 {
			drawn = append(drawn, segment{p.Kind, from, width})
			from += width
		}
	}
	return drawn
}

// Between its tags the page has the style exactly so: the policy's hash is of that.
//
//go:embed style.css
var style string

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"plain": Plain}).Parse(source))

// policy lets a page load nothing, send nothing and be framed by nobody; its one style is
// known by its hash.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// rendered is what the template is given.
type rendered struct {
	Page
	Style   template.CSS
	Refresh int // in seconds; 0: never
	// Other leads to this page with, or without, being refreshed.
	Other string
	At    time.Time
}

// Handler answers / with the page that read makes of a request, and nothing else. Where
// read fails the page says so, with status 503.
func Handler(read func(context.Context, *http.Request) (Page, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		p, err := read(r.Context(), r)
		if err != nil {
			status = http.StatusServiceUnavailable
			p.Problems = append([]string{err.Error()}, p.Problems...)
		}
		all := rendered{Page: p, Style: template.CSS(style), At: time.Now().UTC()}
		query := r.URL.Query()
		if query.Get("refresh") == "off" {
			query.Del("refresh")
		} else {
			all.Refresh = int(Refresh.Seconds())
			query.Set("refresh", "off")
		}
		all.Other = "?" + query.Encode()
		var out bytes.Buffer
		if err := page.Execute(&out, all); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(out.Bytes()) // whoever asked has gone
	})
	return mux
}
