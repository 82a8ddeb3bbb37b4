package cli

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

// topModel is the full-screen view: readings and keys go in, a page comes out.
type topModel struct {
	style         term.Style
	width, height int
	interval      time.Duration
	read          func() (reading, error) // nil in tests
	shown         topShown
	last          reading
	wide          bool
	by            string
	reverse       bool
	filter        string
	isTyping      bool   // the filter
	before        string // the filter before typing
	paused        bool
	help          bool
	selected      string // a row's key
	first         int    // the first row on the page
	failure       string // of the last reading
	done          bool
}

type readingMsg struct {
	reading reading
	err     error
}

func (m *topModel) Init() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg {
		now, err := m.read()
		return readingMsg{now, err}
	})
}

func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case readingMsg:
		if msg.err != nil {
			m.failure = msg.err.Error() // the last reading stays on the screen
		} else {
			m.take(msg.reading)
		}
		return m, m.Init()
	case tea.KeyPressMsg:
		switch key := msg.String(); key {
		case "ctrl+z":
			return m, tea.Suspend
		case "ctrl+l":
			return m, tea.ClearScreen
		default:
			m.press(cmp.Or(msg.Text, key), m.bodyRows(m.height))
		}
		if m.done {
			return m, tea.Quit
		}
	}
	return m, nil
}

func (m *topModel) View() tea.View {
	view := tea.View{AltScreen: true, DisableBracketedPasteMode: true}
	if m.width > 0 {
		view.Content = strings.Join(m.page(m.style, m.width, m.height), "\n")
	}
	return view
}

func (m *topModel) take(now reading) {
	m.failure = ""
	if m.paused {
		return
	}
	m.shown = topOf(m.last, now)
	m.last = now
}

func (m *topModel) rows() []topRow {
	rows := filterRows(slices.Clone(m.shown.Containers), m.filter)
	sortRows(rows, m.by, m.reverse)
	return rows
}

// press handles a key, by the names of bubbletea. page is the number of rows on a page.
func (m *topModel) press(key string, page int) {
	switch {
	case key == "ctrl+c":
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

var sortKeyOf = map[string]string{"M": "memory", "C": "cores", "W": "waited", "N": "pod", "G": "gpu"}

func (m *topModel) command(key string, page int) {
	switch key {
	case "q":
		m.done = true
	case "s":
		m.by = sortKeys[(slices.Index(sortKeys, m.by)+1)%len(sortKeys)]
	case "M", "C", "W", "N", "G":
		m.by = sortKeyOf[key]
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
	case "esc":
		m.filter, m.selected = "", ""
	case "up":
		m.move(-1)
	case "down":
		m.move(1)
	case "pgup":
		m.move(-page)
	case "pgdown":
		m.move(page)
	case "home":
		m.move(-len(m.shown.Containers))
	case "end":
		m.move(len(m.shown.Containers))
	}
}

const maxFilter = 60

func (m *topModel) typeFilter(key string) {
	switch key {
	case "enter":
		m.isTyping = false
	case "esc":
		m.isTyping, m.filter = false, m.before
	case "ctrl+u":
		m.filter = ""
	case "backspace", "ctrl+h":
		_, size := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-size]
	default:
		if utf8.RuneCountInString(key) == 1 && utf8.RuneCountInString(m.filter) < maxFilter {
			m.filter += term.Clean(key)
		}
	}
}

// move moves the selection; without one it selects the first row.
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

func (m *topModel) at(rows []topRow) int {
	return slices.IndexFunc(rows, func(r topRow) bool { return r.key() == m.selected })
}

// scroll moves the page to the selected row, and fills the last page.
func (m *topModel) scroll(rows []topRow, page int) {
	if at := m.at(rows); at >= 0 {
		m.first = min(max(m.first, at-page+1), at)
	}
	m.first = max(min(m.first, len(rows)-page), 0)
}
