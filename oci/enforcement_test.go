package oci

import (
	"errors"
	"slices"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestEnforcement(t *testing.T) {
	noStub := errors.New("no stub library")
	glibc, musl, neither := &Rootfs{Glibc: true}, &Rootfs{Musl: true}, &Rootfs{}
	standIn := &Rootfs{Glibc: true, Musl: true}
	tests := []struct {
		description string
		mode        LimiterMode
		rootfs      *Rootfs
		noStub      error
		want        Enforcement
		refused     []string
	}{
		{"preload, unknown image", LimiterPreload, nil, nil, EnforcePreload, nil},
		{"preload, glibc", LimiterPreload, glibc, nil, EnforcePreload, nil},
		{"preload needs no stub library", LimiterPreload, glibc, noStub, EnforcePreload, nil},
		{"preload, musl", LimiterPreload, musl, nil, "", []string{"limiter mode is preload", "musl", "auto or library"}},
		{"preload, musl with a stand-in for glibc's loader", LimiterPreload, standIn, nil, "", []string{"musl"}},
		{"preload, no loader at all", LimiterPreload, neither, nil, "", []string{"no loader of glibc's", "auto or library"}},
		{"library, unknown image", LimiterLibrary, nil, nil, EnforceLibrary, nil},
		{"library, glibc", LimiterLibrary, glibc, nil, EnforceLibrary, nil},
		{"library, musl", LimiterLibrary, musl, nil, EnforceLibrary, nil},
		{"library doesn't fall to preload", LimiterLibrary, glibc, noStub, "", []string{"limiter mode is library", "no stub library"}},
		{"auto, unknown image", LimiterAuto, nil, nil, EnforceBoth, nil},
		{"auto, glibc", LimiterAuto, glibc, nil, EnforceBoth, nil},
		{"auto, glibc and musl", LimiterAuto, standIn, nil, EnforceBoth, nil},
		{"auto, musl", LimiterAuto, musl, nil, EnforceBoth, nil},
		{"auto, only static programs", LimiterAuto, neither, nil, EnforceBoth, nil},
		{"auto, unknown image, no stub library", LimiterAuto, nil, noStub, EnforcePreload, nil},
		{"auto, glibc, no stub library", LimiterAuto, glibc, noStub, EnforcePreload, nil},
		{"auto, musl, no stub library", LimiterAuto, musl, noStub, "", []string{"neither way", "musl", "no stub library"}},
		{"auto, glibc and musl, no stub library", LimiterAuto, standIn, noStub, "", []string{"neither way"}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			got, err := enforcement(tt.mode, Container{Rootfs: tt.rootfs}, tt.noStub)
			assert.Equal(t, tt.want, got)
			if tt.refused == nil {
				require.NoError(t, err)
			}
			for _, text := range tt.refused {
				assert.ErrorContains(t, err, text)
			}
			off, err := enforcement(tt.mode, Container{Rootfs: tt.rootfs, NoLimiter: true}, tt.noStub)
			require.NoError(t, err)
			assert.Equal(t, EnforceNone, off, "with the limiter disabled")
		})
	}
}

// Without a limiter nothing can be loaded before it. A mode that is not known is one with it.
func TestCheckLoadingByEnforcement(t *testing.T) {
	c := Container{Env: []string{"LD_PRELOAD=/usr/lib/libcuda.so.1"}}
	for _, e := range slices.Concat(Enforcements, []Enforcement{"", "later"}) {
		if err := CheckLoading(e, c); e == EnforceNone || e == EnforceNative {
			require.NoError(t, err, e)
		} else {
			require.ErrorContains(t, err, "LD_PRELOAD", "%q", e)
		}
	}
}

