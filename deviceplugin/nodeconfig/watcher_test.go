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

	"github.com/gpuslice/gpuslice/deviceplugin/nodeconfig"
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
	w, err := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: m.path(), NodeName: "n", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Changed: func(s nodeconfig.Settings) { changes = append(changes, *s.SplitCount) },
	})
	require.NoError(t, err)
	assert.Equal(t, 1, *w.Current().SplitCount)
	w.Update()
	assert.Empty(t, log.String(), "nothing changed")

	m.swap(split("2"))
	w.Update()
	assert.Equal(t, 2, *w.Current().SplitCount)
	m.swap(append(split("2"), '\n'))
	w.Update()
	assert.Equal(t, []int{2}, changes, "another file that sets the same is no change")

	// A bad one, and one that is gone, change nothing and are told of once.
	log.Reset()
	m.swap(split("0"))
	w.Update()
	w.Update()
	assert.Equal(t, 2, *w.Current().SplitCount)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	assert.Contains(t, log.String(), "level=ERROR")
	assert.Contains(t, log.String(), "devicesplitcount: want 1 to 1000")
	require.NoError(t, os.Remove(filepath.Join(m.dir, "..data")))
	w.Update()
	w.Update()
	assert.Equal(t, 2, *w.Current().SplitCount)
	assert.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	assert.Contains(t, log.String(), "no such file")

	log.Reset()
	m.swap(split("3"))
	w.Update()
	assert.Equal(t, 3, *w.Current().SplitCount)
	assert.Equal(t, []int{2, 3}, changes)
	assert.Contains(t, log.String(), "good again")
}

// A node's labels come and go without the file's doing.
func TestWatcherFollowsLabels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, split("1"), 0o644))
	labels := map[string]string{}
	w, err := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: path, NodeName: "other", Labels: func() map[string]string { return labels },
	})
	require.NoError(t, err)
	assert.Zero(t, w.Current())
	labels["pool"] = "infer"
	w.Update()
	assert.Equal(t, 99, *w.Current().SplitCount)
	delete(labels, "pool")
	w.Update()
	assert.Zero(t, w.Current())
}

func TestWatcherAtItsStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	config := nodeconfig.WatcherConfig{Path: path, NodeName: "n", Log: slog.New(slog.DiscardHandler)}
	_, err := nodeconfig.NewWatcher(config)
	assert.ErrorIs(t, err, fs.ErrNotExist)

	config.Optional = true
	var log bytes.Buffer
	config.Log = slog.New(slog.NewTextHandler(&log, nil))
	w, err := nodeconfig.NewWatcher(config)
	require.NoError(t, err)
	assert.Zero(t, w.Current())
	w.Update()
	assert.Empty(t, log.String(), "a file that never was is no trouble")
	require.NoError(t, os.WriteFile(path, split("5"), 0o644))
	w.Update()
	assert.Equal(t, 5, *w.Current().SplitCount)

	require.NoError(t, os.WriteFile(path, split("-5"), 0o644))
	_, err = nodeconfig.NewWatcher(config)
	assert.ErrorContains(t, err, path+": nodeconfig[0] (name n): devicesplitcount", "a bad one is an error, optional or not")
	require.NoError(t, os.WriteFile(path, []byte(`{"nodeconfig": [{"nameglob": "n"}, {"nameglob": "?"}, {"nameglob": "*"}]}`), 0o644))
	_, err = nodeconfig.NewWatcher(config)
	assert.NoError(t, err)
}

func TestWatcherRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, split("1"), 0o644))
	changed := make(chan int)
	w, err := nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: path, NodeName: "n", Interval: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Changed: func(s nodeconfig.Settings) { changed <- *s.SplitCount },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	require.NoError(t, os.WriteFile(path, split("2"), 0o644))
	assert.Equal(t, 2, <-changed)
	cancel()
	<-ended
}
