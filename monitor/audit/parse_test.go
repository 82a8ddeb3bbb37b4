package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

var (
	idA = strings.Repeat("a", 64)
	idB = strings.Repeat("b", 64)
)

const uid = "0f8fad5b-d9cb-469f-a165-70867728950e"

func TestParseGroups(t *testing.T) {
	slice := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/"
	for name, test := range map[string]struct {
		text string
		want group
	}{
		"v2, systemd":                {"0::" + slice + "cri-containerd-" + idA + ".scope\n", group{idA, true, uid}},
		"v2, cgroupfs":               {"0::/kubepods/besteffort/pod" + uid + "/" + idA + "\n", group{idA, true, uid}},
		"v2, another namespace":      {"0::/../../kubepods-pod" + uid + ".slice/crio-" + idA + ".scope\n", group{idA, true, uid}},
		"cgroupfs, from a pod":       {"0::/../../../burstable/pod" + uid + "/" + idA + "\n", group{idA, true, uid}},
		"guaranteed, from a pod":     {"0::/../../pod" + uid + "/" + idA + "\n", group{idA, true, uid}},
		"the host's, from a pod":     {"0::/../../../../system.slice/ssh.service\n", group{}},
		"a static pod's":             {"0::/kubepods/pod" + strings.Repeat("1", 32) + "/" + idA + "\n", group{idA, true, strings.Repeat("1", 32)}},
		"v1":                         {"9:name=systemd:/\n4:devices:/kubepods/pod" + uid + "/" + idA + "\n0::/\n", group{idA, true, uid}},
		"docker":                     {"0::/system.slice/docker-" + idA + ".scope\n", group{container: idA}},
		"docker, cgroupfs":           {"4:devices:/docker/" + idA + "\n", group{container: idA}},
		"podman":                     {"0::/machine.slice/libpod-" + idA + ".scope/container\n", group{container: idA}},
		"a group inside":             {"0::/docker/" + idA + "/" + idB + "\n", group{container: idA}},
		"a runtime's own name":       {"0::/default/web\n", group{container: "web"}},
		"a pod's own group":          {"0::/kubepods/pod" + uid + "\n", group{"", true, uid}},
		"moved in one group only":    {"4:devices:/\n3:cpuset:/docker/" + idA + "\n", group{container: idA}},
		"a pod that is named so":     {"0::/system.slice/pod" + uid + "\n", group{}},
		"an unfinished id":           {"0::/docker/" + idA[1:] + "\n", group{}},
		"a service of the host":      {"0::/system.slice/nvidia-persistenced.service\n", group{}},
		"none":                       {"0::/\n", group{}},
		"nonsense":                   {":\n::\n\x00\n0::\n///", group{}},
		"nothing":                    {"", group{}},
		"a colon in a cgroup's name": {"0::/a:b/docker-" + idA + ".scope\n", group{container: idA}},
	} {
		assert.Equal(t, test.want, parseGroups(test.text, func(id string) bool { return id == "web" }), name)
	}
}

