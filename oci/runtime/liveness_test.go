package ociruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeProc makes a /proc with processes: a state letter and a start each.
type fakeProc struct {
	testing.TB
	dir string
}

func newProc(t testing.TB) fakeProc {
	p := fakeProc{t, t.TempDir()}
	write(t, filepath.Join(p.dir, "self/ns/pid"), "", 0o644)
	return p
}

func (p fakeProc) add(pid int, state string, start uint64, mounts ...string) {
	base := filepath.Join(p.dir, itoa(pid))
	// The name holds what a parser could stumble on.
	write(p, filepath.Join(base, "stat"), fmt.Sprintf("%d (a) R (b) %s 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21\n", pid, state, start), 0o644)
	write(p, filepath.Join(base, "mountinfo"), strings.Join(mounts, "\n"), 0o644)
	require.NoError(p, os.MkdirAll(filepath.Join(base, "ns"), 0o755))
	require.NoError(p, os.MkdirAll(filepath.Join(base, "task", itoa(pid)), 0o755))
	require.NoError(p, os.Symlink("mnt:["+itoa(pid)+"]", filepath.Join(base, "ns/mnt")))
}

func TestAlive(t *testing.T) {
	const creator = 10
	for _, c := range []struct {
		description string
		change      func(p fakeProc, dir, root string, j *judge)
		ended       bool
		want        bool
	}{
		{"nobody", func(fakeProc, string, string, *judge) {}, false, false},
		{"its creation is under way", func(p fakeProc, _, _ string, _ *judge) { p.add(creator, "S", 100) }, false, true},
		{"its creator waits, and the container has ended", func(p fakeProc, _, _ string, _ *judge) { p.add(creator, "S", 100) }, true, false},
		{"another process has its creator's number", func(p fakeProc, _, _ string, _ *judge) { p.add(creator, "S", 101) }, false, false},
		{"its creator is a zombie", func(p fakeProc, _, _ string, _ *judge) { p.add(creator, "Z", 100) }, false, false},
		{
			"its creator is in the middle of an exec by another thread",
			func(p fakeProc, _, _ string, _ *judge) {
				p.add(creator, "Z", 100)
				require.NoError(t, os.Mkdir(filepath.Join(p.dir, itoa(creator), "task/11"), 0o755))
			}, false, true,
		},
		{
			"runc's init lives",
			func(p fakeProc, _, root string, _ *judge) {
				p.add(20, "S", 200)
				write(t, filepath.Join(root, "web/state.json"), `{"id":"web","init_process_pid":20,"init_process_start":200,"created":"x","config":{"pid":7`, 0o600)
			}, true, true,
		},
		{
			"crun's init lives",
			func(p fakeProc, _, root string, _ *judge) {
				p.add(20, "S", 200)
				write(t, filepath.Join(root, "web/status"), `{"pid": 20, "process-start-time": 200, "cgroup-path": "/x"}`, 0o600)
			}, true, true,
		},
		{
			"a state that was left behind: its init is another process",
			func(p fakeProc, _, root string, _ *judge) {
				p.add(20, "S", 201)
				write(t, filepath.Join(root, "web/state.json"), `{"init_process_pid":20,"init_process_start":200}`, 0o600)
			}, false, false,
		},
		{
			"a state that was half written",
			func(_ fakeProc, _, root string, _ *judge) {
				write(t, filepath.Join(root, "web/state.json"), `{"id":"web","init_pro`, 0o600)
			}, false, false,
		},
		{
			"a process has the usage file locked",
			func(_ fakeProc, dir, _ string, j *judge) {
				j.inUse = func(path string) (bool, error) { return path == filepath.Join(dir, "usage"), nil }
			}, true, true,
		},
		{
			"the usage file can't be looked at",
			func(_ fakeProc, _, _ string, j *judge) {
				j.inUse = func(string) (bool, error) { return false, errors.New("busy") }
			}, true, true,
		},
		{
			"a process that init has left behind has the limits mounted",
			func(p fakeProc, dir, _ string, _ *judge) {
				p.add(30, "S", 300, "36 35 0:1 / / rw - x x rw", "37 36 "+device(t, dir)+" /x/containers/web/limits /usr/local/vgpu/limits ro - tmpfs x rw")
			}, true, true,
		},
		{
			"a neighbour's limits are mounted, and a file of that name elsewhere",
			func(p fakeProc, dir, _ string, _ *judge) {
				p.add(30, "S", 300,
					"37 36 "+device(t, dir)+" /containers/web2/limits /usr/local/vgpu/limits ro - tmpfs x rw",
					"38 36 0:9999 /containers/web/limits /usr/local/vgpu/limits ro - tmpfs x rw")
			}, true, false,
		},
		{
			"its record can't be read",
			func(_ fakeProc, dir, _ string, _ *judge) { write(t, filepath.Join(dir, recordName), "{", 0o600) }, true, true,
		},
		{
			"it was made in another PID namespace",
			func(p fakeProc, _, _ string, _ *judge) {
				require.NoError(t, os.Rename(filepath.Join(p.dir, "self/ns/pid"), filepath.Join(p.dir, "self/ns/old")))
				write(t, filepath.Join(p.dir, "self/ns/pid"), "", 0o644)
			}, true, true,
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			p := newProc(t)
			dir, root := filepath.Join(t.TempDir(), "containers/web"), t.TempDir()
			require.NoError(t, os.MkdirAll(dir, 0o755))
			namespace, err := procfs(p.dir).namespace()
			require.NoError(t, err)
			require.NoError(t, record{
				Nonce: "n", Creator: process{creator, 100}, PIDNamespace: namespace, Roots: []string{root},
			}.write(dir))
			j := judge{proc: procfs(p.dir), inUse: func(string) (bool, error) { return false, fs.ErrNotExist }}
			c.change(p, dir, root, &j)
			require.Equal(t, c.want, j.alive(dir, c.ended))
		})
	}
}

// device is a folder's, as mountinfo has it.
func device(t testing.TB, dir string) string {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir, &st))
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
}

func TestIdentify(t *testing.T) {
	self, err := procfs("/proc").identify(os.Getpid())
	require.NoError(t, err)
	require.True(t, procfs("/proc").lives(self))
	self.Start++
	require.False(t, procfs("/proc").lives(self))
	_, err = procfs("/proc").identify(0)
	require.Error(t, err)
}
