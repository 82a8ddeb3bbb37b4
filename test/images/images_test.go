//go:build root

// Package images_test runs images of several kinds in plain runc, with the edits that
// package oci makes when it can look into them: other C libraries, no /etc, a preload of
// their own. Whatever the image is, it has its share of the simulated GPU or no GPU.
package images_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/harness"
)

// The simulated GPU, and what a container is granted of it.
const (
	uuid     = "GPU-00000001-5151-4000-8000-000000000001"
	limitMiB = 2000
	// contextMiB is what a context takes of the simulated GPU.
	contextMiB = 520
	mib        = 1 << 20
)

// machine is a simulated GPU and an installed limiter.
type machine struct {
	dir      string
	group    string // of control groups
	registry *oci.Registry
	settings oci.Settings
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir()}
	m.group = "gpuslice-images-" + filepath.Base(filepath.Dir(m.dir))
	t.Cleanup(func() { // runc leaves the directory that is not the container's own
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			groups, _ := filepath.Glob(pattern + m.group)
			for _, group := range groups {
				assert.NoError(t, os.Remove(group))
			}
		}
	})
	simctl, err := harness.Artefact("sim", "simctl")
	require.NoError(t, err)
	for _, sub := range []string{"dev", "cdi", "runc"} {
		require.NoError(t, os.Mkdir(filepath.Join(m.dir, sub), 0o755))
	}
	for _, args := range [][]string{
		{"init", "--gpu", "H200"},
		{"devnodes", "--dev-dir", filepath.Join(m.dir, "dev")},
		{"cdi", "--lib-dir", filepath.Dir(simctl), "--dev-dir", filepath.Join(m.dir, "dev"), "--out", filepath.Join(m.dir, "cdi", "nvidia.yaml")},
	} {
		_, err := harness.Run(context.Background(), nil, simctl, append([]string{"--state", filepath.Join(m.dir, "state")}, args...)...)
		require.NoError(t, err)
	}
	m.registry, err = oci.NewRegistry(oci.RegistryConfig{Dirs: []string{filepath.Join(m.dir, "cdi")}})
	require.NoError(t, err)
	library, err := harness.Artefact("lib", "libvgpu.so")
	require.NoError(t, err)
	m.settings.LibraryPath, m.settings.PreloadPath, err = oci.InstallLibrary(library, filepath.Join(m.dir, "lib"))
	require.NoError(t, err)
	m.settings.Stubs, err = oci.InstallStubs(library, filepath.Join(m.dir, "lib"))
	require.NoError(t, err)
	return m
}

// result is what came of a container.
type result struct {
	enforcement oci.Enforcement
	refused     error
	code        int
	out, err    string
}

// run makes a container of an image, with a share of the GPU, and runs a program in
// it to its end. The image is not known (NRI can't look into it) where blind is set.
func (m *machine) run(t *testing.T, mode oci.LimiterMode, rootfs string, blind bool, env []string, args ...string) (r result) {
	t.Helper()
	bundle, err := os.MkdirTemp(m.dir, "b")
	require.NoError(t, err)
	id := m.group + filepath.Base(bundle)
	spec := bareSpec("/"+m.group+"/"+id, rootfs, env, args)

	c := oci.ContainerOf(id, spec)
	c.Dir = filepath.Join(bundle, "claim")
	require.NoError(t, os.Mkdir(c.Dir, 0o755))
	if !blind {
		c.Rootfs, err = oci.RootfsFacts(rootfs, c.Env)
		require.NoError(t, err)
	}
	settings := m.settings
	settings.LimiterMode = mode
	settings.ContextMiB = map[string]int64{uuid: contextMiB}
	shares := []grant.Share{{UUID: uuid, MemoryMiB: limitMiB, CorePercent: 50}}
	edits, err := oci.Edits(shares, settings, c, m.registry)
	if err != nil {
		return result{refused: err}
	}
	r.enforcement = edits.Enforcement
	require.NoError(t, oci.Populate(c.Dir, ledger.Claim{Shares: shares}, settings))
	require.NoError(t, oci.PopulatePreload(c.Dir, c.Rootfs))
	require.NoError(t, oci.Apply(spec, edits.Edits))
	assert.Equal(t, r.enforcement, oci.EnforcementOf(spec.Mounts, nil, settings))

	data, err := json.Marshal(spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600))
	var out, complaint bytes.Buffer
	cmd := exec.Command("runc", "--root", filepath.Join(m.dir, "runc"), "run", "--bundle", bundle, id)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	require.NotNil(t, cmd.ProcessState, "%v", err)
	r.code, r.out, r.err = cmd.ProcessState.ExitCode(), out.String(), complaint.String()
	return r
}

