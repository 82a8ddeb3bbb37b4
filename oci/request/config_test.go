package request

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	changed := func(change func(*Config)) Config {
		c := DefaultConfig()
		c.Path = "f"
		change(&c)
		return c
	}
	for _, tt := range []struct {
		description, text string
		want              Config
	}{
		{"empty", "", changed(func(*Config) {})},
		{"nothing but comments", "# none\n\n", changed(func(*Config) {})},
		{"an empty document", "---\n...\n", changed(func(*Config) {})},
		{"no keys", "{}\n", changed(func(*Config) {})},
		{"everything", `
devices: [0, "1", 2:1, ` + gpu3 + `]
maximum: {memory: 20GiB, cores: 50%, devices: 2}
default:
  memory: 10%
  cores: 20
  devices: device=0
allowHighPriority: true
allowControlSwitch: true
annotationsOnly: true
slices:
  small: {memory: 4g, cores: 10}
  big.one: {memory: 20480 MiB, devices: 2, priority: 0}
limiterMode: library
memoryEnforcement: auto
requireNative: true
corePolicy: force
deviceInjection: envvar
cdiSpecDirs: []
deviceSplitCount: 4
memoryScaling: 1.5
contextMemoryMiB: 300
runtimes: [/usr/sbin/runc, nvidia-container-runtime]
nvidiaRuntime: /usr/local/nvidia/toolkit/nvidia-container-runtime
exemptNamespaces: [gpuslice-system, monitoring]
stateDir: /run/other
libraryDir: /opt/lib
nodeFile: /run/node.json
nvmlLibrary: /usr/lib/libnvidia-ml.so.1
`, changed(func(c *Config) {
			*c = Config{
				Path: "f", Devices: []string{"0", "1", "2:1", gpu3},
				Maximum:           Limit{Memory: Size{MiB: 20480}, CorePercent: 50, Devices: 2},
				Default:           Slice{Amount: percent(10, 20), Devices: names("0")},
				AllowHighPriority: true, AllowControlSwitch: true, AnnotationsOnly: true,
				Slices: map[string]Slice{
					"small":   {Amount: mib(4096, 10)},
					"big.one": {Amount: mib(20480, 0), Devices: Devices{Count: 2}, HighPriority: true},
				},
				LimiterMode: "library", MemoryEnforcement: "auto", RequireNative: true, CorePolicy: "force", DeviceInjection: "envvar", CDISpecDirs: []string{},
				DeviceSplitCount: 4, MemoryScaling: 1.5, ContextMemoryMiB: 300,
				Runtimes:      []string{"/usr/sbin/runc", "nvidia-container-runtime"},
				NvidiaRuntime: "/usr/local/nvidia/toolkit/nvidia-container-runtime", ExemptNamespaces: []string{"gpuslice-system", "monitoring"},
				StateDir: "/run/other", LibraryDir: "/opt/lib", NodeFile: "/run/node.json", NVMLLibrary: "/usr/lib/libnvidia-ml.so.1",
			}
		})},
		{"whole GPUs beside a maximum of devices", "allowWholeGPUs: true\nmaximum: {devices: 1, memory: 100%, cores: 100}\n", changed(func(c *Config) {
			c.AllowWholeGPUs = true
			c.Maximum = Limit{Memory: Size{Percent: 100}, CorePercent: 100, Devices: 1}
		})},
		{"a slice with a size that can't be compared yet", "maximum: {memory: 10%}\nslices: {a: {memory: 1t, priority: 1}}\n", changed(func(c *Config) {
			c.Maximum.Memory.Percent = 10
			c.Slices = map[string]Slice{"a": {Amount: mib(1<<20, 0)}}
		})},
		{"slices of GPUs that may be allowed", "devices: [4, " + gpu0 + "]\nslices: {a: {memory: 1g, devices: '4:1," + gpu1 + ",5'}}\n", changed(func(c *Config) {
			c.Devices = []string{"4", gpu0}
			c.Slices = map[string]Slice{"a": {Amount: mib(1024, 0), Devices: names("4:1", gpu1, "5")}}
		})},
		{"a slice of a MIG device of an allowed GPU", "devices: [" + gpu0 + "]\nslices: {a: {memory: 1g, devices: " + mig0 + "}}\n", changed(func(c *Config) {
			c.Devices = []string{gpu0}
			c.Slices = map[string]Slice{"a": {Amount: mib(1024, 0), Devices: names(mig0)}}
		})},
		{"a default without a maximum", "default: {memory: 1g, cores: 20, devices: 'device=0,1'}\n", changed(func(c *Config) {
			c.Default = Slice{Amount: mib(1024, 20), Devices: names("0", "1")}
		})},
		{"a whole number for a factor", "memoryScaling: 2\n", changed(func(c *Config) { c.MemoryScaling = 2 })},
	} {
		t.Run(tt.description, func(t *testing.T) {
			got, err := Parse("f", []byte(tt.text))
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct {
		description, text string
		contains          []string
	}{
		{"an unknown key", "devices: []\nlimit: 3\n", []string{"f:2: limit: no such key: limit"}},
		{"an unknown key inside", "maximum:\n  memory: 1g\n  gpus: 3\n", []string{"f:3: maximum.gpus: no such key: gpus"}},
		{"an unknown key in a slice", "slices:\n  a: {memory: 1g, size: 2}\n", []string{"f:2: slices.a: no such key: size"}},
		{"a priority outside of slices", "default: {priority: 0}\n", []string{"f:1: default.priority: no such key"}},
		{"a key of another case", "Devices: []\n", []string{"f:1: Devices: no such key"}},
		{"a key twice", "stateDir: /a\n\nstateDir: /b\n", []string{`f:3: stateDir: mapping key "stateDir" already defined at line 1`}},
		{"a key twice inside", "slices:\n  a: {memory: 1g}\n  a: {memory: 2g}\n", []string{`f:3: slices.a: mapping key "a" already defined at line 2`}},
		{"a key that is not a name", "? [a]\n: b\n7: c\n", []string{"f:1: cannot unmarshal !!seq", "f:3: 7: no such key"}},
		{"a merge", "<<: {stateDir: /a}\n", []string{"f:1: <<: YAML aliases are not supported"}},
		{"not a mapping", "- devices\n", []string{"f:1: cannot unmarshal !!seq into a mapping"}},
		{"a text", "devices\n", []string{"f:1: cannot unmarshal !!str `devices` into a mapping"}},
		{"two documents", "stateDir: /a\n---\nstateDir: /b\n", []string{"f:2: more than one YAML document"}},
		{"no YAML", "devices: [\n", []string{"f:", "invalid YAML"}},
		{"tabs", "maximum:\n\tmemory: 1g\n", []string{"f:2: invalid YAML"}},
		{"a bad character", "stateDir: \x01\n", []string{"f:1: invalid YAML"}},
		{"an alias", "cdiSpecDirs: &a [/etc/cdi]\nruntimes: *a\n", []string{"f:2: runtimes: YAML aliases are not supported"}},

		{"a maximum without a value", "maximum:\n", []string{"f:1: maximum: has no value"}},
		{"a size without a value", "maximum:\n  memory:\n", []string{"f:2: maximum.memory: has no value"}},
		{"a list for a size", "maximum:\n  memory: [1g]\n", []string{"f:2: maximum.memory: must be a single value"}},
		{"a size without a unit", "maximum:\n  memory: 8192\n", []string{`f:2: maximum.memory: "8192" has no unit`}},
		{"a size of 0", "maximum:\n  memory: 0g\n", []string{`f:2: maximum.memory: "0g" is less than 1 MiB`}},
		{"a size that is a truth value", "maximum: {memory: true}\n", []string{`f:1: maximum.memory: "true" is not a size`}},
		{"cores", "default: {cores: 101}\n", []string{`f:1: default.cores: "101"`, "from 1 to 100"}},
		{"cores of 0", "maximum: {cores: 0}\n", []string{`f:1: maximum.cores: "0"`}},
		{"devices of 0", "maximum: {devices: 0}\n", []string{`f:1: maximum.devices: "0" must be a whole number from 1 to 16`}},
		{"a text for a number", "deviceSplitCount: '4'\n", []string{"f:1: deviceSplitCount: cannot unmarshal !!str `4` into int"}},
		{"a number that is not whole", "deviceSplitCount: 4.7\n", []string{`f:1: deviceSplitCount: "4.7" must be`}},
		{"a fraction of zero", "deviceSplitCount: 4.0\n", []string{`f:1: deviceSplitCount: "4.0" must be`}},
		{"a number in another base", "deviceSplitCount: 0x10\n", []string{`f:1: deviceSplitCount: "0x10" must be`}},
		{"an octal number", "deviceSplitCount: 010\n", []string{`f:1: deviceSplitCount: "010" must be`}},
		{"a number that is too large", "deviceSplitCount: 99999999999999999999\n", []string{"f:1: deviceSplitCount: "}},
		{"a context's memory", "contextMemoryMiB: -2\n", []string{`f:1: contextMemoryMiB: "-2" must be a whole number from -1 to 16384`}},
		{"not a number", "memoryScaling: .nan\n", []string{"f:1: memoryScaling: NaN must be"}},
		{"a factor that is too large", "memoryScaling: 1e3\n", []string{"f:1: memoryScaling: 1000 must be a number from 0.01 to 100"}},
		{"a quoted truth value", "allowWholeGPUs: \"true\"\n", []string{"f:1: allowWholeGPUs: cannot unmarshal !!str `true` into bool"}},
		{"a word", "limiterMode: preloaded\n", []string{`f:1: limiterMode: "preloaded" must be one of auto, preload, library`}},
		{"a policy", "corePolicy: ''\n", []string{`f:1: corePolicy: "" must be one of`}},
		{"a relative path", "stateDir: run\n", []string{`f:1: stateDir: "run" must be an absolute path`}},
		{"a number for a path", "stateDir: 3\n", []string{`f:1: stateDir: "3" must be an absolute path`}},
		{"a path with ..", "libraryDir: /var/../lib\n", []string{"f:1: libraryDir:"}},
		{"a text for a list", "devices: all\n", []string{"f:1: devices: cannot unmarshal !!str `all` into []string"}},
		{"a list in a list", "devices: [[0]]\n", []string{"f:1: devices: cannot unmarshal !!seq into string"}},
		{"a value that is missing in a list", "cdiSpecDirs: [/etc/cdi, ~]\n", []string{"f:1: cdiSpecDirs: has no value"}},
		{"a device that does not exist", "devices:\n  - 0\n  - gpu1\n", []string{`f:3: devices: "gpu1" has "gpu1", which is neither`}},
		{"a device twice", "devices: [0, 0]\n", []string{`f:1: devices: "0" is listed twice`}},
		{"a runtime that is this program", "runtimes: [/usr/bin/gpuslice-runtime]\n", []string{"f:1: runtimes:", "would call itself"}},
		{"a relative runtime", "runtimes: [bin/runc]\n", []string{"f:1: runtimes:", "absolute"}},
		{"no runtime", "runtimes: []\n", []string{"f:1: runtimes: is empty"}},
		{"an invalid name of a namespace", "exemptNamespaces: [Kube_System]\n", []string{"f:1: exemptNamespaces", "not the name of a Kubernetes namespace"}},
		{"no directory of specs", "\ncdiSpecDirs: []\n", []string{"f:2: cdiSpecDirs: is empty"}},
		{"no NVML", "nvmlLibrary: ''\n", []string{"f:1: nvmlLibrary: is empty"}},
		{"a slice's name", "slices:\n  a b: {memory: 1g}\n", []string{`f:2: slices.a b: "a b" is not a valid slice name`}},
		{"a slice without a value", "slices:\n  a:\n", []string{"f:2: slices.a: has no value"}},
		{"a slice without memory", "slices:\n  a: {cores: 3}\n", []string{"f:2: slices.a: has no memory"}},
		{"a slice's priority", "slices:\n  a: {memory: 1g, priority: 2}\n", []string{`f:2: slices.a.priority: "2" must be 0 (high) or 1`}},
		{"a slice's devices", "slices:\n  a: {memory: 1g, devices: 0}\n", []string{`f:2: slices.a.devices: "0"`, "device=0"}},

		{"a slice beyond the maximum", "maximum:\n  memory: 8g\n  cores: 10\n  devices: 1\nslices:\n  a:\n    memory: 9g\n    cores: 11\n    devices: 0,1\n",
			[]string{"f:7: slices.a.memory: 9GiB is more than maximum.memory, which is 8GiB (line 2)", "f:8: slices.a.cores: 11 is more than maximum.cores", "f:9: slices.a.devices: device=0,1 is more than maximum.devices, which is 1 (line 4)"}},
		{"a default beyond the maximum", "maximum: {memory: 10%}\ndefault: {memory: 11%}\n", []string{"f:2: default.memory: 11% is more than maximum.memory, which is 10% (line 1)"}},
		{"a slice of a GPU that is not allowed", "devices: [0, 1]\nslices:\n  a: {memory: 1g, devices: 'device=2'}\n", []string{"f:3: slices.a.devices: GPU 2 is not in devices (line 1)"}},
		{"a slice of a MIG device that is not allowed", "devices: ['4:0', 1]\nslices: {a: {memory: 1g, devices: '4:1,1'}}\n", []string{"f:2: slices.a.devices: GPU 4:1 is not in devices (line 1)"}},
		{"a slice of another UUID", "devices: [" + gpu0 + "]\nslices: {a: {memory: 1g, devices: " + gpu1 + "}}\n", []string{"is not in devices"}},
		{"whole GPUs beside a maximum", "allowWholeGPUs: true\nmaximum: {memory: 8g}\n", []string{"f:1: allowWholeGPUs: is true, but maximum (line 2)"}},
		{"whole GPUs beside a maximum of compute time", "maximum: {cores: 99}\nallowWholeGPUs: true\n", []string{"f:2: allowWholeGPUs"}},

		{"several at once", "a: 1\nstateDir: []\nmaximum: {memory: x}\n", []string{"f:1: a: no such key", "f:2: stateDir: cannot unmarshal !!seq", `f:3: maximum.memory: "x" is not a size`}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			_, err := Parse("f", []byte(tt.text))
			require.Error(t, err)
			for _, want := range tt.contains {
				assert.ErrorContains(t, err, want)
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				assert.Regexp(t, `^f:[1-9][0-9]*: `, line)
			}
		})
	}
}

// file writes a config in a directory of its own.
func file(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "gpuslice", "runtime.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// own are the owners of what a test writes.
func own() owners { return append(rootOf("/proc"), uint32(os.Getuid())) }

func TestLoad(t *testing.T) {
	path := file(t, "deviceSplitCount: 4\n")
	c, err := load(path, own())
	require.NoError(t, err)
	assert.Equal(t, 4, c.DeviceSplitCount)
	assert.Equal(t, path, c.Path)
	assert.Equal(t, "/run/gpuslice/node.json", c.NodePath())

	_, err = load(file(t, "a: b\n"), own())
	assert.ErrorContains(t, err, "runtime.yaml:1: a: no such key")

	missing := filepath.Join(t.TempDir(), "none", "runtime.yaml")
	c, err = Load(missing)
	require.NoError(t, err)
	want := DefaultConfig()
	want.Path = missing
	assert.Equal(t, want, c)
}

func TestLoadFollowsLinks(t *testing.T) {
	path := file(t, "deviceSplitCount: 4\n")
	dir := filepath.Dir(path)
	link := filepath.Join(filepath.Dir(dir), "link")
	require.NoError(t, os.Symlink("gpuslice/../gpuslice", link))
	require.NoError(t, os.Symlink(path, filepath.Join(dir, "absolute")))
	c, err := load(filepath.Join(link, "absolute"), own())
	require.NoError(t, err)
	assert.Equal(t, 4, c.DeviceSplitCount)
}

// Users that can change or replace the file could change the limits.
func TestLoadRefusesWhatOthersCanChange(t *testing.T) {
	for _, tt := range []struct {
		description string
		change      func(t *testing.T, path string) string
		want        string
	}{
		{"a file that all users can write", func(t *testing.T, path string) string {
			return chmod(t, path, path, 0o646)
		}, "is writable by all users (mode 0646)"},
		{"a directory that all users can write", func(t *testing.T, path string) string {
			return chmod(t, path, filepath.Dir(path), 0o757)
		}, "is writable by all users"},
		{"a directory above that all users can write", func(t *testing.T, path string) string {
			return chmod(t, path, filepath.Dir(filepath.Dir(path)), 0o777)
		}, "is writable by all users"},
		{"a link in a directory that all users can write", func(t *testing.T, path string) string {
			dir := t.TempDir()
			link := filepath.Join(dir, "runtime.yaml")
			require.NoError(t, os.Symlink(path, link))
			return chmod(t, link, dir, 0o777)
		}, "is writable by all users"},
		{"a link that leads through such a directory", func(t *testing.T, path string) string {
			open := filepath.Join(t.TempDir(), "open")
			require.NoError(t, os.Mkdir(open, 0o777))
			require.NoError(t, os.Chmod(open, 0o777))
			require.NoError(t, os.Symlink(path, filepath.Join(open, "there")))
			link := filepath.Join(t.TempDir(), "runtime.yaml")
			require.NoError(t, os.Symlink(filepath.Join(open, "there"), link))
			return link
		}, "open is writable by all users"},
		{"a directory", func(_ *testing.T, path string) string { return filepath.Dir(path) }, "is not a regular file"},
		{"a FIFO", func(t *testing.T, path string) string {
			require.NoError(t, os.Remove(path))
			require.NoError(t, unix.Mkfifo(path, 0o644))
			return path
		}, "is not a regular file"},
		{"a file for a directory", func(_ *testing.T, path string) string { return filepath.Join(path, "x") }, "is not a directory"},
		{"a link to nowhere", func(t *testing.T, path string) string {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink("/nonexistent/runtime.yaml", path))
			return path
		}, "no such file"},
		{"a link to itself", func(t *testing.T, path string) string {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(path, path))
			return path
		}, "too many symbolic links"},
		{"a file that is too long", func(t *testing.T, path string) string {
			require.NoError(t, os.Truncate(path, maxConfigBytes+1))
			return path
		}, "larger than 1048576 bytes"},
	} {
		t.Run(tt.description, func(t *testing.T) {
			path := tt.change(t, file(t, ""))
			_, err := load(path, own())
			require.ErrorContains(t, err, tt.want)
			assert.ErrorContains(t, err, "config "+path)
		})
	}
	for _, path := range []string{"runtime.yaml", "config.go", ""} {
		_, err := Load(path)
		require.ErrorContains(t, err, "not an absolute path")
	}
}

