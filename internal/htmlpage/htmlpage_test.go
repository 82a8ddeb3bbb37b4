package htmlpage_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/internal/htmlpage"
)

// get is the response with a page.
func get(t require.TestingT, p htmlpage.Page, err error, method, path string) *httptest.ResponseRecorder {
	h := htmlpage.Handler(func(context.Context, *http.Request) (htmlpage.Page, error) { return p, err })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

// full is a page with a text in all places.
func full(s string) htmlpage.Page {
	cell := htmlpage.Cell{Text: s, Notes: []string{s}, Warning: s, Bars: []htmlpage.Bar{{Of: 1, Parts: []htmlpage.Part{{Kind: htmlpage.Used, Value: 1}}}}}
	return htmlpage.Page{Title: s, Lead: s, Problems: []string{s}, Legend: []htmlpage.Key{{Kind: htmlpage.Used, Text: s}}, Sections: []htmlpage.Section{
		{Title: s, Lead: s, Warning: s, Links: []htmlpage.Link{{Text: s, Query: "?page=2"}}, Tables: []htmlpage.Table{
			{Caption: s, Columns: []string{s, s}, Rows: [][]htmlpage.Cell{{cell, cell}}}, {Empty: s},
		}},
	}}
}

func TestHeaders(t *testing.T) {
	w := get(t, full("x"), nil, "GET", "/")
	assert.Equal(t, http.StatusOK, w.Code)
	policy := w.Header().Get("Content-Security-Policy")
	assert.Contains(t, policy, "default-src 'none'")
	assert.NotContains(t, policy, "unsafe")
	// A browser applies the style only if the policy has its hash.
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(w.Body.String())
	require.Len(t, style, 2)
	sum := sha256.Sum256([]byte(style[1]))
	assert.Contains(t, policy, "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	assert.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
}

func TestRequests(t *testing.T) {
	for _, test := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 200}, {"HEAD", "/", 200}, {"GET", "/?page=2", 200}, {"GET", "/other", 404}, {"GET", "/favicon.ico", 404}, {"POST", "/", 405},
	} {
		assert.Equal(t, test.want, get(t, full("x"), nil, test.method, test.path).Code, "%s %s", test.method, test.path)
	}
}

func TestRefresh(t *testing.T) {
	assert.Contains(t, get(t, full("x"), nil, "GET", "/").Body.String(), `<meta http-equiv="refresh" content="10">`)
	assert.Contains(t, get(t, full("x"), nil, "GET", "/?node=a").Body.String(), `href="?node=a&amp;refresh=off"`)
	stopped := get(t, full("x"), nil, "GET", "/?node=a&refresh=off").Body.String()
	assert.NotContains(t, stopped, "http-equiv")
	assert.Contains(t, stopped, `href="?node=a"`, "it can be turned on again")
	hostile := get(t, full("x"), nil, "GET", `/?node=%22%3E%3Cscript%3E`).Body.String()
	assert.NotContains(t, hostile, "<script")
}

// The page shows an error and the rest.
func TestFailure(t *testing.T) {
	w := get(t, full("known part"), errors.New("the ledger <is> gone"), "GET", "/")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, w.Body.String(), "the ledger &lt;is&gt; gone")
	assert.Contains(t, w.Body.String(), "known part")
	assert.Contains(t, w.Body.String(), `http-equiv="refresh"`, "it reloads")
}

// elements are the page's elements and attributes' names, without its texts.
func elements(t require.TestingT, page string) []string {
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	var all []string
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		name := n.Data
		for _, a := range n.Attr {
			name += " " + a.Key
		}
		all = append(all, name)
	}
	return all
}

// No text adds an element to the page.
func TestHostileTexts(t *testing.T) {
	harmless := elements(t, get(t, full("harmless"), nil, "GET", "/").Body.String())
	require.Contains(t, harmless, "rect class x width height")
	for _, text := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'></bdi></td></table><h1>`, `</style><script>1</script>`,
		`</title><script>1</script>`, `<!--`, `-->`, `javascript:alert(1)`, `{{.}}`, `&lt;script&gt;`, `<svg onload=alert(1)>`, "\x00<b>", "<b", `]]>`,
	} {
		body := get(t, full(text), nil, "GET", "/").Body.String()
		assert.Equal(t, harmless, elements(t, body), "%q", text)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune(`<>"'&/=!-{}`)), rapid.Rune())).Filter(func(s string) bool { return s != "" }).Draw(t, "text")
		require.Equal(t, harmless, elements(t, get(t, full(text), nil, "GET", "/").Body.String()))
	})
}

// A name can't reverse, hide or split the text beside it.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"web-1": "web-1", "Größe 数": "Größe 数", "two words": "two words",
		"a\u202eb": `a\u202eb`, "a\nb\x1b[2J": `a\u000ab\u001b[2J`, "a\u00a0b": `a\u00a0b`, "a\u200bb": `a\u200bb`,
		"a\xffb": `a\xffb`, "a\ufffdb": "a\ufffdb", "\U000e0041": `\U000e0041`,
	} {
		assert.Equal(t, want, htmlpage.Plain(text), "%q", text)
	}
	assert.Equal(t, strings.Repeat("x", 1000)+"…", htmlpage.Plain(strings.Repeat("x", 100000)))
	rapid.Check(t, func(t *rapid.T) {
		for _, r := range htmlpage.Plain(string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))) {
			require.True(t, r == ' ' || unicode.IsGraphic(r) && !unicode.IsSpace(r), "%U", r)
		}
	})
}

// Parts stay inside of the bar for all numbers, and are drawn to scale.
func TestSegments(t *testing.T) {
	odd := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, -1, math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64}))
	rapid.Check(t, func(t *rapid.T) {
		b := htmlpage.Bar{Of: odd.Draw(t, "of")}
		for range rapid.IntRange(0, 3).Draw(t, "parts") {
			b.Parts = append(b.Parts, htmlpage.Part{Kind: htmlpage.Used, Value: odd.Draw(t, "value")})
		}
		end := 0.0
		for _, s := range b.Segments() {
			require.Equal(t, end, s.From)
			require.Greater(t, s.Width, 0.0)
			end = s.From + s.Width
		}
		require.LessOrEqual(t, end, 1000.0)
	})
	segments := htmlpage.Bar{Of: 200, Parts: []htmlpage.Part{{Kind: htmlpage.Used, Value: 50}, {Kind: htmlpage.Residue, Value: 20}, {Kind: htmlpage.Granted, Value: 500}}}.Segments()
	require.Len(t, segments, 3)
	for i, want := range []struct{ from, width float64 }{{0, 250}, {250, 100}, {350, 650}} {
		assert.Equal(t, want.from, segments[i].From)
		assert.Equal(t, want.width, segments[i].Width)
	}
}

func TestGiB(t *testing.T) {
	for bytes, want := range map[float64]string{
		-1: "0 GiB", 0: "0 GiB", 1 << 20: "< 0.01 GiB", 1 << 30: "1.00 GiB", 3 << 29: "1.50 GiB", 143771 << 20: "140.4 GiB", math.MaxUint64: "> 1000000 GiB",
	} {
		assert.Equal(t, want, htmlpage.GiB(bytes))
	}
}
