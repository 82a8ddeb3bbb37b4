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
	// Labels are the node's current ones; nil is none.
	Labels func() map[string]string
	// Interval is the time between two looks at the file; 0 is a second.
	Interval time.Duration
	// Log is told of every change, and once of each bad file; nil is silence.
	Log *slog.Logger
	// Check refuses settings that this node can't have, as a bad file is refused; nil
	// takes all.
	Check func(Settings) error
	// Changed is called by Run with settings that differ from those before.
	Changed func(Settings)
}

// Watcher has a node's current settings.
//
// It reads the file, which is small, at every look: that sees a ConfigMap's links
// swapped, a file renamed over another and one written in place alike, and needs no
// inotify instance, which are short on many nodes. A file that is bad or gone changes
// nothing: the settings stay those of the last good one.
type Watcher struct {
	cfg     WatcherConfig
	current atomic.Pointer[Settings]

	// Of Run's goroutine.
	data   []byte
	labels map[string]string
	failed string // the last failure that was logged
}

// NewWatcher reads the file once; a bad one is an error.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	if cfg.Interval == 0 {
		cfg.Interval = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Labels == nil {
		cfg.Labels = func() map[string]string { return nil }
	}
	w := &Watcher{cfg: cfg}
	w.current.Store(&Settings{})
	if _, err := w.look(); err != nil && (!cfg.Optional || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	return w, nil
}

// Current is what the last good file sets.
func (w *Watcher) Current() Settings { return *w.current.Load() }

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
	changed, err := w.look()
	if err != nil {
		if w.data == nil && w.cfg.Optional && errors.Is(err, fs.ErrNotExist) {
			return // there never was one
		}
		if err.Error() != w.failed {
			w.failed = err.Error()
			w.cfg.Log.Error("node configuration refused: the last good one stays", "error", err)
		}
		return
	}
	if w.failed != "" {
		w.failed = ""
		w.cfg.Log.Info("node configuration is good again", "file", w.cfg.Path)
	}
	if changed {
		w.cfg.Log.Info("node configuration changed", "file", w.cfg.Path)
		if w.cfg.Changed != nil {
			w.cfg.Changed(w.Current())
		}
	}
}

// look reads the file and says whether it sets something else than before.
func (w *Watcher) look() (changed bool, err error) {
	data, err := read(w.cfg.Path)
	if err != nil {
		return false, fmt.Errorf("node configuration: %w", err)
	}
	labels := w.cfg.Labels()
	if w.data != nil && bytes.Equal(data, w.data) && maps.Equal(labels, w.labels) {
		return false, nil // as the last good one
	}
	f, err := Decode(data)
	if err != nil {
		return false, fmt.Errorf("node configuration %s: %w", w.cfg.Path, err)
	}
	s, err := Resolve(f, w.cfg.NodeName, labels)
	if err != nil {
		return false, fmt.Errorf("node configuration %s: %w", w.cfg.Path, err)
	}
	if w.cfg.Check != nil {
		if err := w.cfg.Check(s); err != nil {
			return false, fmt.Errorf("node configuration %s: %w", w.cfg.Path, err)
		}
	}
	w.data, w.labels = data, maps.Clone(labels)
	changed = !reflect.DeepEqual(s, w.Current())
	w.current.Store(&s)
	return changed, nil
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
