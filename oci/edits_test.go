package oci

import (
	"fmt"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/grant"
)

// bind is a user's volume.
func bind(source, destination string) rspec.Mount {
	return rspec.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"rbind", "rprivate", "rw"}}
}

// editsCase is a container with a grant.
type editsCase struct {
	name        string // of the golden file
	description string
	base        string // of variants; empty is containerd's
	handler     string
	shares      []grant.Share
	settings    func(*Settings)
	container   func(*rspec.Spec)
	noRegistry  bool
	// noLimiter: its user disabled the limiter, with permission.
	noLimiter bool
	rootfs    *Rootfs
}

func editsCases() []editsCase {
	env := func(entries ...string) func(*rspec.Spec) {
		return func(s *rspec.Spec) { s.Process.Env = append(s.Process.Env, entries...) }
	}
	mounts := func(m ...rspec.Mount) func(*rspec.Spec) {
		return func(s *rspec.Spec) { s.Mounts = append(s.Mounts, m...) }
	}
	mode := func(i Injection) func(*Settings) { return func(s *Settings) { s.Injection = i } }
	limiter := func(m LimiterMode) func(*Settings) {
		return func(s *Settings) { s.LimiterMode, s.Stubs = m, testStubs }
	}

	return []editsCase{
		{name: "one-gpu", description: "one GPU, memory and cores", shares: one(8000, 30)},
		{name: "one-gpu-cdi", description: "the same, with CDI requested", shares: one(8000, 30), settings: mode(InjectCDI)},
		{name: "one-gpu-cdi-nvidia-runtime", description: "CDI is used on a node with NVIDIA's runtime, which injects nothing", shares: one(8000, 30), handler: "nvidia"},
		{name: "memory-only", description: "no cores means no limit, as HAMi's 0", shares: one(8000, 0)},
		{name: "whole-cores", description: "all of the compute time", shares: one(8000, 100)},
		{name: "smallest-share", description: "1 MiB and 1 %", shares: one(1, 1)},
		{
			name: "two-gpus", description: "two GPUs: common edits once, one limit each",
			shares: []grant.Share{{UUID: gpu1, MemoryMiB: 20000, CorePercent: 50}, {UUID: gpu0, MemoryMiB: 10000, CorePercent: 25}},
		},
		{
			name: "three-gpus-mixed-cores", description: "a GPU without a core limit beside ones with",
			shares: []grant.Share{{UUID: gpu0, MemoryMiB: 1000, CorePercent: 30}, {UUID: gpu1, MemoryMiB: 2000}, {UUID: gpu2, MemoryMiB: 3000, CorePercent: 70}},
		},
		{name: "mig", description: "a MIG device by its UUID, with its capabilities", shares: []grant.Share{{UUID: mig0, MemoryMiB: 9856, CorePercent: 100}}},
		{
			name: "mig-and-its-gpu", description: "a device node of two GPUs comes once",
			shares: []grant.Share{{UUID: mig0, MemoryMiB: 9856}, {UUID: gpu2, MemoryMiB: 1000, CorePercent: 10}},
		},
		{name: "envvar", description: "NVIDIA's runtime is configured", shares: one(8000, 30), settings: mode(InjectEnvvar), handler: "nvidia"},
		{
			name: "envvar-default-runtime", description: "NVIDIA's runtime is the default", shares: one(8000, 30),
			settings: func(s *Settings) { s.Injection = InjectEnvvar; s.DefaultRuntimeIsNvidia = true },
		},
		{
			name: "envvar-two-gpus", description: "a list of UUIDs in the grant's order", settings: mode(InjectEnvvar), handler: "nvidia",
			shares: []grant.Share{{UUID: gpu1, MemoryMiB: 20000, CorePercent: 50}, {UUID: gpu0, MemoryMiB: 10000}},
		},
		{name: "envvar-mig", description: "NVIDIA's runtime takes MIG UUIDs too", settings: mode(InjectEnvvar), handler: "nvidia", shares: []grant.Share{{UUID: mig0, MemoryMiB: 9856, CorePercent: 100}}},
		{name: "auto-falls-to-envvar", description: "auto, the GPU in no spec, NVIDIA's runtime", shares: []grant.Share{{UUID: gpuX, MemoryMiB: 8000}}, handler: "nvidia"},
		{name: "auto-without-registry", description: "auto, no registry at all, NVIDIA's runtime", shares: one(8000, 30), handler: "nvidia", noRegistry: true},
		{name: "graphics", description: "the node gives the libraries for OpenCL and graphics too", shares: one(8000, 30), settings: func(s *Settings) { s.Graphics = true }},
		{name: "envvar-requests-all-capabilities", description: "NVIDIA's runtime injects no libraries for graphics", shares: one(8000, 30), settings: mode(InjectEnvvar), handler: "nvidia", container: env("NVIDIA_DRIVER_CAPABILITIES=all")},
		{
			name: "envvar-graphics", description: "it does with the node's setting", shares: one(8000, 30), handler: "nvidia",
			settings: func(s *Settings) { s.Injection = InjectEnvvar; s.Graphics = true }, container: env("NVIDIA_DRIVER_CAPABILITIES=all"),
		},
		{name: "imex", description: "a channel of IMEX, after the GPU's nodes", shares: one(8000, 30), settings: func(s *Settings) { s.Channels = imexChannels(procDevices, []int{0}) }},
		{
			name: "envvar-imex", description: "NVIDIA's runtime adds the GPU, and the agent the channel", shares: one(8000, 30), handler: "nvidia",
			settings: func(s *Settings) { s.Injection, s.Channels = InjectEnvvar, imexChannels(procDevices, []int{0}) },
		},
		{name: "oversubscribe", description: "the node oversubscribes", shares: one(8000, 30), settings: func(s *Settings) { s.Oversubscription = map[string]float64{gpu0: 1.5} }},
		{name: "cores-disabled", description: "the node enforces no cores", shares: one(8000, 30), settings: func(s *Settings) { s.CorePolicy = CoreDisable }},
		{name: "cores-forced", description: "the node always enforces cores", shares: one(8000, 30), settings: func(s *Settings) { s.CorePolicy = CoreForce }},
		{name: "user-requests-all", description: "the image requests every GPU", shares: one(8000, 30), container: env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")},
		{name: "user-requests-all-envvar", description: "NVIDIA_VISIBLE_DEVICES is replaced with the grant's GPUs", shares: one(8000, 30), settings: mode(InjectEnvvar), handler: "nvidia", container: env("NVIDIA_VISIBLE_DEVICES=all")},
		{
			name: "user-sets-limits", description: "every limit variable set by the user is overwritten", shares: one(8000, 30),
			container: env("CUDA_DEVICE_MEMORY_LIMIT=80g", "CUDA_DEVICE_MEMORY_LIMIT_0=80g", "CUDA_DEVICE_MEMORY_LIMIT_7=80g", "CUDA_DEVICE_MEMORY_LIMIT_15=1",
				"CUDA_DEVICE_SM_LIMIT=100", "CUDA_DEVICE_SM_LIMIT_0=100", "CUDA_DEVICE_SM_LIMIT_1=100",
				"CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/x", "CUDA_OVERSUBSCRIBE=true", "GPU_CORE_UTILIZATION_POLICY=disable", "CUDA_TASK_PRIORITY=0"),
		},
		{name: "user-switches-off", description: "the switches of HAMi's limiter", shares: one(8000, 30), container: env("CUDA_DISABLE_CONTROL=true", "CUDA_REDIRECT=/tmp/libcuda.so")},
		{
			name: "user-switches-off-and-may", description: "with the operator's permission: the GPU, and no library", shares: one(8000, 30),
			noLimiter: true, container: env("CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_LIMIT_0=1g"),
		},
		{name: "library", description: "stub libraries in place of the driver's, and no preload", shares: one(8000, 30), settings: limiter(LimiterLibrary)},
		{
			name: "library-switched-off", description: "without the limiter, with the operator's permission", shares: one(8000, 30), settings: limiter(LimiterLibrary),
			noLimiter: true, container: env("CUDA_DISABLE_CONTROL=true"),
		},
		{
			name: "library-user-mounts-driver", description: "volumes on a driver library, also at its new path, are removed", shares: one(8000, 30), settings: limiter(LimiterLibrary),
			container: mounts(bind("/srv/a", "/.gpuslice/driver/cuda"), bind("/srv/b", "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15")),
		},
		{name: "auto-unknown-image", description: "auto uses both ways for an unknown image", shares: one(8000, 30), settings: limiter(LimiterAuto)},
		{name: "auto-musl", description: "an alpine-like image: both, because a volume can bring glibc's loader", shares: one(8000, 30), settings: limiter(LimiterAuto), rootfs: &Rootfs{Musl: true}},
		{name: "auto-own-preload", description: "an image's own preload comes after the limiter", shares: one(8000, 30), settings: limiter(LimiterAuto), rootfs: &Rootfs{Glibc: true, Preload: "/lib/libfaketime.so\n"}},
		{name: "user-duplicates", description: "a variable twice, as kubelet passes it", shares: one(8000, 30), container: env("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES")},
		{name: "user-visible-order", description: "CUDA_VISIBLE_DEVICES and LD_PRELOAD are the user's", shares: one(8000, 30), container: env("CUDA_VISIBLE_DEVICES=0", "LD_PRELOAD=/usr/lib/libjemalloc.so")},
		{name: "user-mount-etc", description: "a volume on /etc stays: the limiter's mount is deeper", shares: one(8000, 30), container: mounts(bind("/srv/etc", "/etc"))},
		{name: "user-mount-preload", description: "a volume on /etc/ld.so.preload is removed", shares: one(8000, 30), container: mounts(bind("/srv/empty", "/etc/ld.so.preload"))},
		{name: "user-mount-preload-spelled", description: "also with another spelling", shares: one(8000, 30), container: mounts(bind("/srv/empty", "/etc/../etc//ld.so.preload/"))},
		{name: "user-mount-vgpu", description: "a volume on the limiter's directory is removed", shares: one(8000, 30), container: mounts(bind("/srv/vgpu", "/.gpuslice"))},
		{
			name: "user-mounts-in-vgpu", description: "volumes in it too", shares: one(8000, 30),
			container: mounts(bind("/srv/limits", "/.gpuslice/limits"), bind("/srv/x", "/.gpuslice/x/y/z"), bind("/srv/limits", "/.gpuslice/limits")),
		},
		{name: "user-mount-local", description: "a volume on /usr/lib stays", shares: one(8000, 30), container: mounts(bind("/srv/local", "/usr/lib"))},
		{name: "user-mount-neighbour", description: "a directory with a similar name stays", shares: one(8000, 30), container: mounts(bind("/srv/x", "/.gpuslice-data"), bind("/srv/y", "/etc/ld.so.preload.d"))},
		{name: "user-mount-deep", description: "the limiter's mounts come last, also after deeper ones", shares: one(8000, 30), container: mounts(bind("/srv/x", "/a/b/c/d/e/f/g"))},
		{name: "user-mount-driver", description: "a volume on a driver library is removed", shares: one(8000, 30), container: mounts(bind("/srv/smi", "/usr/bin/nvidia-smi"))},
		{name: "read-only-rootfs", description: "a read-only root changes nothing", shares: one(8000, 30), container: func(s *rspec.Spec) { s.Root.Readonly = true }},
		{name: "non-root-user", description: "device nodes go to the user", shares: one(8000, 30), container: func(s *rspec.Spec) { s.Process.User = rspec.User{UID: 1000, GID: 1000} }},
		{name: "privileged", description: "a privileged container has all nodes, and its limits", base: "privileged", shares: one(8000, 30)},
		{name: "userns", description: "a user namespace: the mounts are mapped", base: "userns", shares: one(8000, 30)},
		{
			name: "device-plugin-gave-it", description: "a node of its own GPU, from a device plugin, comes once", shares: one(8000, 30),
			container: func(s *rspec.Spec) {
				s.Linux.Devices = []rspec.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0}, {Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}}
			},
		},
		{name: "no-env", description: "a container without a variable", shares: one(8000, 30), container: func(s *rspec.Spec) { s.Process.Env = nil }},
	}
}

