package nvidia

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var gpuName = regexp.MustCompile(`^GPU(\d+)$`)

var terminalCode = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// ParseTopology reads the output of `nvidia-smi topo -m`, which has no UUIDs: pass them in order of
// the index. An unknown word is the farthest connection.
func ParseTopology(text string, uuids []string) (Topology, error) {
	m := matrix{cells: map[[2]int]string{}, numa: map[int]string{}}
	for line := range strings.Lines(terminalCode.ReplaceAllString(text, "")) {
		m.line(strings.TrimRight(line, "\r\n"))
	}
	t := newTopology(uuids)
	if err := errors.Join(t.check(), m.check(len(uuids))); err != nil {
		return Topology{}, err
	}
	for i := range uuids {
		for j := range i {
			a, b := m.pair(i, j), m.pair(j, i)
			t.set(i, j, Pair{Level: min(a.Level, b.Level), NVLinks: min(a.NVLinks, b.NVLinks)})
		}
	}
	return t, nil
}

type matrix struct {
	columns []int // GPU of each column, -1: none
	numa    map[int]string
	numaAt  int // column of the NUMA affinity, counted in tabs; 0: none
	rows    []int
	cells   map[[2]int]string
}

func (m *matrix) line(line string) {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return
	}
	gpu := gpuIndex(fields[0])
	switch {
	case m.columns == nil && gpu >= 0:
		m.heads(line, fields)
	case gpu >= 0:
		m.row(gpu, line, fields[1:])
	}
}

func gpuIndex(word string) int {
	match := gpuName.FindStringSubmatch(word)
	if match == nil {
		return -1
	}
	i, err := strconv.Atoi(match[1])
	if err != nil {
		return -1
	}
	return i
}

// heads parses the line above the matrix. Heads of several words (CPU Affinity) come last, so that
// columns can be counted in words.
func (m *matrix) heads(line string, fields []string) {
	for _, field := range fields {
		if field == "CPU" || field == "NUMA" {
			break
		}
		m.columns = append(m.columns, gpuIndex(field))
	}
	m.numaAt = max(slices.IndexFunc(strings.Split(line, "\t"), func(head string) bool {
		return strings.TrimSpace(head) == "NUMA Affinity"
	}), 0)
}

func (m *matrix) row(gpu int, line string, words []string) {
	m.rows = append(m.rows, gpu)
	for i, column := range m.columns {
		if column >= 0 && i < len(words) {
			m.cells[[2]int{gpu, column}] = words[i]
		}
	}
	if tabs := strings.Split(line, "\t"); m.numaAt > 0 && m.numaAt < len(tabs) {
		m.numa[gpu] = strings.TrimSpace(tabs[m.numaAt])
	}
}

func (m *matrix) check(gpus int) error {
	if m.columns == nil {
		return errors.New("topology: no lines for GPU0, GPU1 …: use the output of nvidia-smi topo -m")
	}
	heads := slices.DeleteFunc(slices.Clone(m.columns), func(gpu int) bool { return gpu < 0 })
	return errors.Join(complete("columns", heads, gpus), complete("rows", m.rows, gpus))
}

func complete(name string, have []int, gpus int) error {
	slices.Sort(have)
	for i := range max(len(have), gpus) {
		if i >= len(have) || i >= gpus || have[i] != i {
			return fmt.Errorf("topology: the text has %s of the GPUs %v, not of GPU0 to GPU%d", name, have, gpus-1)
		}
	}
	return nil
}

// pair reads one cell. NV# hides the level: two GPUs of one NUMA node have at least LevelNode.
func (m *matrix) pair(i, j int) Pair {
	word := m.cells[[2]int{i, j}]
	count, found := strings.CutPrefix(word, "NV")
	links, err := strconv.Atoi(count)
	if !found || err != nil || links <= 0 {
		return Pair{Level: levelOf(word)}
	}
	p := Pair{NVLinks: links}
	if node := m.numa[i]; node != "" && node != "N/A" && node == m.numa[j] {
		p.Level = LevelNode
	}
	return p
}