func chmod(t *testing.T, path, changed string, mode os.FileMode) string {
	require.NoError(t, os.Chmod(changed, mode))
	return path
}

// owned is a file's facts with another owner.
type owned struct {
	os.FileInfo
	mode os.FileMode
	stat syscall.Stat_t
}

func (o owned) Mode() os.FileMode { return o.mode }
func (o owned) IsDir() bool       { return o.mode.IsDir() }
func (o owned) Sys() any          { return &o.stat }

func TestCheckOwner(t *testing.T) {
	for _, tt := range []struct {
		description string
		mode        os.FileMode
		uid, gid    uint32
		want        string
	}{
		{"root's", 0o644, 0, 0, ""},
		{"root's own group may write", 0o664, 0, 0, ""},
		{"another group may write", 0o664, 0, 100, "is writable by group 100 (mode 0664)"},
		{"another's", 0o600, 1000, 0, "is owned by user 1000"},
		{"of the machine's root, seen from a user namespace", 0o664, 65534, 65534, ""},
		{"of all users", 0o666, 0, 0, "is writable by all users"},
		{"a directory of another group", os.ModeDir | 0o775, 0, 100, "is writable by group 100"},
		{"a sticky directory", os.ModeDir | os.ModeSticky | 0o777, 0, 0, ""},
		{"a sticky file", os.ModeSticky | 0o666, 0, 0, "is writable by all users"},
		{"another's sticky directory", os.ModeDir | os.ModeSticky | 0o755, 7, 0, "is owned by user 7"},
	} {
		t.Run(tt.description, func(t *testing.T) {
			err := checkOwner("/x", owned{mode: tt.mode, stat: syscall.Stat_t{Uid: tt.uid, Gid: tt.gid}}, owners{0, 65534})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "/x "+tt.want)
		})
	}
}

