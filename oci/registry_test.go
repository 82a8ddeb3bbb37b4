package oci

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

// cdiSpec is a spec with one GPU, in a node of which nothing is left out.
func cdiSpec(uuid, path string) string {
	return "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: " + uuid +
		"\n  containerEdits:\n    deviceNodes:\n    - {path: " + path + ", type: c, major: 195, minor: 1, fileMode: 438}\n"
}

// writeSpec replaces a file as generators do, by a rename.
func writeSpec(t testing.TB, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".tmp"), []byte(text), 0o644))
	require.NoError(t, os.Rename(filepath.Join(dir, name+".tmp"), filepath.Join(dir, name)))
}

func TestNewRegistryRefuses(t *testing.T) {
	for _, cfg := range []RegistryConfig{
		{Kind: "gpu"}, {Kind: "nvidia.com/"}, {Kind: "nvidia.com/gpu=0"}, {Kind: "-/x"}, {Dirs: []string{"etc/cdi"}}, {Dirs: []string{""}},
	} {
		_, err := NewRegistry(cfg)
		assert.Error(t, err, "%+v", cfg)
	}
	r, err := NewRegistry(RegistryConfig{})
	require.NoError(t, err)
	assert.Equal(t, []string{"/etc/cdi", "/var/run/cdi"}, r.dirs)
	assert.Equal(t, api.CDIKindDriver, r.kind)
}

func TestRegistryDevices(t *testing.T) {
	r := testRegistry(t)
	assert.Equal(t, []string{gpu0, gpu1, gpu2, mig0, "all"}, r.Devices())
}

func TestRegistryAnswersAreTheCallers(t *testing.T) {
	r := testRegistry(t)
	first, err := r.DeviceEdits([]string{gpu0})
	require.NoError(t, err)
	first.DeviceNodes[0].Path, first.Env[0], first.Mounts[0].Options[0] = "/changed", "CHANGED=1", "changed"
	second, err := r.DeviceEdits([]string{gpu0})
	require.NoError(t, err)
	assert.Equal(t, "/dev/nvidiactl", second.DeviceNodes[0].Path)
	assert.Equal(t, "NVIDIA_VISIBLE_DEVICES=void", second.Env[0])
	assert.Equal(t, "ro", second.Mounts[0].Options[0])
}

func TestRegistryOtherKind(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "a.yaml", strings.Replace(cdiSpec(gpu0, "/dev/x"), "nvidia.com/gpu", "sim.example.com/gpu", 1))
	writeSpec(t, dir, "b.json", `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"x","containerEdits":{"env":["A=1"]}}]}`)
	r, err := NewRegistry(RegistryConfig{Kind: "sim.example.com/gpu", Dirs: []string{dir}})
	require.NoError(t, err)
	assert.Equal(t, []string{gpu0}, r.Devices())
	_, err = r.DeviceEdits([]string{"x"})
	assert.ErrorContains(t, err, "sim.example.com/gpu=x")
}

func TestRegistryFollowsChanges(t *testing.T) {
	static, dynamic := t.TempDir(), filepath.Join(t.TempDir(), "later")
	r, err := NewRegistry(RegistryConfig{Dirs: []string{static, dynamic}})
	require.NoError(t, err)
	assert.Empty(t, r.Devices(), "a directory that isn't there is no error")

	nodeOf := func() string {
		edits, err := r.DeviceEdits([]string{gpu0})
		if err != nil {
			return err.Error()
		}
		return edits.DeviceNodes[0].Path
	}
	writeSpec(t, static, "nvidia.yaml", cdiSpec(gpu0, "/dev/static"))
	r.Refresh()
	assert.Equal(t, "/dev/static", nodeOf())

	require.NoError(t, os.Mkdir(dynamic, 0o755))
	writeSpec(t, dynamic, "nvidia.yaml", cdiSpec(gpu0, "/dev/dynamic"))
	r.Refresh()
	assert.Equal(t, "/dev/dynamic", nodeOf(), "the later directory wins")

	writeSpec(t, dynamic, "other.json", `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"`+gpu0+`","containerEdits":{"env":["A=1"]}}]}`)
	r.Refresh()
	assert.Contains(t, nodeOf(), "conflicting device", "two specs of one directory")
	assert.ErrorContains(t, r.Err(), "conflicting device")

	require.NoError(t, os.RemoveAll(dynamic))
	r.Refresh()
	assert.Equal(t, "/dev/static", nodeOf())
	assert.NoError(t, r.Err())
}

