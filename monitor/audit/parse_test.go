package audit

import (
	"errors"
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
	limiter := at(code, ours, "/usr/local/vgpu/libvgpu.so")
	driver := at(data, " 00:2b 9 ", "/usr/lib/x86_64-linux-gnu/libcuda.so.570.172.08")
	for name, test := range map[string]struct {
		text string
		want mapped
	}{
		"both":                         {driver + limiter, mapped{true, LimiterPresent}},
		"the driver alone":             {driver, mapped{true, LimiterAbsent}},
		"the limiter alone":            {limiter, mapped{false, LimiterPresent}},
		"behind the front":             {at(code, " 00:2b 9 ", "/usr/local/vgpu/driver/cuda"), mapped{true, LimiterAbsent}},
		"a card":                       {at(data, " 00:05 8 ", "/dev/nvidia0"), mapped{true, LimiterAbsent}},
		"the driver's other nodes":     {at(data, " 00:05 8 ", "/dev/nvidiactl") + at(data, " 00:05 8 ", "/dev/nvidia-modeset"), mapped{false, LimiterAbsent}},
		"the CUDA runtime":             {at(code, " 00:2b 9 ", "/opt/libcudart.so.12"), mapped{false, LimiterAbsent}},
		"a driver that was removed":    {at(code, " 00:2b 9 ", "/tmp/libcuda.so.1 (deleted)"), mapped{true, LimiterAbsent}},
		"a limiter that was removed":   {at(code, ours, "/usr/local/vgpu/libvgpu.so (deleted)"), mapped{false, LimiterPresent}},
		"a limiter at another path":    {at(code, ours, "/opt/libvgpu.so"), mapped{false, LimiterPresent}},
		"the limiter as data":          {at(data, ours, "/usr/local/vgpu/libvgpu.so"), mapped{false, LimiterAbsent}},
		"a forged limiter":             {at(code, " 00:2a 78 ", "/usr/local/vgpu/libvgpu.so"), mapped{false, LimiterForeign}},
		"a forged one, elsewhere":      {at(code, " 00:2a 78 ", "/tmp/libvgpu.so"), mapped{false, LimiterAbsent}},
		"a forged one beside the true": {at(code, " 00:2a 78 ", "/usr/local/vgpu/libvgpu.so") + limiter, mapped{false, LimiterPresent}},
		"a long line before":           {strings.Repeat("x", 1<<20) + "\n" + driver + limiter, mapped{true, LimiterPresent}},
		"nonsense":                     {"/libvgpu.so\n/\n\x00/libcuda.so\n", mapped{true, LimiterAbsent}},
		"nothing":                      {"", mapped{false, LimiterAbsent}},
	} {
		got, err := scanMaps(strings.NewReader(test.text), func(f file) bool { return f == file{"00:2a", "77"} })
		require.NoError(t, err, name)
		assert.Equal(t, test.want, got, name)
	}
	_, err := scanMaps(endless{}, func(file) bool { return false })
	assert.ErrorIs(t, err, errMaps)
	_, err = scanMaps(failing{}, func(file) bool { return false })
	assert.ErrorIs(t, err, os.ErrPermission)
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

func TestParseStat(t *testing.T) {
	rest := "12 " + strings.Repeat("0 ", 17) + "4711 99 99\n"
	for text, want := range map[string]status{
		"7 (sh) S " + rest:                 {"sh", 4711, 12, false},
		"7 (a) R 1 (sh) Z " + rest:         {"a) R 1 (sh", 4711, 12, true},
		"7 (new\nline ) ) S " + rest:       {"new\nline ) ", 4711, 12, false},
		"7 () X " + rest:                   {"", 4711, 12, true},
		"7 (sh) S 12 " + rest[:20]:         {},
		"":                                 {},
		") (":                              {},
		"7 (sh) S x" + rest[2:]:            {},
		"7 (sh) S 12 " + "" + "  \x00\x00": {},
	} {
		got, err := parseStat([]byte(text))
		if want == (status{}) {
			assert.Error(t, err, text)
			continue
		}
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("7 (sh) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 4711 1"))
	f.Add([]byte("0::/kubepods/pod" + uid + "/" + idA + "\n"))
	f.Add([]byte("7f00-7f10 r-xp 00000000 00:2a 77 /usr/local/vgpu/libvgpu.so\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseStat(data); err == nil && len(s.name) > len(data) {
			t.Error(s)
		}
		g := parseGroups(string(data), func(string) bool { return false })
		if g.container != "" && !containerPattern.MatchString(g.container) {
			t.Error(g)
		}
		m, err := scanMaps(strings.NewReader(string(data)), func(file) bool { return false })
		if err != nil || m.limiter == LimiterPresent {
			t.Error(m, err)
		}
	})
}

// The installed limiters are known as maps name them, also once they are removed.
func TestLibraries(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "libvgpu-0123456789abcdef.so")
	require.NoError(t, os.WriteFile(path, []byte("code"), 0o755))
	for _, other := range []string{"libvgpu-cuda-0123456789abcdef.so", "ld.so.preload", "libvgpu.so"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, other), []byte("x"), 0o755))
	}
	l := &libraries{dir: dir, known: map[string]uint64{}, files: map[file]bool{}}
	require.NoError(t, l.learn())
	assert.Len(t, l.files, 1)
	f, err := inMaps(path)
	require.NoError(t, err)
	assert.True(t, l.files[f])
	require.NoError(t, os.Remove(path))
	require.NoError(t, l.learn())
	assert.True(t, l.files[f])

	l.dir = filepath.Join(dir, "none")
	assert.True(t, errors.Is(l.learn(), os.ErrNotExist))
}
