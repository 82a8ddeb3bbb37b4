package term

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Screen is a terminal that a program has for itself: it draws whole pages, and is told
// each key. Who opens one closes it, whatever happens (defer): until then the terminal
// shows no other text, and the shell that comes after would not show what is typed.
type Screen struct {
	tty     *os.File
	was     *term.State
	keys    chan Key
	resized chan os.Signal
	stop    chan struct{}
	reader  sync.WaitGroup
	shown   bool
}

// What is told to the terminal, by the names of xterm's "private modes": another page
// than the shell's, no cursor, and lines that are too long are cut and not wrapped. The
// escape at the end puts the letters' usual colours back.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
	leave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// OpenScreen takes the terminal that the process was started from.
func OpenScreen() (*Screen, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}
	s := &Screen{tty: tty, keys: make(chan Key), resized: make(chan os.Signal, 1), stop: make(chan struct{})}
	if err := s.show(); err != nil {
		return nil, errors.Join(err, tty.Close())
	}
	signal.Notify(s.resized, unix.SIGWINCH)
	s.reader.Add(1)
	go func() {
		defer s.reader.Done()
		s.read()
	}()
	return s, nil
}

// Keys tells each key. It is closed when the terminal is gone.
func (s *Screen) Keys() <-chan Key { return s.keys }

// Resized gets a value when the terminal has another size.
func (s *Screen) Resized() <-chan os.Signal { return s.resized }

// Size is the terminal's, in cells; that of the first terminals where it doesn't say.
func (s *Screen) Size() (columns, rows int) {
	err := s.control(func(fd int) (err error) {
		columns, rows, err = term.GetSize(fd)
		return err
	})
	if err != nil || columns <= 0 || rows <= 0 {
		return 80, 24
	}
	return columns, rows
}

// Draw shows a page in the place of the last one, at once: nothing flickers. Lines that
// the terminal has no room for are left out.
func (s *Screen) Draw(lines []string) error {
	_, rows := s.Size()
	if len(lines) > rows {
		lines = lines[:rows]
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + "\x1b[K") // what is left of an older line goes
	}
	b.WriteString("\x1b[J") // and what is below
	_, err := s.tty.WriteString(b.String())
	return err
}

// Suspend gives the terminal back and stops the process, as Ctrl-Z does elsewhere; it
// returns when the process goes on, with the terminal its own again.
func (s *Screen) Suspend() error {
	if err := s.hide(); err != nil {
		return err
	}
	// This thread may go on for a moment, while another one takes the signal.
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, unix.SIGCONT)
	defer signal.Stop(goesOn)
	if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
		return err
	}
	<-goesOn
	return s.show()
}

// Close gives the terminal back as it was.
func (s *Screen) Close() error {
	signal.Stop(s.resized)
	close(s.stop)
	err := s.hide()
	_ = s.tty.SetReadDeadline(time.Now()) // ends the reader; Close does so, too
	s.reader.Wait()
	return errors.Join(err, s.tty.Close())
}

// show makes the terminal ours.
func (s *Screen) show() error {
	if err := s.control(func(fd int) (err error) {
		s.was, err = term.MakeRaw(fd)
		return err
	}); err != nil {
		return fmt.Errorf("have the terminal tell each key: %w", err)
	}
	s.shown = true
	_, err := s.tty.WriteString(enter)
	return err
}

// hide makes it what it was.
func (s *Screen) hide() error {
	if !s.shown {
		return nil
	}
	s.shown = false
	_, err := s.tty.WriteString(leave)
	return errors.Join(err, s.control(func(fd int) error { return term.Restore(fd, s.was) }))
}

// control does something to the terminal's descriptor. os.File.Fd would make it one
// whose reads can't be ended.
func (s *Screen) control(do func(fd int) error) error {
	conn, err := s.tty.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	if err := conn.Control(func(fd uintptr) { done = do(int(fd)) }); err != nil {
		return err
	}
	return done
}

// escapeDelay is how long an Escape may be the start of an arrow key's sequence.
const escapeDelay = 50 * time.Millisecond

// read tells keys until the screen is closed, or the terminal is gone.
func (s *Screen) read() {
	defer close(s.keys)
	var pending []byte
	buffer := make([]byte, 256)
	for {
		n, err := s.tty.Read(buffer)
		pending = append(pending, buffer[:n]...)
		isLate := errors.Is(err, os.ErrDeadlineExceeded)
		if err != nil && !isLate {
			return
		}
		for len(pending) > 0 {
			key, size, whole := nextKey(pending)
			if !whole && !isLate {
				break
			}
			if !whole { // nothing followed
				key, size = "", 1
				if pending[0] == 0x1b {
					key = KeyEscape
				}
			}
			pending = pending[size:]
			if !s.tell(key) {
				return
			}
		}
		if !s.wait(len(pending) > 0) {
			return
		}
	}
}

// tell passes a key on; false: the screen is closed.
func (s *Screen) tell(key Key) bool {
	if key == "" {
		return true
	}
	select {
	case s.keys <- key:
		return true
	case <-s.stop:
		return false
	}
}

// wait says how long the next read may take; false: the screen is closed.
func (s *Screen) wait(isPartial bool) bool {
	until := time.Time{}
	if isPartial {
		until = time.Now().Add(escapeDelay)
	}
	if s.tty.SetReadDeadline(until) != nil {
		return false
	}
	select {
	case <-s.stop: // Close may have set its own before
		return false
	default:
		return true
	}
}