func TestRegistrySaysWhatIsWrong(t *testing.T) {
	tests := []struct {
		description string
		spec        string
		texts       []string
	}{
		{"not YAML", "{{{", []string{"bad.yaml", "unmarshal"}},
		{"an unknown field", cdiSpec(gpu0, "/dev/x") + "extra: 1\n", []string{"bad.yaml", "extra"}},
		{"no devices", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", []string{"bad.yaml", "no devices"}},
		{"a bad version", strings.Replace(cdiSpec(gpu0, "/dev/x"), "0.5.0", "9.9.9", 1), []string{"bad.yaml", "version"}},
		{"names by index only", cdiSpec("0", "/dev/x"), []string{"of nvidia.com/gpu there: 0", "--device-name-strategy=uuid"}},
		{"empty", "", []string{"bad.yaml"}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			var log strings.Builder
			dir := t.TempDir()
			writeSpec(t, dir, "bad.yaml", tt.spec)
			r, err := NewRegistry(RegistryConfig{Dirs: []string{dir}, Log: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			_, err = r.DeviceEdits([]string{gpu0})
			for _, text := range append(tt.texts, "nvidia.com/gpu="+gpu0, dir, "nvidia-ctk cdi generate") {
				assert.ErrorContains(t, err, text)
			}
			if r.Err() != nil {
				assert.Contains(t, log.String(), "CDI spec not usable")
			}
		})
	}
}

// A spec that came a moment ago is found by the first lookup that needs it, and
// lookups that can't succeed don't read the directories each time.
func TestRegistryLooksAgainOnAMiss(t *testing.T) {
	dir := t.TempDir()
	r, err := NewRegistry(RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)
	now := time.Now()
	r.now = func() time.Time { return now }

	writeSpec(t, dir, "nvidia.yaml", cdiSpec(gpu0, "/dev/x"))
	_, err = r.DeviceEdits([]string{gpu0})
	require.Error(t, err, "within the interval of the last look")
	now = now.Add(2 * time.Second)
	_, err = r.DeviceEdits([]string{gpu0})
	require.NoError(t, err)
}

// What is known is answered from memory: the directory may be gone.
func TestRegistryReadsNothingWhenNothingIsMissing(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "nvidia.yaml", cdiSpec(gpu0, "/dev/x"))
	r, err := NewRegistry(RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	_, err = r.DeviceEdits([]string{gpu0})
	require.NoError(t, err)
}

func TestRegistryRun(t *testing.T) {
	dir := t.TempDir()
	r, err := NewRegistry(RegistryConfig{Dirs: []string{dir}, Interval: time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	writeSpec(t, dir, "nvidia.yaml", cdiSpec(gpu0, "/dev/x"))
	assert.Eventually(t, func() bool { return len(r.Devices()) == 1 }, time.Minute, time.Millisecond)
	cancel()
	wg.Wait()
}

func TestRegistryLookupsAndRefreshesAtOnce(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "nvidia.yaml", cdiSpec(gpu0, "/dev/x0"))
	r, err := NewRegistry(RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				_, err := r.DeviceEdits([]string{gpu0})
				assert.NoError(t, err)
			}
		})
	}
	for i := range 20 {
		writeSpec(t, dir, "nvidia.yaml", cdiSpec(gpu0, "/dev/x"+strings.Repeat("x", i)))
		r.Refresh()
	}
	wg.Wait()
}

