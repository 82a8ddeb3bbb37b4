package cores

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "root/usr/local/vgpu"), 0o755))
	stat := pid + " (a ) name) S " + strings.Repeat("0 ", 18) + start + " 0 0\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644))
}

func TestOwners(t *testing.T) {
	proc, state := t.TempDir(), t.TempDir()
	files := map[string]string{idA: filepath.Join(state, "a"), idB: filepath.Join(state, "b")}
	for _, file := range files {
		require.NoError(t, os.WriteFile(file, nil, 0o644))
	}
	played(t, proc, "10", "500", "0::/kubepods/"+idA)
	played(t, proc, "11", "501", "0::/elsewhere")
	require.NoError(t, os.Link(files[idB], filepath.Join(proc, "11/root/usr/local/vgpu/usage")))
	played(t, proc, "12", "502", "0::/elsewhere")
	require.NoError(t, os.WriteFile(filepath.Join(proc, "12/root/usr/local/vgpu/usage"), nil, 0o644)) // another's
	played(t, proc, "13", "503", "0::/elsewhere")
	// One that has moved to another container's group is not on that one's account.
	played(t, proc, "15", "505", "0::/kubepods/"+idA)
	require.NoError(t, os.Link(files[idB], filepath.Join(proc, "15/root/usr/local/vgpu/usage")))
	// One whose first thread has ended: by the groups of version 1 it is nowhere.
	played(t, proc, "16", "506", "4:devices:/\n")
	stat := "16 (x) Z " + strings.Repeat("0 ", 18) + "506 0 0\n"
	require.NoError(t, os.WriteFile(filepath.Join(proc, "16/stat"), []byte(stat), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "16/task/17"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "16/task/17/cgroup"), []byte("4:devices:/kubepods/"+idA+"\n"), 0o644))

	o := NewOwners(proc)
	assert.Equal(t, map[int]string{15: idB, 16: idA}, o.Find([]int{15, 16}, files))
	pids := []int{10, 11, 12, 13, 14}
	assert.Equal(t, map[int]string{10: idA, 11: idB}, o.Find(pids, files))

	// It is remembered, as long as it is that process and that container.
	require.NoError(t, os.Remove(filepath.Join(proc, "10/cgroup")))
	assert.Equal(t, map[int]string{10: idA, 11: idB}, o.Find(pids, files))
	assert.Equal(t, map[int]string{11: idB}, o.Find(pids, map[string]string{idB: files[idB]}))
	require.NoError(t, os.Remove(filepath.Join(proc, "11/root/usr/local/vgpu/usage")))
	played(t, proc, "11", "900", "0::/kubepods/"+idA)
	assert.Equal(t, idA, o.Find(pids, files)[11], "the PID has come again")
	require.NoError(t, os.RemoveAll(filepath.Join(proc, "11")))
	assert.NotContains(t, o.Find(pids, files), 11)
	assert.NotContains(t, o.known, 11)

	assert.NotContains(t, NewOwners("/proc").Find([]int{os.Getpid()}, files), os.Getpid(), "this one is of no container")
}

// A container's root is the tenant's: a link in it that leads to another container's folder on
// the host leads nowhere but into that root.
func TestOwnersAreNotMisled(t *testing.T) {
	proc, state := t.TempDir(), t.TempDir()
	victim := filepath.Join(state, "containers", idB)
	require.NoError(t, os.MkdirAll(victim, 0o755))
	files := map[string]string{idA: filepath.Join(state, "a"), idB: filepath.Join(victim, "usage")}
	for _, file := range files {
		require.NoError(t, os.WriteFile(file, nil, 0o644))
	}
	up := strings.Repeat("../", 32)
	for pid, link := range map[string]string{"20": victim, "21": filepath.Join(up, victim)} {
		played(t, proc, pid, "500", "0::/kubepods/"+idA)
		require.NoError(t, os.Remove(filepath.Join(proc, pid, "root/usr/local/vgpu")))
		require.NoError(t, os.Symlink(link, filepath.Join(proc, pid, "root/usr/local/vgpu")))
	}
	// An image may have links of its own, which the runtime follows in the same way.
	played(t, proc, "22", "500", "0::/elsewhere")
	root := filepath.Join(proc, "22/root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/local/vgpu"), 0o755))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "usr/local")))
	require.NoError(t, os.Symlink("/var/local", filepath.Join(root, "usr/local")))
	require.NoError(t, os.Link(files[idB], filepath.Join(root, "var/local/vgpu/usage")))

	assert.Equal(t, map[int]string{20: idA, 21: idA, 22: idB}, NewOwners(proc).Find([]int{20, 21, 22}, files))
}
