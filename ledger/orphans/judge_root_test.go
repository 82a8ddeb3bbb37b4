//go:build root

package orphans

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
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
	base := filepath.Join(p.dir, strconv.Itoa(pid))
	// The name holds what a parser could stumble on.
	write(p, filepath.Join(base, "stat"), fmt.Sprintf("%d (a) R (b) %s 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21\n", pid, state, start), 0o644)
	write(p, filepath.Join(base, "mountinfo"), strings.Join(mounts, "\n"), 0o644)
	require.NoError(p, os.MkdirAll(filepath.Join(base, "ns"), 0o755))
	require.NoError(p, os.MkdirAll(filepath.Join(base, "task", strconv.Itoa(pid)), 0o755))
	require.NoError(p, os.Symlink("mnt:["+strconv.Itoa(pid)+"]", filepath.Join(base, "ns/mnt")))
}

func TestAlive(t *testing.T) {
	const creator = 10
	for _, c := range []struct {
		description string
		change      func(p fakeProc, dir, root string, j *Judge)
		ended       bool
		want        bool
	}{
		{"no process", func(fakeProc, string, string, *Judge) {}, false, false},
		{"its creation is under way", func(p fakeProc, _, _ string, _ *Judge) { p.add(creator, "S", 100) }, false, true},
		{"its creator waits, and the container has ended", func(p fakeProc, _, _ string, _ *Judge) { p.add(creator, "S", 100) }, true, false},
		{"another process has its creator's number", func(p fakeProc, _, _ string, _ *Judge) { p.add(creator, "S", 101) }, false, false},
		{"its creator is a zombie", func(p fakeProc, _, _ string, _ *Judge) { p.add(creator, "Z", 100) }, false, false},
		{
			"its creator is in the middle of an exec by another thread",
			func(p fakeProc, _, _ string, _ *Judge) {
				p.add(creator, "Z", 100)
				require.NoError(t, os.Mkdir(filepath.Join(p.dir, strconv.Itoa(creator), "task/11"), 0o755))
			}, false, true,
		},
		{
			"runc's init lives",
			func(p fakeProc, _, root string, _ *Judge) {
				p.add(20, "S", 200)
				write(t, filepath.Join(root, "web/state.json"), `{"id":"web","init_process_pid":20,"init_process_start":200,"created":"x","config":{"pid":7`, 0o600)
			}, true, true,
		},
		{
			"crun's init lives",
			func(p fakeProc, _, root string, _ *Judge) {
				p.add(20, "S", 200)
				write(t, filepath.Join(root, "web/status"), `{"pid": 20, "process-start-time": 200, "cgroup-path": "/x"}`, 0o600)
			}, true, true,
		},
		{
			"a state that was left behind: its init is another process",
			func(p fakeProc, _, root string, _ *Judge) {
				p.add(20, "S", 201)
				write(t, filepath.Join(root, "web/state.json"), `{"init_process_pid":20,"init_process_start":200}`, 0o600)
			}, false, false,
		},
		{
			"a state that was half written",
			func(_ fakeProc, _, root string, _ *Judge) {
				write(t, filepath.Join(root, "web/state.json"), `{"id":"web","init_pro`, 0o600)
			}, false, false,
		},
		{
			"a process has the usage file locked",
			func(_ fakeProc, dir, _ string, j *Judge) {
				j.InUse = func(path string) (bool, error) { return path == limiter.UsagePath(dir), nil }
			}, true, true,
		},
		{
			"the usage file can't be looked at",
			func(_ fakeProc, _, _ string, j *Judge) {
				j.InUse = func(string) (bool, error) { return false, errors.New("busy") }
			}, true, true,
		},
		{
			"an orphaned process has the usage file mounted",
			func(p fakeProc, dir, _ string, _ *Judge) {
				p.add(30, "S", 300, "36 35 0:1 / / rw - x x rw", "37 36 "+device(t, dir)+" /usage /.gpuslice/usage ro - tmpfs x rw")
			}, true, true,
		},
		{
			"the host has the file system of the claim mounted",
			func(p fakeProc, dir, _ string, _ *Judge) {
				p.add(30, "S", 300, "37 36 "+device(t, dir)+" / "+limiter.FilesDir(dir)+" rw - tmpfs x rw")
			}, true, false,
		},
		{
			"a neighbour's usage file is mounted, and a file of that name elsewhere",
			func(p fakeProc, dir, _ string, _ *Judge) {
				p.add(30, "S", 300,
					"37 36 0:9998 /usage /.gpuslice/usage rw - tmpfs x rw",
					"38 36 0:9999 /containers/web/vgpu/usage /.gpuslice/usage rw - tmpfs x rw")
			}, true, false,
		},
		{
			"its file system is mounted nowhere, as after a boot",
			func(p fakeProc, dir, _ string, _ *Judge) {
				require.NoError(t, vgpufs.Unmount(dir))
				p.add(30, "S", 300, "36 35 0:1 / / rw - x x rw", "37 36 0:9998 / /run/gpuslice/containers/web2/vgpu rw - tmpfs x rw")
			}, true, false,
		},
		{
			"its file system is mounted only in the runtime's mount namespace",
			func(p fakeProc, dir, _ string, _ *Judge) {
				require.NoError(t, vgpufs.Unmount(dir))
				p.add(30, "S", 300, "37 36 0:9998 / /run/gpuslice/containers/web/vgpu rw - tmpfs x rw")
			}, true, true,
		},
		{
			"its file system was unmounted on the host, and a process is in its cgroup",
			func(p fakeProc, dir, _ string, _ *Judge) {
				require.NoError(t, vgpufs.Unmount(dir))
				p.add(30, "S", 300, "37 36 0:9998 /usage /.gpuslice/usage rw - tmpfs x rw")
				write(t, filepath.Join(p.dir, "30/cgroup"), "0::/docker/web\n", 0o644)
			}, true, true,
		},
		{
			"its creator lives on for others, and was given its time",
			func(p fakeProc, dir, _ string, _ *Judge) { p.add(creator, "S", 100); bound(t, dir, 999) }, false, false,
		},
		{
			"its creator is in its time",
			func(p fakeProc, dir, _ string, _ *Judge) { p.add(creator, "S", 100); bound(t, dir, 1000) }, false, true,
		},
		{
			"its record is damaged, and it was made a moment ago",
			func(_ fakeProc, dir, _ string, _ *Judge) { damage(t, dir, 0) }, false, true,
		},
		{
			"its record is damaged, and nothing uses it",
			func(_ fakeProc, dir, _ string, _ *Judge) { damage(t, dir, 2*youth) }, false, false,
		},
		{
			"its record is damaged, and its limits are mounted",
			func(p fakeProc, dir, _ string, _ *Judge) {
				damage(t, dir, 2*youth)
				p.add(30, "S", 300, "37 36 "+device(t, dir)+" /usage /.gpuslice/usage rw - tmpfs x rw")
			}, true, true,
		},
		{
			"its record is damaged, and its usage file is locked",
			func(_ fakeProc, dir, _ string, j *Judge) {
				damage(t, dir, 2*youth)
				j.InUse = func(string) (bool, error) { return true, nil }
			}, true, true,
		},
		{
			"its record is damaged, and not all processes are seen",
			func(_ fakeProc, dir, _ string, j *Judge) { damage(t, dir, 2*youth); j.machine++ }, true, true,
		},
		{
			"it has no record",
			func(_ fakeProc, dir, _ string, _ *Judge) {
				require.NoError(t, os.Remove(filepath.Join(dir, RecordName)))
			}, true, true,
		},
		{
			"it was made in another PID namespace",
			func(p fakeProc, _, _ string, _ *Judge) {
				require.NoError(t, os.Rename(filepath.Join(p.dir, "self/ns/pid"), filepath.Join(p.dir, "self/ns/old")))
				write(t, filepath.Join(p.dir, "self/ns/pid"), "", 0o644)
			}, true, true,
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			p := newProc(t)
			dir, root := filepath.Join(t.TempDir(), "containers/web"), t.TempDir()
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, vgpufs.Mount(dir))
			t.Cleanup(func() { require.NoError(t, vgpufs.RemoveAll(dir)) })
			namespace, err := Procfs(p.dir).Namespace()
			require.NoError(t, err)
			require.NoError(t, Record{
				Nonce: "n", Creator: Process{creator, 100}, PIDNamespace: namespace, Roots: []string{root},
			}.Write(dir))
			j := Judge{Proc: Procfs(p.dir), InUse: func(string) (bool, error) { return false, fs.ErrNotExist }, machine: namespace, now: func() (int64, error) { return 1000, nil }}
			c.change(p, dir, root, &j)
			require.Equal(t, c.want, j.Alive(dir, c.ended))
		})
	}
}

// bound gives a record's creator a time.
func bound(t testing.TB, dir string, until int64) {
	r, err := Read(dir)
	require.NoError(t, err)
	r.CreatorUntil = until
	require.NoError(t, r.Write(dir))
}

// damage makes a record unreadable in a directory of an age.
func damage(t testing.TB, dir string, age time.Duration) {
	write(t, filepath.Join(dir, RecordName), "{", 0o600)
	then := time.Now().Add(-age)
	require.NoError(t, os.Chtimes(dir, then, then))
}

// write writes a file, and the directories above it.
func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
}
