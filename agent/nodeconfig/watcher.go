package nodeconfig

import (
	"bytes"
	"cmp"
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

	"github.com/gpuslice/gpuslice/internal/periodic"
)

type WatcherConfig struct {
	Path string
	// Optional: a missing file sets nothing.
	Optional bool
	NodeName string
	// Labels returns the node's labels, or nil while they are unknown; optional.
	Labels   func() map[string]string
	Interval time.Duration
	Log      *slog.Logger
	// Check rejects settings that this node does not support; optional.
	Check func(Settings) error
	// Changed is called after a change of Current.
	Changed func()
}

// Watcher has a node's current settings. It polls, because inotify instances are often scarce. An invalid or
// missing file changes nothing. Before the first valid file, and while unknown labels decide,
// [Watcher.Current] returns an error: the file could exclude any GPU.
type Watcher struct {
	cfg     WatcherConfig
	current atomic.Pointer[state]

	data   []byte
	labels map[string]string
	failed string
	others string
}

type state struct {
	settings Settings
	err      error
}

// ErrLabelsUnknown: the node's labels decide and are not known yet.
var ErrLabelsUnknown = errors.New("an entry can match by the node's labels, and the API server has not returned them yet")

// NewWatcher reads the file once.
func NewWatcher(cfg WatcherConfig) *Watcher {
	cfg.Interval, cfg.Log = cmp.Or(cfg.Interval, time.Second), cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	w := &Watcher{cfg: cfg}
	w.current.Store(&state{err: errors.New("node configuration not read yet")})
	w.refresh()
	return w
}

// Current returns the settings of the last good file, or why there are none yet.
func (w *Watcher) Current() (Settings, error) {
	now := w.current.Load()
	return now.settings, now.err
}

// Run follows the file until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	periodic.Every(ctx, w.cfg.Interval, nil, w.update)
}

func (w *Watcher) update() {
	if !w.refresh() {
		return
	}
	w.cfg.Log.Info("node configuration changed", "file", w.cfg.Path)
	if w.cfg.Changed != nil {
		w.cfg.Changed()
	}
}

func (w *Watcher) refresh() bool {
	before := w.current.Load()
	err := w.look()
	now := w.current.Load()
	switch {
	case err == nil:
	case w.data == nil && w.cfg.Optional && errors.Is(err, fs.ErrNotExist):
		now = &state{}
		w.current.Store(now)
	default:
		if before.err != nil {
			now = &state{err: err}
			w.current.Store(now)
		}
		if err.Error() != w.failed {
			w.failed = err.Error()
			w.cfg.Log.Error("node configuration rejected: the last valid one stays; without one no GPU is offered", "error", err)
		}
	}
	if err == nil && w.failed != "" {
		w.failed = ""
		w.cfg.Log.Info("node configuration is valid again", "file", w.cfg.Path)
	}
	return !now.same(before)
}

func (s *state) same(other *state) bool {
	if s.err != nil || other.err != nil {
		return s.err != nil && other.err != nil && s.err.Error() == other.err.Error()
	}
	return reflect.DeepEqual(s.settings, other.settings)
}

func (w *Watcher) look() error {
	data, err := read(w.cfg.Path)
	if err != nil {
		return fmt.Errorf("node configuration: %w", err)
	}
	var labels map[string]string
	known := true
	if w.cfg.Labels != nil {
		labels = w.cfg.Labels()
		known = labels != nil
	}
	if w.data != nil && bytes.Equal(data, w.data) && maps.Equal(labels, w.labels) {
		return nil
	}
	s, err := w.decide(data, labels, known)
	if err != nil {
		return fmt.Errorf("node configuration %s: %w", w.cfg.Path, err)
	}
	w.data, w.labels = data, maps.Clone(labels)
	w.current.Store(&state{settings: s})
	return nil
}

func (w *Watcher) decide(data []byte, labels map[string]string, known bool) (Settings, error) {
	f, others, err := DecodeFor(data, w.cfg.NodeName)
	if err != nil {
		return Settings{}, err
	}
	if others != nil && others.Error() != w.others {
		w.others = others.Error()
		w.cfg.Log.Warn("node configuration has errors in entries for other nodes", "file", w.cfg.Path, "error", others)
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

// read reads at most as much as Decode accepts.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}