// bareSpec is the smallest that runs a program: read-only root, no devices.
func bareSpec(group, rootfs string, env, args []string) *rspec.Spec {
	return &rspec.Spec{
		Version: "1.0.2",
		Root:    &rspec.Root{Path: rootfs, Readonly: true},
		Process: &rspec.Process{Args: args, Env: append([]string{"PATH=/bin"}, env...), Cwd: "/", NoNewPrivileges: true},
		Mounts: []rspec.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &rspec.Linux{
			CgroupsPath: group,
			Namespaces:  []rspec.LinuxNamespace{{Type: rspec.MountNamespace}, {Type: rspec.PIDNamespace}, {Type: rspec.IPCNamespace}},
			Resources:   &rspec.LinuxResources{Devices: []rspec.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// write makes an image's root file system.
func write(t *testing.T, root harness.Root) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, root.Write(dir))
	return dir
}

// limited checks that the GPU is the slice, to the byte, by CUDA and by NVML.
func (m *machine) limited(t *testing.T, mode oci.LimiterMode, rootfs string, blind bool, env ...string) result {
	t.Helper()
	r := m.run(t, mode, rootfs, blind, env, harness.WorkloadDir+"/meminfo")
	require.NoError(t, r.refused)
	require.Zero(t, r.code, "%s%s", r.out, r.err)
	shown := harness.KeyValues(r.out)
	for _, key := range []string{"device.0.total_bytes", "device.0.info_total_bytes", "nvml.0.total_bytes", "nvml.0.v2.total_bytes"} {
		assert.Equal(t, strconv.Itoa(limitMiB*mib), shown[key], key)
	}
	r = m.run(t, mode, rootfs, blind, env, harness.WorkloadDir+"/alloc", "--chunk-mib=1")
	require.Zero(t, r.code, "%s%s", r.out, r.err)
	taken := harness.KeyValues(r.out)
	assert.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", taken["result"])
	assert.Equal(t, strconv.Itoa((limitMiB-contextMiB)*mib), taken["allocated_bytes"])
	return r
}

func TestImages(t *testing.T) {
	m := newMachine(t)
	glibc, err := harness.GlibcRoot()
	require.NoError(t, err)
	musl, err := harness.MuslRoot(t.TempDir(), false)
	require.NoError(t, err)
	gcompat, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)

	// Distroless: no /etc, no shell, nothing but a loader and a program.
	bare := harness.Root{Files: map[string]string{}}
	for name, source := range glibc.Files {
		if name != "bin/busybox" && name != "bin/dynamic-env" {
			bare.Files[name] = source
		}
	}
	// An image with a preload of its own.
	own := glibc
	own.Texts = map[string]string{"etc/ld.so.preload": "# ours\n/opt/own.so\n"}
	own.Files = map[string]string{"opt/own.so": ownPreload(t)}
	for name, source := range glibc.Files {
		own.Files[name] = source
	}

	const none oci.Enforcement = ""
	for _, tt := range []struct {
		image                  string
		root                   harness.Root
		env                    []string
		preload, library, auto oci.Enforcement // none: refused
	}{
		{"glibc", glibc, nil, oci.EnforcePreload, oci.EnforceLibrary, oci.EnforceBoth},
		{"glibc without etc", bare, nil, oci.EnforcePreload, oci.EnforceLibrary, oci.EnforceBoth},
		{"glibc with a preload of its own", own, nil, oci.EnforcePreload, oci.EnforceLibrary, oci.EnforceBoth},
		{"musl with gcompat", gcompat, []string{harness.GcompatEnv}, none, oci.EnforceLibrary, oci.EnforceBoth},
	} {
		t.Run(tt.image, func(t *testing.T) {
			rootfs := write(t, tt.root)
			for mode, want := range map[oci.LimiterMode]oci.Enforcement{
				oci.LimiterPreload: tt.preload, oci.LimiterLibrary: tt.library, oci.LimiterAuto: tt.auto,
			} {
				t.Run(string(mode), func(t *testing.T) {
					if want == none {
						r := m.run(t, mode, rootfs, false, tt.env, harness.WorkloadDir+"/meminfo")
						require.ErrorContains(t, r.refused, "does not read /etc/ld.so.preload")
						return
					}
					assert.Equal(t, want, m.limited(t, mode, rootfs, false, tt.env...).enforcement)
				})
			}
			// What NRI does, which can't look: the mode that is right whatever the image is.
			t.Run("auto, unseen", func(t *testing.T) {
				assert.Equal(t, oci.EnforceBoth, m.limited(t, oci.LimiterAuto, rootfs, true, tt.env...).enforcement)
			})
		})
	}

	// Where no mount point can be made there is no container.
	bareRootfs := write(t, bare)
	require.NoError(t, unix.Mount(bareRootfs, bareRootfs, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bareRootfs, unix.MNT_DETACH)) })
	require.NoError(t, os.Mkdir(filepath.Join(bareRootfs, "proc"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(bareRootfs, "dev"), 0o755))
	require.NoError(t, unix.Mount("", bareRootfs, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, mode := range oci.LimiterModes {
		r := m.run(t, mode, bareRootfs, false, nil, harness.WorkloadDir+"/meminfo")
		require.NoError(t, r.refused)
		assert.Equal(t, 1, r.code, r.out)
		assert.Contains(t, r.err, "read-only file system", "%s", mode)
	}

	// Nothing in these can load the driver, whatever the mode: it is a library for glibc.
	muslRootfs := write(t, musl)
	for mode, want := range map[oci.LimiterMode]oci.Enforcement{oci.LimiterLibrary: oci.EnforceLibrary, oci.LimiterAuto: oci.EnforceBoth} {
		t.Run("only musl/"+string(mode), func(t *testing.T) {
			r := m.run(t, mode, muslRootfs, false, nil, harness.WorkloadDir+"/meminfo")
			require.NoError(t, r.refused)
			assert.Equal(t, want, r.enforcement)
			assert.Equal(t, 4, r.code, "no driver: %s%s", r.out, r.err)
		})
		t.Run("static/"+string(mode), func(t *testing.T) {
			r := m.run(t, mode, muslRootfs, false, nil, harness.WorkloadDir+"/alloc-static")
			require.NoError(t, r.refused)
			assert.Equal(t, 4, r.code, "no driver: %s%s", r.out, r.err)
		})
	}

	// The image's own preload stays where the image is seen, and the limiter comes first.
	ownRootfs := write(t, own)
	for mode, loaded := range map[oci.LimiterMode]bool{oci.LimiterPreload: true, oci.LimiterLibrary: true, oci.LimiterAuto: true} {
		r := m.run(t, mode, ownRootfs, false, nil, "/bin/dynamic-env")
		require.Zero(t, r.code, r.err)
		assert.Equal(t, loaded, strings.Contains(r.err, "own.so is loaded"), "%s: %s", mode, r.err)
	}
	r := m.run(t, oci.LimiterAuto, ownRootfs, true, nil, "/bin/dynamic-env")
	require.Zero(t, r.code, r.err)
	assert.NotContains(t, r.err, "own.so is loaded", "unseen, the limiter's takes its place")
}

// For all library search paths of an image, its programs don't find the driver that is behind the front; a
// variable with the path of the driver is refused.
func TestNoSearchFindsTheDriverBehindTheFront(t *testing.T) {
	m := newMachine(t)
	glibc, err := harness.GlibcRoot()
	require.NoError(t, err)
	gcompat, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)
	for _, tt := range []struct {
		image string
		root  harness.Root
		env   string
	}{
		{"glibc", glibc, "A=b"},
		{"musl with gcompat", gcompat, harness.GcompatEnv},
	} {
		tt.root.Links["opt/found"] = "/.gpuslice/driver"
		rootfs := write(t, tt.root)
		for _, mode := range []oci.LimiterMode{oci.LimiterLibrary, oci.LimiterAuto} {
			t.Run(tt.image+"/"+string(mode), func(t *testing.T) {
				const found = "LD_LIBRARY_PATH=/opt/found"
				m.limited(t, mode, rootfs, true, tt.env, found)
				if tt.env == "A=b" { // if the image can be read, the link is followed
					r := m.run(t, mode, rootfs, false, []string{found}, harness.WorkloadDir+"/meminfo")
					require.ErrorContains(t, r.refused, "the directory of the driver")
				}
			})
		}
		for _, mode := range oci.LimiterModes {
			if mode == oci.LimiterPreload && tt.env != "A=b" {
				continue // refused whatever its variables
			}
			for env, want := range map[string]string{
				"LD_LIBRARY_PATH=/.gpuslice/driver":                        "the directory of the driver",
				"LD_PRELOAD=/.gpuslice/driver/cuda":                        "before the limiter",
				"LD_PRELOAD=/usr/lib/" + harness.Triplet + "/libcuda.so.1": "before the limiter",
			} {
				r := m.run(t, mode, rootfs, false, []string{env}, harness.WorkloadDir+"/meminfo")
				require.ErrorContains(t, r.refused, want, "%s %s", mode, env)
			}
		}
	}
}

// Programs that were built with AddressSanitizer run and are limited: its runtime demands to be the first library.
func TestProgramsWithAddressSanitizer(t *testing.T) {
	m := newMachine(t)
	for _, runtime := range []string{"shared", "static"} {
		t.Run(runtime, func(t *testing.T) {
			rootfs := write(t, sanitizedRoot(t, runtime == "static"))
			for mode, want := range map[oci.LimiterMode]oci.Enforcement{
				oci.LimiterPreload: oci.EnforcePreload, oci.LimiterLibrary: oci.EnforceLibrary, oci.LimiterAuto: oci.EnforceBoth,
			} {
				t.Run(string(mode), func(t *testing.T) {
					assert.Equal(t, want, m.limited(t, mode, rootfs, false, "ASAN_OPTIONS=detect_leaks=0").enforcement)
				})
			}
		})
	}
}

// sanitizedRoot has workloads that were built with AddressSanitizer, and their libraries.
func sanitizedRoot(t *testing.T, static bool) harness.Root {
	t.Helper()
	root, err := harness.GlibcRoot()
	require.NoError(t, err)
	repository, err := harness.Repository()
	require.NoError(t, err)
	dir := t.TempDir()
	for name, sources := range map[string][]string{"meminfo": {"meminfo.c", "show.c", "common.c"}, "alloc": {"alloc.c", "common.c"}} {
		program := filepath.Join(dir, name)
		args := []string{"-std=gnu11", "-O1", "-pthread", "-fsanitize=address", "-o", program}
		if static {
			args = append(args, "-static-libasan")
		}
		for _, source := range sources {
			args = append(args, filepath.Join(repository, "testdata", "workloads", source))
		}
		out, err := exec.Command("cc", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		root.Files["opt/workloads/"+name] = program
		out, err = exec.Command("ldd", program).Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == "=>" {
				root.Files["lib/"+harness.Triplet+"/"+f[0]] = f[2]
			}
		}
	}
	return root
}

// ownPreload is a library that prints a line when it is loaded.
func ownPreload(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "own.c"), filepath.Join(dir, "own.so")
	require.NoError(t, os.WriteFile(source, []byte(`
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { if (write(2, "own.so is loaded\n", 17) < 0) _exit(9); }
`), 0o600))
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return library
}

// Why the mode is published and preload is refused where the image is seen: with it a
// program of another C library would have the whole GPU.
func TestPreloadAloneDoesNotHoldMusl(t *testing.T) {
	m := newMachine(t)
	root, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)
	r := m.run(t, oci.LimiterPreload, write(t, root), true, []string{harness.GcompatEnv}, harness.WorkloadDir+"/meminfo")
	require.NoError(t, r.refused)
	require.Zero(t, r.code, "%s%s", r.out, r.err)
	total, err := strconv.ParseInt(harness.KeyValues(r.out)["device.0.total_bytes"], 10, 64)
	require.NoError(t, err, r.out)
	assert.Greater(t, total, int64(limitMiB*mib), "if this holds now, preload limits musl: %s", fmt.Sprint(r.enforcement))
}
