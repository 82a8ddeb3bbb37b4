package nodeconfig_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
)

func split(count string) []byte {
	return []byte(`{"nodeconfig": [{"name": "n", "devicesplitcount": ` + count + `}, {"matchlabels": {"pool": "infer"}, "devicesplitcount": 99}]}`)
}

// mapped makes a ConfigMap's volume as the kubelet does: the file is a link by way of
// ..data, which is swapped by a rename.
type mapped struct {
	t   *testing.T
	dir string
	n   int
}

func newMapped(t *testing.T) *mapped {
	m := &mapped{t: t, dir: t.TempDir()}
	require.NoError(t, os.Symlink("..data/config.json", m.path()))
	return m
}

func (m *mapped) path() string { return filepath.Join(m.dir, "config.json") }

func (m *mapped) swap(data []byte) {
	m.n++
	version := filepath.Join(m.dir, "..v"+strings.Repeat("i", m.n))
	require.NoError(m.t, os.Mkdir(version, 0o755))
	require.NoError(m.t, os.WriteFile(filepath.Join(version, "config.json"), data, 0o644))
	require.NoError(m.t, os.Symlink(filepath.Base(version), filepath.Join(m.dir, "..tmp")))
	require.NoError(m.t, os.Rename(filepath.Join(m.dir, "..tmp"), filepath.Join(m.dir, "..data")))
}

func TestWatcherFollowsAConfigMap(t *testing.T) {
	m := newMapped(t)
	m.swap(split("1"))
	var log bytes.Buffer
	var changes []int
	var w *nodeconfig.Watcher
	w = nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: m.path(), NodeName: "n", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Changed: func() { changes = append(changes, splitCount(t, w)) },
	})
	assert.Equal(t, 1, splitCount(t, w))
	w.Update()
	assert.Empty(t, log.String(), "nothing changed")

	m.swap(split("2"))
	w.Update()
	assert.Equal(t, 2, splitCount(t, w))
	m.swap(append(split("2"), '\n'))
	w.Update()
	assert.Equal(t, []int{2}, changes, "another file that sets the same is no change")

	// A bad one, and one that is gone, change nothing and are logged once.
	log.Reset()
	m.swap(split("0"))
	w.Update()
	w.Update()
	assert.Equal(t, 2, splitCount(t, w))
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	assert.Contains(t, log.String(), "level=ERROR")
	assert.Contains(t, log.String(), "devicesplitcount: must be 1 to 1000")
	require.NoError(t, os.Remove(filepath.Join(m.dir, "..data")))
	w.Update()
	w.Update()
	assert.Equal(t, 2, splitCount(t, w))
	assert.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	assert.Contains(t, log.String(), "no such file")

	log.Reset()
	m.swap(split("3"))
	w.Update()
	assert.Equal(t, 3, splitCount(t, w))
	assert.Equal(t, []int{2, 3}, changes)
	assert.Contains(t, log.String(), "valid again")
}

// A node's labels come and go without the file's doing.
func TestWatcherFollowsLabels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, split("1"), 0o644))
	labels := map[string]string{}
	w := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: path, NodeName: "other", Labels: func() map[string]string { return labels },
	})
	assert.Zero(t, settings(t, w))
	labels["pool"] = "infer"
	w.Update()
	assert.Equal(t, 99, splitCount(t, w))
	delete(labels, "pool")
	w.Update()
	assert.Zero(t, settings(t, w))
}

// Where labels decide, there are no settings before they are known, and no GPUs to be
// shared by the wrong ones.
func TestWatcherWaitsForLabels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, split("1"), 0o644))
	var labels map[string]string
	changes := 0
	w := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: path, NodeName: "other", Labels: func() map[string]string { return labels }, Changed: func() { changes++ },
	})
	_, err := w.Current()
	assert.ErrorIs(t, err, nodeconfig.ErrLabelsUnknown)
	w.Update()
	assert.Zero(t, changes)
	labels = map[string]string{"pool": "infer"}
	w.Update()
	assert.Equal(t, 99, splitCount(t, w))
	assert.Equal(t, 1, changes)

	require.NoError(t, os.WriteFile(path, []byte(`{"nodeconfig": [{"nameglob": "gpu-*", "matchlabels": {"pool": "x"}}]}`), 0o644))
	w = nodeconfig.NewWatcher(nodeconfig.WatcherConfig{Path: path, NodeName: "other", Labels: func() map[string]string { return nil }})
	assert.Zero(t, settings(t, w), "an entry that is for other nodes, whatever the labels")
	w = nodeconfig.NewWatcher(nodeconfig.WatcherConfig{Path: path, NodeName: "gpu-1"})
	assert.Zero(t, settings(t, w), "a node without an API server has no labels")
}