// What was made is recognised by its mounts, in every mode and with or without a
// preload of the image's own.
func TestEnforcementOf(t *testing.T) {
	registry := testRegistry(t)
	for _, rootfs := range []*Rootfs{nil, {Glibc: true}, {Musl: true}, {Glibc: true, Preload: "/x.so\n"}} {
		for _, mode := range LimiterModes {
			for _, off := range []bool{false, true} {
				s := testSettings()
				s.LimiterMode, s.Stubs = mode, testStubs
				spec := testSpec(t, "containerd")
				spec.Mounts = append(spec.Mounts, bind("/etc/mine", "/etc/ld.so.preload"), bind("/srv/x", "/.gpuslice/driver/cuda"))
				c := factsOf(spec, "")
				c.Rootfs, c.NoLimiter = rootfs, off
				result, err := Edits(one(1000, 10), s, c, registry)
				if err != nil {
					require.ErrorContains(t, err, "limiter mode")
					continue
				}
				require.NoError(t, Apply(spec, result.Edits))
				assert.Equal(t, result.Enforcement, EnforcementOf(spec.Mounts, nil, s), "%s %+v", mode, rootfs)
			}
		}
	}
	assert.Equal(t, EnforceNone, EnforcementOf(nil, nil, testSettings()))
	assert.Equal(t, EnforceNone, EnforcementOf([]rspec.Mount{bind("/etc/mine", "/etc/ld.so.preload")}, nil, testSettings()), "a preload of the user")
}

// mount is a driver's file in a CDI spec.
func mount(host string) *cdispec.Mount {
	return &cdispec.Mount{HostPath: "/host" + host, ContainerPath: host}
}

func TestStubsFindTheDriver(t *testing.T) {
	tests := []struct {
		description string
		files       []string
		want        string
		text        string
	}{
		{"NVIDIA's way", []string{"/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", "/usr/lib/x86_64-linux-gnu/libcudadebugger.so.550.54.15"}, "/host/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", ""},
		{"by soname", []string{"/usr/lib64/libcuda.so.1"}, "/host/usr/lib64/libcuda.so.1", ""},
		{"a file and its links", []string{"/usr/lib64/libcuda.so", "/usr/lib64/libcuda.so.550.54.15", "/usr/lib64/libcuda.so.1"}, "/host/usr/lib64/libcuda.so.550.54.15", ""},
		{"Debian's 32-bit", []string{"/usr/lib/i386-linux-gnu/libcuda.so.550.54.15", "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"}, "/host/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", ""},
		{"Red Hat's 32-bit", []string{"/usr/lib/libcuda.so.550.54.15", "/usr/lib64/libcuda.so.550.54.15"}, "/host/usr/lib64/libcuda.so.550.54.15", ""},
		{"Arch's 32-bit", []string{"/usr/lib32/libcuda.so.550.54.15", "/usr/lib/libcuda.so.550.54.15"}, "/host/usr/lib/libcuda.so.550.54.15", ""},
		{"only 32-bit", []string{"/usr/lib32/libcuda.so.550.54.15"}, "", "only for 32-bit"},
		{"two drivers", []string{"/opt/a/libcuda.so.1", "/opt/b/libcuda.so.1"}, "", "mounts libcuda.so twice"},
		{"none", []string{"/usr/lib64/libcudart.so.12", "/usr/lib64/mylibcuda.so.1", "/usr/lib64/libcuda.sorry"}, "", "mounts no libcuda.so"},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			visible := &cdispec.ContainerEdits{Mounts: []*cdispec.Mount{mount("/usr/bin/nvidia-smi"), mount("/usr/lib64/libnvidia-ml.so.550.54.15")}}
			for _, file := range tt.files {
				visible.Mounts = append(visible.Mounts, mount(file))
			}
			if tt.text != "" {
				require.ErrorContains(t, checkStubs(visible, InjectCDI), tt.text)
				return
			}
			require.NoError(t, checkStubs(visible, InjectCDI))
			behind := mountStubs(visible, testStubs)
			require.Len(t, behind, 2)
			assert.Equal(t, tt.want, behind[0].HostPath)
			assert.Equal(t, "/.gpuslice/driver/cuda", behind[0].ContainerPath)
			assert.Equal(t, "/host/usr/lib64/libnvidia-ml.so.550.54.15", behind[1].HostPath)
			assert.Equal(t, "/.gpuslice/driver/nvml", behind[1].ContainerPath)
			for _, m := range visible.Mounts {
				if drivers[0].is(m.ContainerPath) {
					assert.Equal(t, testStubs.CUDA, m.HostPath, "no name of it finds the driver's own: %s", m.ContainerPath)
				}
			}
			assert.Equal(t, "/host/usr/bin/nvidia-smi", visible.Mounts[0].HostPath)
			assert.Equal(t, testStubs.NVML, visible.Mounts[1].HostPath)
		})
	}
	assert.ErrorContains(t, checkStubs(&cdispec.ContainerEdits{}, InjectEnvvar), "NVIDIA's runtime")
}

