package verify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// probe is a running gpuslice-probe, which answers one command after another.
type probe struct {
	out   io.Writer
	lines chan string // closed when the program ends
	// close ends the program, and waits for it.
	close func() error
	// ends is when the program's own time is over.
	ends time.Time
	// late: it did not answer in time, and gets no more commands.
	late bool
}

// longestLine bounds what is read of a probe, which can be a tenant's program in its place.
const longestLine = 4096

// newProbe reads the probe's lines until it ends.
func newProbe(in io.Reader, out io.Writer, end func() error) *probe {
	p := &probe{out: out, lines: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(p.lines)
		s := bufio.NewScanner(in)
		s.Buffer(nil, longestLine)
		for s.Scan() {
			select {
			case p.lines <- s.Text():
			case <-done:
				return
			}
		}
	}()
	p.close = sync.OnceValue(func() error { close(done); return end() })
	return p
}

var errEnded = errors.New("the probe ended")

// until collects answers up to the first line with the key, or the end of the command.
func (p *probe) until(ctx context.Context, key string) (answers, error) {
	a := answers{}
	for {
		select {
		case line, more := <-p.lines:
			if !more {
				return a, errEnded
			}
			if name, value, is := strings.Cut(line, "="); is && name != tooLate {
				if a[name] = value; name == key || name == "end" {
					return a, nil
				}
			}
		case <-ctx.Done():
			return a, fmt.Errorf("no answer in time: %w", ctx.Err())
		}
	}
}

func (p *probe) send(line string) error {
	_, err := io.WriteString(p.out, line+"\n")
	return err
}

// ask runs a command to its end. Without an answer in time the answers are late, and have no end.
func (p *probe) ask(ctx context.Context, limit time.Duration, command string) (answers, error) {
	if p.late {
		return answers{tooLate: "1"}, errEnded
	}
	begin := time.Now()
	if err := p.send(command); err != nil {
		a := answers{}
		p.markLate(a, begin, limit)
		return a, errors.Join(errEnded, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := p.until(ctx, "end")
	if err != nil {
		p.markLate(a, begin, limit)
		err = fmt.Errorf("%s: %w", command, err)
	}
	return a, err
}

// markLate separates slowness from a crash: the time of the command, or of the program, is over.
func (p *probe) markLate(a answers, begin time.Time, limit time.Duration) {
	if now := time.Now(); now.Sub(begin) >= limit || !p.ends.IsZero() && !now.Before(p.ends) {
		p.late, a[tooLate] = true, "1"
	}
}

// mostLimit is the longest time that the probe takes.
const mostLimit = 24 * time.Hour

// limit gives the probe the time that a command and the whole run can take.
func (p *probe) limit(ctx context.Context, step, whole time.Duration) error {
	seconds := func(d time.Duration) int { return int(min(d, mostLimit).Seconds()) }
	p.ends = time.Now().Add(min(whole, mostLimit))
	a, err := p.ask(ctx, step, fmt.Sprintf("limits %d %d", seconds(step), seconds(whole)))
	if err == nil && a.problem() != "" {
		err = fmt.Errorf("limits: %s", a.problem())
	}
	return err
}

// hold starts a command that ends with release; it returns its process.
func (p *probe) hold(ctx context.Context, limit time.Duration, command string) (pid string, err error) {
	if err := p.send(command); err != nil {
		return "", errors.Join(errEnded, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := p.until(ctx, "pid")
	if err == nil && a["pid"] == "" {
		err = fmt.Errorf("%s: %s", command, a.problem())
	}
	return a["pid"], err
}

func (p *probe) release(ctx context.Context, limit time.Duration) error {
	_, err := p.ask(ctx, limit, "release")
	return err
}