// A bad file at the start: Current returns the reason until the file is valid.
func TestWatcherAtItsStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	var log bytes.Buffer
	config := nodeconfig.WatcherConfig{Path: path, NodeName: "n", Log: slog.New(slog.NewTextHandler(&log, nil))}
	w := nodeconfig.NewWatcher(config)
	_, err := w.Current()
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())

	config.Optional = true
	log.Reset()
	w = nodeconfig.NewWatcher(config)
	assert.Zero(t, settings(t, w))
	w.Update()
	assert.Empty(t, log.String(), "a file that never was is no trouble")
	require.NoError(t, os.WriteFile(path, split("5"), 0o644))
	w.Update()
	assert.Equal(t, 5, splitCount(t, w))

	require.NoError(t, os.WriteFile(path, split("-5"), 0o644))
	changes := 0
	config.Changed = func() { changes++ }
	w = nodeconfig.NewWatcher(config)
	_, err = w.Current()
	assert.ErrorContains(t, err, path+": nodeconfig[0] (name n): devicesplitcount", "a bad one is an error, optional or not")
	require.NoError(t, os.WriteFile(path, split("6"), 0o644))
	w.Update()
	assert.Equal(t, 6, splitCount(t, w))
	assert.Equal(t, 1, changes)
	require.NoError(t, os.WriteFile(path, []byte(`{"nodeconfig": [{"nameglob": "n"}, {"nameglob": "?"}, {"nameglob": "*"}]}`), 0o644))
	settings(t, nodeconfig.NewWatcher(config))
}

// A mistake in an entry that names another node is that node's.
func TestWatcherLeavesOthersMistakesToThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	for _, bad := range []string{`{"name": "other", "devicesplitcount": 0}`, `{"name": "other", "devicesplitcount": "many"}`, `{"name": "other", "nope": 1}`} {
		require.NoError(t, os.WriteFile(path, []byte(`{"nodeconfig": [`+bad+`, {"name": "n", "devicesplitcount": 3}]}`), 0o644))
		var log bytes.Buffer
		w := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{Path: path, NodeName: "n", Log: slog.New(slog.NewTextHandler(&log, nil))})
		assert.Equal(t, 3, splitCount(t, w), bad)
		assert.Contains(t, log.String(), "entries for other nodes")
		w.Update()
		assert.Equal(t, 1, strings.Count(log.String(), "\n"), "logged once")
		_, err := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{Path: path, NodeName: "other"}).Current()
		assert.ErrorContains(t, err, "nodeconfig[0]")
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"nodeconfig": [{"nameglob": "x*", "devicesplitcount": 0}]}`), 0o644))
	_, err := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{Path: path, NodeName: "n"}).Current()
	assert.ErrorContains(t, err, "nodeconfig[0]", "its node is not known")
}

func settings(t *testing.T, w *nodeconfig.Watcher) nodeconfig.Settings {
	t.Helper()
	s, err := w.Current()
	require.NoError(t, err)
	return s
}

func splitCount(t *testing.T, w *nodeconfig.Watcher) int {
	t.Helper()
	return *settings(t, w).SplitCount
}

func TestWatcherRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, split("1"), 0o644))
	changed := make(chan struct{})
	w := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: path, NodeName: "n", Interval: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Changed: func() { changed <- struct{}{} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	require.NoError(t, os.WriteFile(path, split("2"), 0o644))
	<-changed
	assert.Equal(t, 2, splitCount(t, w))
	cancel()
	<-ended
}