func TestEditsGolden(t *testing.T) {
	registry := testRegistry(t)
	for _, tt := range editsCases() {
		t.Run(tt.name, func(t *testing.T) {
			base := tt.base
			if base == "" {
				base = "containerd"
			}
			spec := testSpec(t, base)
			if tt.container != nil {
				tt.container(spec)
			}
			before := cloneSpec(spec)
			settings := testSettings()
			if tt.settings != nil {
				tt.settings(&settings)
			}
			var devices DeviceEdits
			if !tt.noRegistry {
				devices = registry
			}

			facts := factsOf(spec, tt.handler)
			facts.NoLimiter, facts.Rootfs = tt.noLimiter, tt.rootfs
			result, err := Edits(tt.shares, settings, facts, devices)
			require.NoError(t, err, tt.description)
			again, err := Edits(tt.shares, settings, facts, devices)
			require.NoError(t, err)
			assert.Equal(t, result, again, "the same arguments give the same answer")

			require.NoError(t, Apply(spec, result.Edits))
			checkSpec(t, spec)
			twice := cloneSpec(spec)
			require.NoError(t, Apply(twice, result.Edits))
			assert.Equal(t, spec, twice, "applying twice changes nothing more")

			visible := &cdispec.ContainerEdits{}
			if result.Injection == InjectCDI {
				visible, err = registry.DeviceEdits(uuidsOf(tt.shares))
				require.NoError(t, err)
			}
			like := "one-gpu"
			if result.Injection == InjectEnvvar {
				like = "envvar"
			}
			checkGolden(t, tt.name, fmt.Sprintf("%s\ninjection %s, enforcement %s, replaced variables %q, replaced mounts %q",
				tt.description, result.Injection, result.Enforcement, result.Replaced.Env, result.Replaced.Mounts),
				changes(t, "edits", visible, result.Edits)+"\n"+changes(t, "spec", before, spec), like)
		})
	}
}