func TestRootOf(t *testing.T) {
	for _, tt := range []struct {
		description, uids, overflow string
		want                        owners
	}{
		{"the machine's own namespace", "         0          0 4294967295\n", "65534\n", owners{0}},
		{"rootless", "0 1000 1\n1 100000 65536\n", "65534\n", owners{0, 65534}},
		{"another overflow ID", "0 1000 1\n", "99\n", owners{0, 99}},
		{"no overflow ID", "0 1000 1\n", "?", owners{0}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			proc := t.TempDir()
			for name, text := range map[string]string{"self/uid_map": tt.uids, "sys/kernel/overflowuid": tt.overflow} {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(proc, name), []byte(text), 0o644))
			}
			assert.Equal(t, tt.want, rootOf(proc))
		})
	}
	assert.Equal(t, owners{0}, rootOf(t.TempDir()))
}

func FuzzParse(f *testing.F) {
	example, err := os.ReadFile(exampleFile)
	require.NoError(f, err)
	f.Add(example)
	f.Add(uncommented(example))
	f.Add([]byte("maximum: {memory: 8g}\nslices: {a: {memory: 1g, devices: device=0}}\ndevices: [0]\n"))
	f.Add([]byte("a: &a [*a]\n---\n? b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "f:"), "%v", err)
			return
		}
		require.NotEmpty(t, c.Runtimes)
		for name, slice := range c.Slices {
			require.False(t, slice.Memory.IsZero(), name)
		}
	})
}

// What every start of a container pays for the config.
func BenchmarkLoad(b *testing.B) {
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		b.Fatal(err)
	}
	path := b.TempDir() + "/runtime.yaml"
	if err := os.WriteFile(path, uncommented(example), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := load(path, own()); err != nil {
			b.Fatal(err)
		}
	}
}
