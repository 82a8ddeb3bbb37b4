package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

// gpu0 is the first GPU of oci's testdata/cdi, of 40 GiB here.
const gpu0 = "GPU-11111111-1111-1111-1111-111111111111"

// bench is a node in a directory, with the GPUs of oci's testdata, and no runtime.
type bench struct {
	*Runtime
	dir    string
	ledger *ledger.Ledger
}

func newBench(t testing.TB) *bench {
	dir := t.TempDir()
	specs, err := filepath.Abs("../testdata/cdi")
	require.NoError(t, err)
	config := request.DefaultConfig()
	config.StateDir, config.CDISpecDirs = filepath.Join(dir, "run"), []string{specs}
	write(t, filepath.Join(dir, "rootfs", harness.Loader), "a loader", 0o755)
	vgpufstest.Unmount(t, config.StateDir)
	ledger, err := ledger.Open(config.StateDir)
	require.NoError(t, err)
	t.Cleanup(func() { ledger.Close() })
	return &bench{dir: dir, ledger: ledger, Runtime: &Runtime{
		Config: config, Self: "/usr/bin/gpuslice-runtime",
		Stdin: strings.NewReader(""), Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer),
		GPUs: func(context.Context) (GPUs, error) {
			return GPUs{
				Capacity: map[string]grant.GPU{gpu0: {UUID: gpu0, MemoryMiB: 40960, CorePercent: 100, Replicas: 10}},
				Indices:  map[string]string{gpu0: "0"}, ContextMiB: map[string]int64{gpu0: 420},
			}, nil
		},
		Limiter: func() (Limiter, error) {
			const lib = "/var/lib/gpuslice/lib/"
			return Limiter{Library: lib + "libvgpu-0123456789abcdef.so", Preload: lib + "ld.so.preload",
				Fronts: oci.Stubs{CUDA: lib + "libvgpu-cuda-0123456789abcdef.so", NVML: lib + "libvgpu-nvml-0123456789abcdef.so"}}, nil
		},
	}}
}

// bundle makes a bundle of one of testdata/specs.
func (b *bench) bundle(t testing.TB, name string) string {
	t.Helper()
	spec := read(t, "testdata/specs/"+name+".json")
	spec = rootPath.ReplaceAllString(spec, `"root":{"path":"`+filepath.Join(b.dir, "rootfs")+`"`)
	dir := filepath.Join(b.dir, "bundles", name)
	write(t, filepath.Join(dir, configName), spec, 0o640)
	return dir
}

var (
	rootPath = regexp.MustCompile(`"root":\{"path":"[^"]*"`)
	nonce    = regexp.MustCompile(`--claim=[A-Z2-7]{26}`)
	turnID   = regexp.MustCompile(`/[0-9a-f]{16}"`)
)

// make is create of a bundle.
func (b *bench) make(bundle string) error {
	_, err := b.create(context.Background(), &creation{call: Call{Command: "create", ID: id, Bundle: bundle}, lowLevel: "/usr/sbin/runc", creator: os.Getpid()})
	return err
}

// stable names what differs from run to run.
func (b *bench) stable(data string) string {
	data = turnID.ReplaceAllString(strings.ReplaceAll(data, b.dir, "/DIR"), `/TURN"`)
	return nonce.ReplaceAllString(data, "--claim=NONCE")
}

// Without a request only one variable changes.
func TestOnlyTheVariableChanges(t *testing.T) {
	b := newBench(t)
	bundle := b.bundle(t, "docker-20-nothing")
	before := read(t, filepath.Join(bundle, configName))
	require.NoError(t, b.make(bundle))
	after := read(t, filepath.Join(bundle, configName))

	var had, has any
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(before, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void")), &had))
	require.NoError(t, json.Unmarshal([]byte(after), &has))
	require.Equal(t, had, has)

	info, err := os.Stat(filepath.Join(bundle, configName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm(), "its mode stays")
	files, err := os.ReadDir(bundle)
	require.NoError(t, err)
	require.Len(t, files, 2, "the config, and what it was")
}