func TestScanMaps(t *testing.T) {
	const ours, code, data = " 00:2a 77 ", "7f00-7f10 r-xp 00000000", "7f10-7f20 r--p 00001000"
	at := func(what, dev, path string) string { return what + dev + "                  " + path + "\n" }
	limiter := at(code, ours, "/.gpuslice/libvgpu.so")
	limits := at("7f20-7f30 r--s 00000000", " 00:2c 5 ", "/.gpuslice/limits")
	usage := at("7f30-7f40 rw-s 00000000", " 00:2c 6 ", "/.gpuslice/usage")
	driver := at(data, " 00:2b 9 ", "/usr/lib/x86_64-linux-gnu/libcuda.so.570.172.08")
	want := expected{limits: file{"00:2c", "5"}, usage: file{"00:2c", "6"}, library: func(f file) Limiter {
		return map[file]Limiter{{"00:2a", "77"}: LimiterPresent, {"00:2a", "78"}: LimiterForged, {"00:2a", "79"}: LimiterForeign}[f]
	}}
	for name, test := range map[string]struct {
		text string
		want mapped
	}{
		"both":                         {driver + limiter, mapped{driver: true, limiter: LimiterPresent, files: FilesAbsent}},
		"only the driver":              {driver, mapped{driver: true, limiter: LimiterAbsent, files: FilesAbsent}},
		"only the limiter":             {limiter, mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"behind the front":             {at(code, " 00:2b 9 ", "/.gpuslice/driver/cuda"), mapped{driver: true, limiter: LimiterAbsent, files: FilesAbsent}},
		"a GPU":                        {at(data, " 00:05 8 ", "/dev/nvidia0"), mapped{driver: true, limiter: LimiterAbsent, files: FilesAbsent}},
		"the driver's other nodes":     {at(data, " 00:05 8 ", "/dev/nvidiactl") + at(data, " 00:05 8 ", "/dev/nvidia-modeset"), mapped{driver: false, limiter: LimiterAbsent, files: FilesAbsent}},
		"the CUDA runtime":             {at(code, " 00:2b 9 ", "/opt/libcudart.so.12"), mapped{driver: false, limiter: LimiterAbsent, files: FilesAbsent}},
		"a driver that was removed":    {at(code, " 00:2b 9 ", "/tmp/libcuda.so.1 (deleted)"), mapped{driver: true, limiter: LimiterAbsent, files: FilesAbsent}},
		"a limiter that was removed":   {at(code, ours, "/.gpuslice/libvgpu.so (deleted)"), mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"a limiter at another path":    {at(code, ours, "/opt/libvgpu.so"), mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"the limiter as data":          {at(data, ours, "/.gpuslice/libvgpu.so"), mapped{driver: false, limiter: LimiterAbsent, files: FilesAbsent}},
		"a forged limiter":             {at(code, " 00:2a 78 ", "/.gpuslice/libvgpu.so"), mapped{driver: false, limiter: LimiterForged, files: FilesAbsent}},
		"a forged one, elsewhere":      {at(code, " 00:2a 78 ", "/tmp/libvgpu.so"), mapped{driver: false, limiter: LimiterAbsent, files: FilesAbsent}},
		"a forged one beside the true": {at(code, " 00:2a 78 ", "/.gpuslice/libvgpu.so") + limiter, mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"a long line before":           {strings.Repeat("x", 1<<20) + "\n" + driver + limiter, mapped{driver: true, limiter: LimiterPresent, files: FilesAbsent}},
		"a library that is not known":  {at(code, " 00:2a 79 ", "/.gpuslice/libvgpu.so"), mapped{driver: false, limiter: LimiterForeign, files: FilesAbsent}},
		"forged, then not known":       {at(code, " 00:2a 78 ", "/.gpuslice/libvgpu.so") + at(code, " 00:2a 79 ", "/.gpuslice/libvgpu.so"), mapped{driver: false, limiter: LimiterForged, files: FilesAbsent}},
		"the claim's files":            {driver + limiter + limits + usage, mapped{driver: true, limiter: LimiterPresent, files: FilesOwn}},
		"moved, with their directory":  {limiter + at("7f20-7f30 r--s 00000000", " 00:2c 5 ", "/usr/local/x/limits") + usage, mapped{driver: false, limiter: LimiterPresent, files: FilesOwn}},
		"only the limits":              {limiter + limits, mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"only the usage file":          {limiter + usage, mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"forged limits":                {limiter + at(data, " 00:2c 7 ", "/.gpuslice/limits") + usage, mapped{driver: false, limiter: LimiterPresent, files: FilesForeign}},
		"forged limits beside the own": {limiter + at(data, " 00:2c 7 ", "/.gpuslice/limits (deleted)") + limits + usage, mapped{driver: false, limiter: LimiterPresent, files: FilesForeign}},
		"forged usage, below a root":   {limiter + limits + at(data, " 00:2d 6 ", "/root2/.gpuslice/usage"), mapped{driver: false, limiter: LimiterPresent, files: FilesForeign}},
		"limits of a program's own":    {limiter + at(data, " 00:2c 7 ", "/etc/security/limits"), mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"the own limits, not shared":   {limiter + at(data, " 00:2c 5 ", "/.gpuslice/limits") + usage, mapped{driver: false, limiter: LimiterPresent, files: FilesAbsent}},
		"nonsense":                     {"/libvgpu.so\n/\n\x00/libcuda.so\n", mapped{driver: true, limiter: LimiterAbsent, files: FilesAbsent}},
		"nothing":                      {"", mapped{driver: false, limiter: LimiterAbsent, files: FilesAbsent}},
	} {
		got, err := scanMaps(strings.NewReader(test.text), want)
		require.NoError(t, err, name)
		got.cuda, got.others = false, false
		assert.Equal(t, test.want, got, name)
	}
	_, err := scanMaps(endless{}, want)
	assert.ErrorIs(t, err, errMaps)
	_, err = scanMaps(failing{}, want)
	assert.ErrorIs(t, err, os.ErrPermission)
}

// CUDA and other libraries of the driver in a process' maps.
func TestScanMapsForCUDA(t *testing.T) {
	at := func(path string) string { return "7f10-7f20 r--p 00001000 00:2b 9 " + path + "\n" }
	cuda, behind := at("/usr/lib/libcuda.so.570.172.08"), at("/.gpuslice/driver/cuda")
	for text, want := range map[string][2]bool{
		cuda:   {true, false},
		behind: {true, false},
		at("/dev/nvidia0") + at("/usr/lib/libcudart.so.12") + at("/usr/lib/libnvidia-ml.so.1"):               {false, false},
		at("/usr/lib/libnvidia-opencl.so.1"):                                                                 {false, true},
		cuda + at("/usr/lib/libnvidia-glcore.so.570.172.08"):                                                 {true, true},
		at("/usr/lib/libnvidia-eglcore.so.570.172.08") + behind:                                              {true, true},
		at("/usr/lib/libnvidia-openclx.so") + at("/usr/lib/libglcore.so") + at("/usr/lib/libnvidia-") + cuda: {true, false},
	} {
		got, err := scanMaps(strings.NewReader(text), expected{library: func(file) Limiter { return LimiterForeign }})
		require.NoError(t, err)
		assert.Equal(t, want, [2]bool{got.cuda, got.others}, text)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "7f00-7f10 rw-p 00000000 00:00 0 \n"[i%33]
	}
	return len(p), nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, os.ErrPermission }

func FuzzParse(f *testing.F) {
	f.Add([]byte("7 (sh) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 4711 1"))
	f.Add([]byte("0::/kubepods/pod" + uid + "/" + idA + "\n"))
	f.Add([]byte("7f00-7f10 r-xp 00000000 00:2a 77 /.gpuslice/libvgpu.so\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := parseGroups(string(data), func(string) bool { return false })
		if g.container != "" && !containerPattern.MatchString(g.container) {
			t.Error(g)
		}
		m, err := scanMaps(strings.NewReader(string(data)), expected{library: func(file) Limiter { return LimiterForeign }})
		if err != nil || m.limiter == LimiterPresent {
			t.Error(m, err)
		}
	})
}

// A limiter is genuine if it is installed, or if the container was created with it and it was removed since, or
// installed again as another file.
func TestLibraries(t *testing.T) {
	dir, claim := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "libvgpu-0123456789abcdef.so")
	require.NoError(t, os.WriteFile(path, []byte("code"), 0o755))
	for _, other := range []string{"libvgpu-cuda-0123456789abcdef.so", "ld.so.preload", "libvgpu.so"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, other), []byte("x"), 0o755))
	}
	share := grant.Share{UUID: gpuA, MemoryMiB: 100, CorePercent: 10}
	require.NoError(t, oci.Populate(claim, ledger.Claim{Shares: []grant.Share{share}},
		oci.Settings{LibraryPath: path, Stubs: oci.Stubs{CUDA: filepath.Join(dir, "libvgpu-cuda-0123456789abcdef.so")}}))
	made, err := oci.LibrariesOf(claim)
	require.NoError(t, err)
	require.Len(t, made, 2)

	l := &libraries{dir: dir}
	require.NoError(t, l.learn())
	assert.Len(t, l.files, 1)
	ours, err := inMaps(path)
	require.NoError(t, err)
	front, err := inMaps(filepath.Join(dir, "libvgpu-cuda-0123456789abcdef.so"))
	require.NoError(t, err)
	none := []oci.Library(nil)
	assert.Equal(t, LimiterPresent, l.judge(ours, none, os.ErrNotExist))
	held, err := os.Open(path) // as a container that has it mounted does: the inode stays
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, os.Remove(path))
	for range 2 { // removed, then installed again
		require.NoError(t, l.learn())
		assert.Equal(t, LimiterPresent, l.judge(ours, made, nil))
		assert.Equal(t, LimiterForged, l.judge(front, made, nil), "a front is not the limiter")
		assert.Equal(t, LimiterForged, l.judge(file{ours.device, "1"}, made, nil))
		assert.Equal(t, LimiterForged, l.judge(file{"00:01", ours.inode}, made, nil), "the same inode number on another device")
		assert.Equal(t, LimiterForeign, l.judge(ours, none, os.ErrNotExist), "no record of the container")
		assert.Equal(t, LimiterUnknown, l.judge(ours, none, oci.ErrUnknownLibraries), "the claim was restored")
		require.NoError(t, os.WriteFile(path, []byte("code"), 0o755))
	}
	l.renamed = true
	assert.Equal(t, LimiterForeign, l.judge(file{"00:01", "1"}, made, nil), "unknown if maps and stat differ")

	l.dir = filepath.Join(dir, "none")
	assert.True(t, errors.Is(l.learn(), os.ErrNotExist))
}

// With any content of the file, allowances can be set and saved afterwards.
func FuzzAllowed(f *testing.F) {
	file := filepath.Join(f.TempDir(), "audit-allowed.json")
	f.Add([]byte(`{"id":{"GPU-1":5}}`))
	f.Add([]byte(`{"id":null}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(file, data, 0o600))
		a, _ := openAllowed(file)
		require.NotNil(t, a)
		a.set("id", "GPU-1", 7)
		a.dirty = true
		require.NoError(t, a.keep())
		again, err := openAllowed(file)
		require.NoError(t, err)
		require.EqualValues(t, 7, again.bytes["id"]["GPU-1"])
		require.Equal(t, len(a.bytes), len(again.bytes))
	})
}
