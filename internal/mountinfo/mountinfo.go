// Package mountinfo reads what is mounted in a process' mount namespace, by
// /proc/<pid>/mountinfo. The kernel tells it by itself: no path is looked up, so that no file
// system which a container has mounted can lead us elsewhere, or never answer.
package mountinfo

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Mount is one, as proc_pid_mountinfo(5) tells it.
type Mount struct {
	ID, Parent int
	Source     Source
	// Point is where it is mounted, by the process' root. Mounts that can't be reached from
	// there are not told.
	Point string
}

// Source is what is mounted: a path below the root of a file system. A file that was removed
// ends in "//deleted".
type Source struct{ Device, Root string }

// Below is a file below a source.
func (s Source) Below(name string) Source {
	return Source{s.Device, strings.TrimSuffix(s.Root, "/") + "/" + name}
}

// longestLine holds two paths of the longest kind, escaped.
const longestLine = 64 << 10

// MostBytes is enough for a node with thousands of mounts.
const MostBytes = 16 << 20

// Scan reads mounts until each says false.
func Scan(r io.Reader, each func(Mount) bool) error {
	lines := bufio.NewScanner(io.LimitReader(r, MostBytes))
	lines.Buffer(make([]byte, 4<<10), longestLine)
	for lines.Scan() {
		m, err := parse(lines.Bytes())
		if err != nil {
			return err
		}
		if !each(m) {
			return nil
		}
	}
	return lines.Err()
}

// parse reads "36 35 98:0 /root /mount/point options…".
func parse(line []byte) (m Mount, err error) {
	var fields [5]string
	rest := line
	for i := range fields {
		field, after, more := bytes.Cut(rest, []byte(" "))
		if len(field) == 0 || !more {
			return m, fmt.Errorf("a line of mountinfo with %d fields: %q", i, line)
		}
		fields[i], rest = string(field), after
	}
	if m.ID, err = strconv.Atoi(fields[0]); err == nil {
		m.Parent, err = strconv.Atoi(fields[1])
	}
	if err != nil {
		return m, fmt.Errorf("a line of mountinfo: %w", err)
	}
	m.Source, m.Point = Source{fields[2], unescape(fields[3])}, unescape(fields[4])
	return m, nil
}

// unescape undoes the octal numbers that stand for space, tab, newline and backslash.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+4 <= len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// Locate says what the source of a path is, by the mounts of a namespace in their order. The
// path has no links in it.
func Locate(mounts []Mount, path string) (Source, bool) {
	best := -1
	for i, m := range mounts {
		if within(path, m.Point) && (best < 0 || len(m.Point) >= len(mounts[best].Point)) {
			best = i // of two at one point the later covers the other
		}
	}
	if best < 0 {
		return Source{}, false
	}
	m := mounts[best]
	if rest := strings.TrimPrefix(strings.TrimPrefix(path, m.Point), "/"); rest != "" {
		return m.Source.Below(rest), true
	}
	return m.Source, true
}

func within(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}