// Without a preload, programs must not find another libcuda.so.1 than the stub library.
func TestStubsLeaveNoOtherDriver(t *testing.T) {
	compat := &cdispec.Hook{HookName: "createContainer", Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "enable-cuda-compat", "--host-driver-version=550.54.15"}}
	cache := &cdispec.Hook{HookName: "createContainer", Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}
	for mode, want := range map[LimiterMode]int{LimiterPreload: 2, LimiterAuto: 2, LimiterLibrary: 1} {
		s := testSettings()
		s.LimiterMode, s.Stubs = mode, testStubs
		edits := &cdispec.ContainerEdits{Mounts: []*cdispec.Mount{mount("/usr/lib64/libcuda.so.1")}, Hooks: []*cdispec.Hook{compat, cache}}
		result, err := Edits(one(1000, 10), s, factsOf(testSpec(t, "containerd"), ""), fixedEdits{edits})
		require.NoError(t, err)
		assert.Len(t, result.Edits.Hooks, want, "%s", mode)
	}
}

// Variables that are useful elsewhere can bypass the limiter: such a container is refused.
func TestVariablesThatBypassTheLimiter(t *testing.T) {
	all, library := LimiterModes, []LimiterMode{LimiterLibrary}
	for _, tt := range []struct {
		env     string
		rootfs  Rootfs
		refused []LimiterMode
		text    string
	}{
		{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64", Rootfs{Glibc: true}, nil, ""},
		{"LD_LIBRARY_PATH=/opt/compatible/lib:/opt/my-compat", Rootfs{Glibc: true}, nil, ""},
		{"LD_LIBRARY_PATH=/usr/local/cuda/compat", Rootfs{Glibc: true}, library, "limiter mode to auto"},
		{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/cuda-12.4/compat/lib.real:", Rootfs{Glibc: true}, library, "limiter mode to auto"},
		{"LD_LIBRARY_PATH=/usr/local/cuda/compat", Rootfs{Glibc: true, Musl: true}, []LimiterMode{LimiterLibrary, LimiterAuto}, "compat"},
		{"LD_LIBRARY_PATH=/.gpuslice/driver", Rootfs{Glibc: true}, all, "directory of the driver"},
		{"LD_LIBRARY_PATH=/x;/./.gpuslice//driver/", Rootfs{Glibc: true}, all, "directory of the driver"},
		{"LD_PRELOAD=/lib/libgcompat.so.0 /usr/lib/libjemalloc.so.2", Rootfs{Glibc: true}, nil, ""},
		{"LD_PRELOAD=/.gpuslice/driver/cuda", Rootfs{Glibc: true}, all, "LD_PRELOAD has /.gpuslice/driver/cuda"},
		{"LD_PRELOAD=/x.so /usr/local/cuda/compat/libcuda.so.550.54.15", Rootfs{Glibc: true}, all, "before the limiter"},
		{"LD_PRELOAD=libcuda.so.1", Rootfs{Glibc: true}, all, "before the limiter"},
		{"LD_AUDIT=/x.so:/usr/lib64/libnvidia-ml.so", Rootfs{Glibc: true}, all, "LD_AUDIT"},
		{"LD_PRELOAD=/proc/self/root/.gpuslice/driver/cuda", Rootfs{Glibc: true}, all, "before the limiter"},
		{"LD_PRELOAD=/x.so:/./proc/1/cwd/driver/cuda", Rootfs{Glibc: true}, all, "before the limiter"},
		{"LD_PRELOAD=/dev/fd/3", Rootfs{Glibc: true}, all, "before the limiter"},
		{"LD_PRELOAD=cuda", Rootfs{Glibc: true}, all, "before the limiter"},
		{"LD_PRELOAD=$ORIGIN/x.so", Rootfs{Glibc: true}, all, "contains a token"},
		{"LD_AUDIT=/usr/${LIB}/x.so", Rootfs{Glibc: true}, all, "contains a token"},
		{"LD_PRELOAD=/opt/x/../vgpu/driver/other", Rootfs{Glibc: true}, all, "contains .."},
		{"LD_PRELOAD=/opt/link.so", Rootfs{Glibc: true, Links: map[string]string{"/opt/link.so": "/.gpuslice/driver/cuda"}}, all, "LD_PRELOAD has /opt/link.so"},
		{"LD_PRELOAD=/opt/link.so", Rootfs{Glibc: true, Links: map[string]string{"/opt/link.so": "/proc/self/root/x"}}, all, "LD_PRELOAD has /opt/link.so"},
		{"LD_PRELOAD=/opt/v/driver/cuda", Rootfs{Glibc: true, Links: map[string]string{"/.gpuslice/driver": "/opt/v/driver"}}, all, "LD_PRELOAD has /opt/v"},
		{"LD_PRELOAD=/opt/link.so", Rootfs{Glibc: true, Links: map[string]string{"/opt/link.so": "/opt/libjemalloc.so.2"}}, nil, ""},
		{"LD_LIBRARY_PATH=/opt/link", Rootfs{Glibc: true, Links: map[string]string{"/opt/link": "/.gpuslice/driver"}}, all, "directory of the driver"},
		{"LD_LIBRARY_PATH=/proc/self/root/.gpuslice/driver", Rootfs{Glibc: true}, all, "directory of the driver"},
		{"LD_LIBRARY_PATH=/opt/conda/bin/../lib:$ORIGIN/lib", Rootfs{Glibc: true}, nil, ""},
		{"A=b", Rootfs{Glibc: true, Preload: "/opt/own.so\n/usr/local/cuda/compat/libcuda.so.1\n"}, library, "/etc/ld.so.preload has"},
		{"A=b", Rootfs{Glibc: true, Preload: "/opt/own.so\n"}, nil, ""},
	} {
		c := Container{Env: []string{"LD_LIBRARY_PATH=/x", "LD_PRELOAD=", tt.env}, Rootfs: &tt.rootfs}
		for _, mode := range LimiterModes {
			if mode == LimiterPreload && tt.rootfs.Musl {
				continue // refused anyway
			}
			_, err := enforcement(mode, c, nil)
			if slices.Contains(tt.refused, mode) {
				assert.ErrorContains(t, err, tt.text, "%s %s", mode, tt.env)
				continue
			}
			assert.NoError(t, err, "%s %s", mode, tt.env)
			off := c
			off.NoLimiter = true
			_, err = enforcement(mode, off, nil)
			assert.NoError(t, err, "without the limiter this is allowed")
		}
	}
}

func TestModeNeedsItsFiles(t *testing.T) {
	s := testSettings()
	s.LimiterMode = "both"
	assert.ErrorContains(t, s.Validate(), `unknown limiter mode "both"`)
	for _, mode := range []LimiterMode{LimiterLibrary, LimiterAuto} {
		s.LimiterMode, s.Stubs = mode, Stubs{}
		assert.ErrorContains(t, s.Validate(), "CUDA stub library path is empty")
		s.Stubs = testStubs
		assert.NoError(t, s.Validate())
	}
}
