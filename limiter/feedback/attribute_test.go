package feedback

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

var (
	idA = strings.Repeat("a", 64)
	idB = strings.Repeat("b", 64)
)

func TestFromCgroup(t *testing.T) {
	known := map[string]string{idA: "", idB: "", "short": ""}
	for name, test := range map[string]struct{ text, want string }{
		"v2, systemd":             {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234.slice/cri-containerd-" + idA + ".scope\n", idA},
		"v2, cgroupfs":            {"0::/kubepods/besteffort/pod1234/" + idA + "\n", idA},
		"v2, CRI-O":               {"0::/kubepods.slice/crio-" + idB + ".scope/container\n", idB},
		"runc's own":              {"0::/system.slice/k8s.io:cri:" + idA + "\n", idA},
		"a group of a container":  {"0::/kubepods/pod1/" + idA + "/init.scope\n", idA},
		"it names another inside": {"0::/kubepods/pod1/" + idA + "/" + idB + "\n", idA},
		"another namespace's":     {"0::/../../kubepods/pod1/" + idA + "\n", idA},
		"v1":                      {"12:cpu,cpuacct:/kubepods/pod1/" + idA + "\n1:name=systemd:/kubepods/pod1/" + idA + "\n0::/\n", idA},
		"a name of any kind":      {"0::/k8s.io/short\n", "short"},
		"a part of the id":        {"0::/kubepods/" + idA[:63] + "\n", ""},
		"unknown":                 {"0::/kubepods/" + strings.Repeat("c", 64) + "\n", ""},
		"none":                    {"0::/\n", ""},
		"nonsense":                {"x\n:\n::\n///\n", ""},
		"empty":                   {"", ""},
	} {
		assert.Equal(t, test.want, fromCgroup(test.text, known), name)
	}
}

// played makes a process in a played /proc.
func played(t *testing.T, proc, pid, start, cgroup string) {
	t.Helper()
	dir := filepath.Join(proc, pid)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	stat := pid + " (a ) name) S " + strings.Repeat("0 ", 18) + start + " 0 0\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644))
}

// mounts plays what is mounted in a process: files of the host's, by where they are mounted.
func mounts(t *testing.T, proc, pid string, at map[string]string) {
	t.Helper()
	text := "90 80 0:90 / / rw - overlay overlay rw\n"
	for point, file := range at {
		text += "91 90 0:77 " + file + " " + point + " rw - tmpfs tmpfs rw\n"
	}
	require.NoError(t, os.MkdirAll(filepath.Join(proc, pid), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "mountinfo"), []byte(text), 0o644))
}

const usagePath = "/.gpuslice/usage"

// ownMounts plays that our root is a file system of its own.
func ownMounts(t *testing.T, proc string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "self"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "self/mountinfo"), []byte("50 1 0:77 / / rw - tmpfs tmpfs rw\n"), 0o644))
}

func TestOwners(t *testing.T) {
	proc, state := t.TempDir(), t.TempDir()
	ownMounts(t, proc)
	files := map[string]string{idA: filepath.Join(state, "a/usage"), idB: filepath.Join(state, "b/usage")}
	played(t, proc, "10", "500", "0::/kubepods/"+idA)
	played(t, proc, "11", "501", "0::/elsewhere")
	mounts(t, proc, "11", map[string]string{usagePath: files[idB]})
	played(t, proc, "12", "502", "0::/elsewhere")
	mounts(t, proc, "12", map[string]string{usagePath: "/another/usage"})
	played(t, proc, "13", "503", "0::/elsewhere")
	// One that has moved to another container's group is not on that one's account.
	played(t, proc, "15", "505", "0::/kubepods/"+idA)
	mounts(t, proc, "15", map[string]string{usagePath: files[idB]})
	// The first thread has ended: by the groups of version 1 it is in no container.
	played(t, proc, "16", "506", "4:devices:/\n")
	stat := "16 (x) Z " + strings.Repeat("0 ", 18) + "506 0 0\n"
	require.NoError(t, os.WriteFile(filepath.Join(proc, "16/stat"), []byte(stat), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "16/task/17"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "16/task/17/stat"), []byte(strings.Replace(stat, "Z", "S", 1)), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "16/task/17/cgroup"), []byte("4:devices:/kubepods/"+idA+"\n"), 0o644))

	o := NewOwners(proc)
	assert.Equal(t, map[int]string{15: idB, 16: idA}, o.Find([]int{15, 16}, files))
	pids := []int{10, 11, 12, 13, 14}
	assert.Equal(t, map[int]string{10: idA, 11: idB}, o.Find(pids, files))

	// It is remembered, as long as it is that process and that container.
	require.NoError(t, os.Remove(filepath.Join(proc, "10/cgroup")))
	assert.Equal(t, map[int]string{10: idA, 11: idB}, o.Find(pids, files))
	assert.Equal(t, map[int]string{11: idB}, o.Find(pids, map[string]string{idB: files[idB]}))
	require.NoError(t, os.Remove(filepath.Join(proc, "11/mountinfo")))
	played(t, proc, "11", "900", "0::/kubepods/"+idA)
	assert.Equal(t, idA, o.Find(pids, files)[11], "the PID has come again")
	require.NoError(t, os.RemoveAll(filepath.Join(proc, "11")))
	assert.NotContains(t, o.Find(pids, files), 11)
	assert.NotContains(t, o.known, 11)

	assert.NotContains(t, NewOwners("/proc").Find([]int{os.Getpid()}, files), os.Getpid(), "this one is of no container")
}