func TestEditsRefuses(t *testing.T) {
	registry := testRegistry(t)
	device := func(path string, major, minor int64) func(*Container) {
		return func(c *Container) {
			c.Devices = append(c.Devices, rspec.LinuxDevice{Path: path, Type: "c", Major: major, Minor: minor})
		}
	}
	mount := func(source, destination string) func(*Container) {
		return func(c *Container) { c.Mounts = append(c.Mounts, bind(source, destination)) }
	}
	sixteen := make([]grant.Share, 17)
	tests := []struct {
		description string
		shares      []grant.Share
		settings    func(*Settings)
		container   func(*Container)
		texts       []string
	}{
		{"no share", nil, nil, nil, []string{"no share"}},
		{"too many GPUs", sixteen, nil, nil, []string{"17 GPUs", "16 at most"}},
		{"no UUID", []grant.Share{{MemoryMiB: 1}}, nil, nil, []string{"share 0", "UUID"}},
		{"an index for a UUID", []grant.Share{{UUID: "0", MemoryMiB: 1}}, nil, nil, []string{`"0"`, "nvidia-smi -L"}},
		{"all for a UUID", []grant.Share{{UUID: "all", MemoryMiB: 1}}, nil, nil, []string{`"all"`}},
		{"two UUIDs in one", []grant.Share{{UUID: gpu0 + "," + gpu1, MemoryMiB: 1}}, nil, nil, []string{"share 0"}},
		{"a GPU twice", []grant.Share{{UUID: gpu0, MemoryMiB: 1}, {UUID: gpu0, MemoryMiB: 1}}, nil, nil, []string{"share 1", gpu0, "already share 0"}},
		{"no memory", one(0, 0), nil, nil, []string{"memory 0 MiB"}},
		{"negative memory", one(-5, 0), nil, nil, []string{"memory -5 MiB"}},
		{"huge memory", one(1<<60, 0), nil, nil, []string{"memory"}},
		{"negative cores", one(1, -1), nil, nil, []string{"cores -1"}},
		{"more cores than there are", one(1, 101), nil, nil, []string{"cores 101"}},
		{"bad settings", one(1, 1), func(s *Settings) { s.LibraryPath = "" }, nil, []string{"node settings", "library path is empty"}},
		{"no claim", one(1, 1), nil, func(c *Container) { c.Dir = "" }, []string{"no directory"}},
		{"a relative claim", one(1, 1), nil, func(c *Container) { c.Dir = "run/x" }, []string{"run/x", "absolute"}},
		{
			"cdi, unknown GPU", []grant.Share{{UUID: gpuX, MemoryMiB: 1}}, func(s *Settings) { s.Injection = InjectCDI }, nil,
			[]string{"injection is cdi", "nvidia.com/gpu=" + gpuX, "testdata/cdi", "nvidia-ctk cdi generate"},
		},
		{"cdi, one of two unknown", []grant.Share{{UUID: gpu0, MemoryMiB: 1}, {UUID: gpuX, MemoryMiB: 1}}, func(s *Settings) { s.Injection = InjectCDI }, nil, []string{"no CDI device nvidia.com/gpu=" + gpuX}},
		{"cdi doesn't fall to NVIDIA's runtime", []grant.Share{{UUID: gpuX, MemoryMiB: 1}}, func(s *Settings) { s.Injection = InjectCDI }, func(c *Container) { c.RuntimeHandler = "nvidia" }, []string{"no CDI device"}},
		{"envvar with a plain runtime", one(1, 1), func(s *Settings) { s.Injection = InjectEnvvar }, nil, []string{"injection is envvar", "runtimeClassName", "nvidia"}},
		{"envvar with another handler", one(1, 1), func(s *Settings) { s.Injection = InjectEnvvar }, func(c *Container) { c.RuntimeHandler = "kata" }, []string{"kata"}},
		{"auto, neither way", []grant.Share{{UUID: gpuX, MemoryMiB: 1}}, nil, nil, []string{"neither way works", gpuX, "nvidia-ctk cdi generate", "runtimeClassName"}},
		{"another GPU's node", one(1, 1), nil, device("/dev/nvidia1", 195, 1), []string{"/dev/nvidia1", "not of its grant"}},
		{"another GPU's node by another name", one(1, 1), nil, device("/dev/innocent", 195, 1), []string{"/dev/innocent"}},
		{"a MIG capability", one(1, 1), nil, device("/dev/nvidia-caps/nvidia-cap3", 236, 3), []string{"nvidia-cap3"}},
		{"a GPU's node where NVIDIA's runtime injects", one(1, 1), func(s *Settings) { s.Injection = InjectEnvvar; s.DefaultRuntimeIsNvidia = true }, device("/dev/nvidia0", 195, 0), []string{"/dev/nvidia0"}},
		{"a rule for another GPU", one(1, 1), nil, func(c *Container) { c.DeviceRules = []rspec.LinuxDeviceCgroup{rule(true, "c", 195, 1, "rwm")} }, []string{`"c 195:1 rwm"`, "not of its grant"}},
		{"a rule for everything", one(1, 1), nil, func(c *Container) { c.DeviceRules = []rspec.LinuxDeviceCgroup{rule(true, "a", -1, -1, "rwm")} }, []string{`"a *:* rwm"`}},
		{"another GPU's node as a volume", one(1, 1), nil, mount("/dev/nvidia1", "/dev/nvidia1"), []string{"mounts the device node /dev/nvidia1"}},
		{"another GPU's node as a volume elsewhere", one(1, 1), nil, mount("/dev/nvidia1", "/tmp/x"), []string{"/tmp/x"}},
		{"a request by a mount", one(1, 1), nil, mount("/dev/null", "/var/run/nvidia-container-devices/all"), []string{"nvidia-container-devices/all", "in addition to its grant"}},
		{"another GPU by CDI", one(1, 1), nil, func(c *Container) { c.CDIDevices = []string{"nvidia.com/gpu=all"} }, []string{"nvidia.com/gpu=all"}},
		{"another GPU by a CDI annotation", one(1, 1), nil, func(c *Container) {
			c.Annotations = map[string]string{"cdi.k8s.io/x": "vendor.com/nic=0, nvidia.com/gpu=" + gpu1}
		}, []string{gpu1, "cdi.k8s.io/x"}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			settings := testSettings()
			if tt.settings != nil {
				tt.settings(&settings)
			}
			c := factsOf(testSpec(t, "containerd"), "")
			if tt.container != nil {
				tt.container(&c)
			}
			result, err := Edits(tt.shares, settings, c, registry)
			require.Error(t, err)
			assert.Equal(t, Result{}, result)
			for _, text := range tt.texts {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}

// fixedEdits is a registry with one answer.
type fixedEdits struct{ edits *cdispec.ContainerEdits }

func (f fixedEdits) DeviceEdits([]string) (*cdispec.ContainerEdits, error) { return f.edits, nil }

func TestEditsRefusesBadCDIEdits(t *testing.T) {
	tests := []struct {
		description string
		edits       *cdispec.ContainerEdits
		text        string
	}{
		{"nothing", nil, "no edits"},
		{"empty", &cdispec.ContainerEdits{}, "no edits"},
		{"a mount over the limiter's", &cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{HostPath: "/x", ContainerPath: "/etc/../etc/ld.so.preload"}}}, "limiter's files"},
		{"a mount in the limiter's directory", &cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{HostPath: "/x", ContainerPath: "/.gpuslice/y"}}}, "limiter's files"},
		{"not valid", &cdispec.ContainerEdits{Env: []string{"=x"}}, "not valid CDI"},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			_, err := Edits(one(1, 1), testSettings(), factsOf(testSpec(t, "containerd"), ""), fixedEdits{tt.edits})
			assert.ErrorContains(t, err, tt.text)
		})
	}
}

func TestUnsafeDuplicates(t *testing.T) {
	edits := &cdispec.ContainerEdits{Env: []string{"A=ours", "B=ours"}}
	tests := []struct {
		description string
		env         []string
		want        []string
	}{
		{"none", nil, nil},
		{"once each", []string{"A=x", "B=y", "C=z"}, nil},
		{"twice, not ours", []string{"C=1", "C=2"}, nil},
		{"twice, another wins", []string{"A=x", "A=y"}, []string{"A"}},
		{"twice, ours wins", []string{"A=x", "A=ours"}, nil},
		{"without a value", []string{"A=x", "A"}, nil},
		{"both", []string{"B=1", "A=1", "A=2", "B=3", "B=4"}, []string{"A", "B"}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			assert.Equal(t, tt.want, UnsafeDuplicates(tt.env, edits))
		})
	}
	assert.Nil(t, UnsafeDuplicates([]string{"A=1", "A=2"}, nil))
}