func TestCompleteDeviceNode(t *testing.T) {
	host := map[string]nodeInfo{
		"/dev/nvidia0":    {kind: "c", major: 195, minor: 0, mode: 0o666},
		"/dev/nvidia-uvm": {kind: "c", major: 511, minor: 0, mode: 0o660},
		"/dev/pipe":       {kind: "p", mode: 0o600},
	}
	stat := func(path string) (nodeInfo, error) {
		if info, ok := host[path]; ok {
			return info, nil
		}
		return nodeInfo{}, fs.ErrNotExist
	}
	mode := func(m fs.FileMode) *fs.FileMode { return &m }
	type node = cdispec.DeviceNode
	tests := []struct {
		description string
		in, want    node
		text        string // of the error
	}{
		{"a path only", node{Path: "/dev/nvidia0"}, node{Path: "/dev/nvidia0", HostPath: "/dev/nvidia0", Type: "c", Major: 195, FileMode: mode(0o666)}, ""},
		{"another path in the container", node{Path: "/dev/x", HostPath: "/dev/nvidia-uvm"}, node{Path: "/dev/x", HostPath: "/dev/nvidia-uvm", Type: "c", Major: 511, FileMode: mode(0o660)}, ""},
		{"complete", node{Path: "/dev/none", Type: "c", Major: 5, Minor: 6, FileMode: mode(0o600)}, node{Path: "/dev/none", HostPath: "/dev/none", Type: "c", Major: 5, Minor: 6, FileMode: mode(0o600)}, ""},
		{"no mode", node{Path: "/dev/nvidia0", Type: "c", Major: 5}, node{Path: "/dev/nvidia0", HostPath: "/dev/nvidia0", Type: "c", Major: 5, FileMode: mode(0o666)}, ""},
		{"no mode, not on the host", node{Path: "/dev/none", Type: "c", Major: 5}, node{Path: "/dev/none", HostPath: "/dev/none", Type: "c", Major: 5}, ""},
		{"unbuffered is a character device", node{Path: "/dev/nvidia0", Type: "u"}, node{Path: "/dev/nvidia0", HostPath: "/dev/nvidia0", Type: "u", Major: 195, FileMode: mode(0o666)}, ""},
		{"a FIFO has no numbers", node{Path: "/dev/pipe"}, node{Path: "/dev/pipe", HostPath: "/dev/pipe", Type: "p", FileMode: mode(0o600)}, ""},
		{"another type", node{Path: "/dev/nvidia0", Type: "b"}, node{}, `is of type "c", and of type "b" in its CDI spec`},
		{"a GPU that isn't there", node{Path: "/dev/nvidia7"}, node{}, "/dev/nvidia7 of the host: file does not exist: is the driver loaded"},
		{"uvm not loaded", node{Path: "/dev/nvidia-uvm-tools"}, node{}, "nvidia-modprobe -u"},
		{"modeset not loaded", node{Path: "/dev/nvidia-modeset"}, node{}, "nvidia-modprobe -m"},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			d := tt.in
			err := complete(&d, stat)
			if tt.text != "" {
				assert.ErrorContains(t, err, tt.text)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, d)
		})
	}
}

func TestStatNode(t *testing.T) {
	info, err := statNode("/dev/null")
	require.NoError(t, err)
	assert.Equal(t, "c", info.kind)
	assert.Equal(t, [2]int64{1, 3}, [2]int64{info.major, info.minor})
	_, err = statNode(t.TempDir())
	require.ErrorContains(t, err, "not a device node")
	_, err = statNode("/dev/none-such")
	assert.True(t, errors.Is(err, fs.ErrNotExist))
}

func BenchmarkEdits(b *testing.B) {
	r := testRegistry(b)
	c, s := factsOf(testSpec(b, "containerd"), ""), testSettings()
	shares := one(8000, 30)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Edits(shares, s, c, r); err != nil {
			b.Fatal(err)
		}
	}
}

func TestSavedRegistry(t *testing.T) {
	dir, saved := t.TempDir(), filepath.Join(t.TempDir(), "cdi.json")
	spec, err := os.ReadFile("testdata/cdi/nvidia.yaml")
	require.NoError(t, err)
	path := filepath.Join(dir, "nvidia.yaml")
	require.NoError(t, os.WriteFile(path, spec, 0o644))
	want, err := NewRegistry(RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)

	open := func() *Registry {
		t.Helper()
		r, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, saved)
		require.NoError(t, err)
		require.Equal(t, want.Devices(), r.Devices())
		for _, name := range want.Devices() {
			a, errA := want.DeviceEdits([]string{name})
			b, errB := r.DeviceEdits([]string{name})
			require.Equal(t, errA, errB)
			require.Equal(t, a, b, name)
		}
		return r
	}
	require.NotNil(t, open().cache, "read")
	require.Nil(t, open().cache, "known from the file")
	whole, err := os.ReadFile(saved)
	require.NoError(t, err)
	for _, damage := range []string{"{", `{"kind":"nvidia.com/gpu"}`, "", strings.Replace(string(whole), `"Common":{`, `"Other":{`, 1)} {
		require.NoError(t, os.WriteFile(saved, []byte(damage), 0o600))
		require.NotNil(t, open().cache, "damaged file: %.40q", damage)
	}
	other, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}, Kind: "nvidia.com/gds"}, saved)
	require.NoError(t, err)
	require.Empty(t, other.Devices(), "of another kind")
	require.NotNil(t, open().cache)

	// A spec that changes is read, by a new registry and by one that goes on.
	r := open()
	require.NoError(t, os.Remove(path))
	r.checked = time.Time{}
	r.Refresh()
	require.Empty(t, r.Devices())
	gone, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, saved)
	require.NoError(t, err)
	require.Empty(t, gone.Devices())

	// The error of an unusable spec is returned each time.
	require.NoError(t, os.WriteFile(path, []byte("cdiVersion: 9"), 0o644))
	for range 2 {
		broken, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, saved)
		require.NoError(t, err)
		require.Error(t, broken.Err())
	}
}

func (r *Registry) Devices() []string { return r.current.Load().names() }
