// Package htmlpage renders the pages of the agent and of the scheduler. A page has no script and loads nothing, so it
// works through the API server's proxy. All texts are escaped: tenants choose names.
package htmlpage

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

// Refresh is the interval of reloads, without ?refresh=off.
const Refresh = 10 * time.Second

type Page struct {
	Title    string
	Lead     string   // a line below the title
	Problems []string // shown first
	Legend   []Key
	Sections []Section
}

// Key explains a kind of parts.
type Key struct{ Kind, Text string }

type Section struct {
	Title, Lead string
	Warning     string // beside the title
	Tables      []Table
	Links       []Link
}

// Link is a link with another query, such as "?page=2".
type Link struct{ Text, Query string }

// Table is a table. The first column has headings.
type Table struct {
	Caption string
	Empty   string // the text instead of a table without rows
	Columns []string
	Rows    [][]Cell
}

// Cell is a text with bars above it and notes below it.
type Cell struct {
	Text    string
	Bars    []Bar
	Notes   []string
	Warning string // a highlighted note
}

const (
	Granted = "granted"
	Used    = "used"
	Residue = "residue"
)

// Bar is a bar. Its cell's text has the same numbers.
type Bar struct {
	Of    float64 // the length of the bar; not positive: the bar is empty
	Parts []Part
}

type Part struct {
	Kind  string
	Value float64
}

type segment struct {
	Kind        string
	From, Width float64
}

const barWidth = 1000

// Segments returns the drawn parts, inside of the bar for all numbers.
func (b Bar) Segments() (drawn []segment) {
	from := 0.0
	for _, p := range b.Parts {
		width := barWidth * p.Value / b.Of
		if !(b.Of > 0) || !(width > 0) { // true for NaN
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

// The policy has the hash of the style.
//
//go:embed style.css
var style string

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"plain": Plain}).Parse(source))

// policy forbids everything except the style with this hash.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

type rendered struct {
	Page
	Style   template.CSS
	Refresh int    // seconds; 0: no refresh
	Toggle  string // link to this page without or with refresh
	At      time.Time
}

// Handler serves the page that read returns on /. Its error is on the page too, with status 503.
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
		all.Toggle = "?" + query.Encode()
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
		_, _ = w.Write(out.Bytes())
	})
	return mux
}

const MiB = 1 << 20

// Amount is a cell with a bar of one part, and a warning if value is above of.
func Amount(kind string, value, of float64, text string, notes ...string) Cell {
	c := Cell{Text: text, Notes: notes, Bars: []Bar{{Of: of, Parts: []Part{{Kind: kind, Value: value}}}}}
	if value > of {
		c.Warning = "more than there is"
	}
	return c
}
