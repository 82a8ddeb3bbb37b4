package hostinstall

import (
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const daemonJSON = "/etc/docker/daemon.json"

// Errors of the file system come with what to do.
func TestHint(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "/x", Err: err}) }
	for err, want := range map[error]string{
		unix.ENOSPC: "free some space", unix.EROFS: "read-only", unix.EPERM: "run it as root", unix.EACCES: "run it as root", unix.EIO: "",
	} {
		assert.Contains(t, hint(wrapped(err)), want)
	}
	assert.Empty(t, hint(wrapped(unix.EIO)))
}

// A file that reads back as something else is the old content was restored.
func TestReadsBackAsSomethingElse(t *testing.T) {
	h := newTestHost(t)
	h.put(daemonJSON, "{}\n")
	edited, err := newHost(h.root)
	require.NoError(t, err)
	edited.readBack = func(string) ([]byte, error) { return []byte("{"), nil }
	_, err = edited.commit(edit{path: daemonJSON, before: []byte("{}\n"), after: []byte("{ }\n")})
	assert.ErrorContains(t, err, "the old content was restored")
	assert.Equal(t, "{}\n", h.read(daemonJSON))

	_, err = edited.commit(edit{path: "/etc/new", after: []byte("x")})
	assert.ErrorContains(t, err, "the old content was restored")
	assert.NoFileExists(t, h.path("/etc/new"))
}

// A file that is changed between the reading and the writing is not written over.
func TestChangedMeanwhile(t *testing.T) {
	h := newTestHost(t)
	h.put(daemonJSON, "{}\n")
	edited, err := newHost(h.root)
	require.NoError(t, err)
	for i, before := range [][]byte{nil, []byte("{ }\n")} {
		_, err = edited.commit(edit{path: daemonJSON, before: before, after: []byte("x")})
		assert.ErrorContains(t, err, "was changed by another program", fmt.Sprint(i))
	}
	assert.Equal(t, "{}\n", h.read(daemonJSON))
	assert.Empty(t, h.backups(daemonJSON))
}

// A record that is damaged or of a newer program stops both, because it would be lost.
func TestBadRecord(t *testing.T) {
	for _, text := range []string{"{", `{"version": 2}`} {
		h := newTestHost(t)
		h.put("/var/lib/gpuslice/install/docker.json", text)
		_, err := h.install(h.options("docker"))
		assert.ErrorContains(t, err, "read the record /var/lib/gpuslice/install/docker.json")
		_, err = h.uninstall(h.options("docker"))
		assert.Error(t, err)
		assert.NoFileExists(t, h.path(daemonJSON))
	}
}

// The record of what was changed is written and read as it is.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"engine":"docker","files":[{"path":"/etc/docker/daemon.json","format":"json","seed":"","own":["runtimes","gpuslice"],"ownTables":1,"changes":[{"key":["a"],"set":"1"}]}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			return
		}
		written, err := r.encode()
		require.NoError(t, err)
		again, err := decodeRecord(written)
		require.NoError(t, err)
		twice, err := again.encode()
		require.NoError(t, err)
		require.Equal(t, string(written), string(twice))
	})
}
