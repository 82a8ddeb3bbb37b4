package nodeconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"sync/atomic"
	"time"
)

// WatcherConfig says what to watch, and for which node.
type WatcherConfig struct {
	Path string
	// Optional says that a file that isn't there sets nothing until it is.
	Optional bool
	NodeName string
	// Labels are the node's current ones, and whether they are known yet; nil: the node
	// has none, and never will.
	Labels func() (labels map[string]string, known bool)
	// Interval is the time between two looks at the file; 0 is a second.
	Interval time.Duration
	// Log is told of every change, and once of each bad file; nil is silence.
	Log *slog.Logger
	// Check refuses settings that this node can't have, as a bad file is refused; nil
	// takes all.
	Check func(Settings) error
	// Changed is called by Run when Current's answer is another.
	Changed func()
}

// Watcher has a node's current settings.
//
// It reads the file, which is small, at every look: that sees a ConfigMap's links
// swapped, a file renamed over another and one written in place alike, and needs no
// inotify instance, which are short on many nodes. A file that is bad or gone changes
// nothing: the settings stay those of the last good one. Before the first good one
// there are none, which [Watcher.Current] says: who shares GPUs must not share those
// that the file would have kept back. So it is while the node's labels decide and
// aren't known.
type Watcher struct {
	cfg     WatcherConfig
	current atomic.Pointer[state]

	// Of Run's goroutine.
	data   []byte
	labels map[string]string
	failed string // the last failure that was logged
	others string // the mistakes in other nodes' entries that were logged
}

// state is what is known of the settings.
type state struct {
	settings Settings
	err      error // why there are none yet
}

// ErrLabelsUnknown is why a node has no settings yet whose labels decide.
var ErrLabelsUnknown = errors.New("an entry may match by the node's labels, which are not known before the API server has answered")

// NewWatcher looks at the file once.
func NewWatcher(cfg WatcherConfig) *Watcher {
	if cfg.Interval == 0 {
		cfg.Interval = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{cfg: cfg}
	w.current.Store(&state{err: errors.New("the node's configuration was not read yet")})
	w.refresh()
	return w
}

// Current is what the last good file sets; an error says why there has been none yet.
func (w *Watcher) Current() (Settings, error) {
	now := w.current.Load()
	return now.settings, now.err
}

// Run follows the file until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	tick := time.NewTicker(w.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.update()
		}
	}
}

// update looks once and tells of what it finds.
func (w *Watcher) update() {
	if !w.refresh() {
		return
	}
	w.cfg.Log.Info("node configuration changed", "file", w.cfg.Path)
	if w.cfg.Changed != nil {
		w.cfg.Changed()
	}
}

// refresh looks once, and says whether Current's answer is another.
func (w *Watcher) refresh() bool {
	before := w.current.Load()
	err := w.look()
	now := w.current.Load()
	switch {
	case err == nil:
	case w.data == nil && w.cfg.Optional && errors.Is(err, fs.ErrNotExist):
		now = &state{} // there never was one
		w.current.Store(now)
	default:
		if before.err != nil {
			now = &state{err: err}
			w.current.Store(now)
		}
		if err.Error() != w.failed {
			w.failed = err.Error()
			w.cfg.Log.Error("node configuration refused: the last good one stays, and where there is none no GPU is offered", "error", err)
		}
	}
	if err == nil && w.failed != "" {
		w.failed = ""
		w.cfg.Log.Info("node configuration is good again", "file", w.cfg.Path)
	}
	return !now.same(before)
}

func (s *state) same(other *state) bool {
	if s.err != nil || other.err != nil {
		return s.err != nil && other.err != nil && s.err.Error() == other.err.Error()
	}
	return reflect.DeepEqual(s.settings, other.settings)
}

// look reads the file, and takes over what it sets if it is good.
func (w *Watcher) look() error {
	data, err := read(w.cfg.Path)
	if err != nil {
		return fmt.Errorf("node configuration: %w", err)
	}
	var labels map[string]string
	known := true
	if w.cfg.Labels != nil {
		labels, known = w.cfg.Labels()
	}
	if w.data != nil && bytes.Equal(data, w.data) && maps.Equal(labels, w.labels) {
		return nil // as the last good one
	}
	s, err := w.decide(data, labels, known)
	if err != nil {
		return fmt.Errorf("node configuration %s: %w", w.cfg.Path, err)
	}
	w.data, w.labels = data, maps.Clone(labels)
	w.current.Store(&state{settings: s})
	return nil
}

// decide says what a file sets for the node.
func (w *Watcher) decide(data []byte, labels map[string]string, known bool) (Settings, error) {
	f, others, err := DecodeFor(data, w.cfg.NodeName)
	if err != nil {
		return Settings{}, err
	}
	if others != nil && others.Error() != w.others {
		w.others = others.Error()
		w.cfg.Log.Warn("node configuration has mistakes in entries of other nodes", "file", w.cfg.Path, "error", others)
	}
	if !known && f.NeedsLabels(w.cfg.NodeName) {
		return Settings{}, ErrLabelsUnknown
	}
	s, err := Resolve(f, w.cfg.NodeName, labels)
	if err == nil && w.cfg.Check != nil {
		err = w.cfg.Check(s)
	}
	return s, err
}

// read reads a file, and no more of it than Decode takes.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}
