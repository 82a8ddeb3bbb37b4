package main

import (
	"slices"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

// topModel is what top shows, and what keys have made of it. It is pure: keys and
// readings go in, a page comes out.
type topModel struct {
	shown    topShown
	last     reading
	every    string // how often it is read, for people
	wide     bool
	by       string
	reverse  bool
	filter   string
	isTyping bool   // a filter
	before   string // the filter before it
	paused   bool
	help     bool
	selected string // a row's key
	first    int    // row on the page
	failure  string // why the last reading failed
	done     bool
}

// take takes a reading in.
func (m *topModel) take(now reading) {
	m.failure = ""
	if m.paused {
		return
	}
	m.shown = topOf(m.last, now)
	m.last = now
}

// rows are those to be seen, in order.
func (m *topModel) rows() []topRow {
	rows := filterRows(slices.Clone(m.shown.Containers), m.filter)
	sortRows(rows, m.by, m.reverse)
	return rows
}

// press does what a key means. page is the number of rows on one.
func (m *topModel) press(key term.Key, page int) {
	switch {
	case key == term.KeyInterrupt:
		m.done = true
	case m.isTyping:
		m.typeFilter(key)
	case m.help:
		m.help = false
		m.done = key == "q"
	default:
		m.command(key, page)
	}
}

func (m *topModel) command(key term.Key, page int) {
	switch key {
	case "q":
		m.done = true
	case "s":
		m.by = sortKeys[(slices.Index(sortKeys, m.by)+1)%len(sortKeys)]
	case "M":
		m.by = "memory"
	case "C":
		m.by = "cores"
	case "W":
		m.by = "waited"
	case "N":
		m.by = "pod"
	case "G":
		m.by = "gpu"
	case "r":
		m.reverse = !m.reverse
	case "w":
		m.wide = !m.wide
	case "p", " ":
		m.paused = !m.paused
	case "h", "?":
		m.help = true
	case "/":
		m.isTyping, m.before = true, m.filter
	case term.KeyEscape:
		m.filter, m.selected = "", ""
	case term.KeyUp:
		m.move(-1)
	case term.KeyDown:
		m.move(1)
	case term.KeyPageUp:
		m.move(-page)
	case term.KeyPageDown:
		m.move(page)
	case term.KeyHome:
		m.move(-len(m.shown.Containers))
	case term.KeyEnd:
		m.move(len(m.shown.Containers))
	}
}

// longestFilter is in letters.
const longestFilter = 60

func (m *topModel) typeFilter(key term.Key) {
	switch key {
	case term.KeyEnter:
		m.isTyping = false
	case term.KeyEscape:
		m.isTyping, m.filter = false, m.before
	case term.KeyErase:
		m.filter = ""
	case term.KeyBackspace:
		_, size := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-size]
	default:
		if utf8.RuneCountInString(string(key)) == 1 && utf8.RuneCountInString(m.filter) < longestFilter {
			m.filter += term.Clean(string(key))
		}
	}
}

// move selects another row; the first one while none is.
func (m *topModel) move(by int) {
	rows := m.rows()
	if len(rows) == 0 {
		return
	}
	at := m.at(rows)
	if at < 0 {
		at, by = 0, max(by, 1)-1
	}
	m.selected = rows[min(max(at+by, 0), len(rows)-1)].key()
}

// at is the place of the selected row; -1 if it isn't there.
func (m *topModel) at(rows []topRow) int {
	return slices.IndexFunc(rows, func(r topRow) bool { return r.key() == m.selected })
}

// scroll brings the selected row onto a page of that many rows, and leaves no room at
// the end of the last one.
func (m *topModel) scroll(rows []topRow, page int) {
	if at := m.at(rows); at >= 0 {
		m.first = min(max(m.first, at-page+1), at)
	}
	m.first = max(min(m.first, len(rows)-page), 0)
}