// A second call with other processes does not read the first ones again: each can have a large mount table.
func TestOwnersCacheAcrossCalls(t *testing.T) {
	proc, state := t.TempDir(), t.TempDir()
	ownMounts(t, proc)
	files := map[string]string{idA: filepath.Join(state, "a/usage"), idB: filepath.Join(state, "b/usage")}
	for pid, id := range map[string]string{"10": idA, "11": idB, "12": idA} {
		played(t, proc, pid, "500", "0::/kubepods/"+id)
	}
	o := NewOwners(proc)
	require.Len(t, o.Find([]int{10, 11, 12}, files), 3)
	require.Len(t, o.Find([]int{11}, files), 1)
	require.NoError(t, os.Remove(filepath.Join(proc, "10/cgroup")))
	assert.Equal(t, map[int]string{10: idA}, o.Find([]int{10}, files))

	require.NoError(t, os.RemoveAll(filepath.Join(proc, "12")))
	o.pruneAt = 3
	o.Find(nil, files)
	assert.Len(t, o.known, 2, "processes that have ended are dropped")
	assert.Equal(t, fewKnown, o.pruneAt)
}

// A process with a very long mount table, or without time left for it, is identified by its control group.
func TestOwnersBoundMountTables(t *testing.T) {
	proc, state := t.TempDir(), t.TempDir()
	ownMounts(t, proc)
	files := map[string]string{idA: filepath.Join(state, "a/usage"), idB: filepath.Join(state, "b/usage")}
	table := strings.Repeat("92 91 0:5 / /some/mount/point rw - tmpfs tmpfs rw\n", mostMounts/50+100)
	last := "93 90 0:77 " + files[idB] + " " + usagePath + " rw - tmpfs tmpfs rw\n"
	for pid, text := range map[string]string{"20": table + last, "21": last + table, "22": last} {
		played(t, proc, pid, "500", "0::/kubepods/"+idA)
		mounts(t, proc, pid, nil)
		f, err := os.OpenFile(filepath.Join(proc, pid, "mountinfo"), os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	o := NewOwners(proc)
	o.mountTime = 0
	assert.Equal(t, map[int]string{20: idA, 21: idA, 22: idA}, o.Find([]int{20, 21, 22}, files))
	o.mountTime = mountTime
	assert.Equal(t, map[int]string{20: idA, 21: idB, 22: idB}, o.Find([]int{20, 21, 22}, files), "there is time the next time")
}

// Mounts by a container, or leaked from it, assign no process to another container.
func TestOwnersRejectForgedMounts(t *testing.T) {
	proc, state := t.TempDir(), t.TempDir()
	ownMounts(t, proc)
	files := map[string]string{idA: limiter.UsagePath(filepath.Join(state, idA)), idB: limiter.UsagePath(filepath.Join(state, idB))}
	for pid, of := range map[string]struct {
		cgroup, mountinfo string
	}{
		// Another file system has a file by the same path.
		"20": {idA, "91 90 0:78 " + files[idB] + " " + usagePath + " rw - tmpfs tmpfs rw\n"},
		// A removed file with a successor at its path.
		"21": {idA, "91 90 0:77 " + files[idB] + "//deleted " + usagePath + " rw - tmpfs tmpfs rw\n"},
		// An image may have links of its own, by which the runtime has mounted it elsewhere.
		"22": {"elsewhere", "91 90 0:77 " + filepath.Dir(files[idB]) + " /var/local/vgpu ro - tmpfs tmpfs rw\n92 91 0:77 " + files[idB] + " /var/local/vgpu/usage rw - tmpfs tmpfs rw\n"},
		// The directory of all containers, as a monitor has it.
		"23": {"elsewhere", "91 90 0:77 " + state + " " + state + " rw - tmpfs tmpfs rw\n"},
		// A container's root, seen from the host: it is not this process'.
		"24": {"elsewhere", "91 90 0:99 / /run/task/rootfs rw - overlay overlay rw\n92 91 0:77 " + files[idB] + " /run/task/rootfs" + usagePath + " rw - tmpfs tmpfs rw\n"},
		// Something lies over it.
		"25": {"elsewhere", "91 90 0:77 " + files[idB] + " " + usagePath + " rw - tmpfs tmpfs rw\n92 91 0:98 / " + usagePath + " rw - fuse x rw\n"},
		"26": {idA, "nonsense\n"},
	} {
		played(t, proc, pid, "500", "0::/kubepods/"+of.cgroup)
		mounts(t, proc, pid, nil)
		f, err := os.OpenFile(filepath.Join(proc, pid, "mountinfo"), os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString(of.mountinfo)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	pids := []int{20, 21, 22, 23, 24, 25, 26}
	assert.Equal(t, map[int]string{20: idA, 21: idA, 22: idB, 25: idB, 26: idA}, NewOwners(proc).Find(pids, files))

	// The machine's own processes are in no container, whatever is mounted there.
	for _, pid := range []string{"1", "22"} {
		require.NoError(t, os.MkdirAll(filepath.Join(proc, pid, "ns"), 0o755))
		require.NoError(t, os.Symlink("mnt:[1]", filepath.Join(proc, pid, "ns/mnt")))
	}
	assert.NotContains(t, NewOwners(proc).Find(pids, files), 22)
}

// A process belongs to a container that exists or to none. No group below the group of its
// container changes that.
func FuzzCgroup(f *testing.F) {
	f.Add("0::/kubepods.slice/cri-containerd-aaa.scope\n", "/x/docker-bbb.scope")
	f.Add("4:devices:/docker/bbb\n", "\n0::/bbb")
	f.Add(":::\n::/-:aaa", "")
	known := map[string]string{"aaa": "a", "bbb": "b"}
	f.Fuzz(func(t *testing.T, text, below string) {
		if id := fromCgroup(text, known); id != "" {
			require.Contains(t, known, id)
		}
		require.Equal(t, "aaa", fromCgroup("0::/kubepods/pod1/cri-containerd-aaa.scope/"+below, known))
	})
}
