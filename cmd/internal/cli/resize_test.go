package cli

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// dockerNode is a node with containers of docker, of a slice and of a pod.
func dockerNode(t *testing.T) *nodetest.StateDir {
	s := nodetest.NewStateDir(t)
	docker := func(id, slice string, shares ...grant.Share) {
		claim := ledger.Claim{ContainerID: id, Owner: ledger.OwnerRuntime, Container: id, Shares: shares, Mode: "preload", CreatedAt: nodetest.Time}
		_, err := s.Ledger.Claim(context.Background(), claim, node.Capacities(nodetest.File().Devices), func(dir string) error {
			record, err := orphans.NewRecord(orphans.Procfs("/proc"), 1)
			require.NoError(t, err)
			record.Slice = slice
			require.NoError(t, record.Write(dir))
			return oci.Populate(dir, claim, oci.Settings{})
		})
		require.NoError(t, err)
	}
	docker("3f2a9c01", "", grant.Share{UUID: nodetest.H200, MemoryMiB: 8192, CorePercent: 30})
	docker("3f2a0002", "", grant.Share{UUID: nodetest.H200, MemoryMiB: 1024}, grant.Share{UUID: nodetest.T4, MemoryMiB: 1024, CorePercent: 10})
	docker("51ce", "small", grant.Share{UUID: nodetest.T4, MemoryMiB: 1024})
	s.Claim("c-train", "train", grant.Share{UUID: nodetest.T4, MemoryMiB: 8000})
	return s
}

func sharesOf(t *testing.T, s *nodetest.StateDir, id string) []grant.Share {
	t.Helper()
	recovered, err := oci.RecoverClaim(s.Ledger.Dir(id))
	require.NoError(t, err)
	snapshot, err := s.Ledger.Snapshot(context.Background())
	require.NoError(t, err)
	claim, err := findClaim(snapshot.Claims(), id)
	require.NoError(t, err)
	assert.Equal(t, claim.Shares, recovered.Shares, "the ledger and the limits are equal")
	return claim.Shares
}

// A person's variables for containers (docker run -e GPUSLICE_MEMORY) change nothing of what a command does.
func TestVariablesOfContainersResizeNothing(t *testing.T) {
	for name, value := range map[string]string{"GPUSLICE_MEMORY": "4GiB", "GPUSLICE_CORES": "10", "GPUSLICE_GPU": "1", "GPUSLICE_DRY_RUN": "true", "GPUSLICE_ROOT": "/nowhere"} {
		t.Setenv(name, value)
	}
	s := dockerNode(t)
	_, out, stderr := gpuslice("resize", "3f2a9c01", "--cores=40", "--state-dir", s.Dir)
	assert.Equal(t, "container 3f2a9c01, GPU "+nodetest.H200+": cores 30 % -> 40 %\n", out, stderr)
	assert.Equal(t, []grant.Share{{UUID: nodetest.H200, MemoryMiB: 8192, CorePercent: 40}}, sharesOf(t, s, "3f2a9c01"))
}

func TestResizeOnNode(t *testing.T) {
	h200 := func(mib int64, cores int) grant.Share {
		return grant.Share{UUID: nodetest.H200, MemoryMiB: mib, CorePercent: cores}
	}
	for _, test := range []struct {
		name   string
		args   []string
		status int
		text   string // on stdout, or on stderr for a failure
		want   []grant.Share
		id     string
	}{
		{"more", []string{"3f2a9c", "--memory=12GiB", "--cores=40"}, exitDone,
			"container 3f2a9c01, GPU " + nodetest.H200 + ": memory 8192 -> 12288 MiB, cores 30 % -> 40 %\n", []grant.Share{h200(12288, 40)}, ""},
		{"only cores", []string{"3f2a9c01", "--cores=0"}, exitDone, "cores 30 % -> not limited", []grant.Share{h200(8192, 0)}, ""},
		{"a percentage of the GPU", []string{"3f2a9c01", "--memory=50%"}, exitDone, "8192 -> 71885 MiB", []grant.Share{h200(71885, 30)}, ""},
		{"nothing new", []string{"3f2a9c01", "--cores=30"}, exitDone, "unchanged, 8192 MiB, cores 30 %", []grant.Share{h200(8192, 30)}, ""},
		{"one GPU of two", []string{"3f2a0002", "--memory=2GiB", "--gpu=1"}, exitDone, nodetest.T4 + ": memory 1024 -> 2048 MiB",
			[]grant.Share{h200(1024, 0), {UUID: nodetest.T4, MemoryMiB: 2048, CorePercent: 10}}, "3f2a0002"},
		{"too much", []string{"3f2a9c01", "--memory=142748MiB"}, exitFailed, "memory 134556 MiB requested, 134555 of 143771 MiB free in addition to its share", nil, ""},
		{"two containers", []string{"3f2a", "--cores=1"}, exitFailed, `"3f2a" is ambiguous: use one of 3f2a0002, 3f2a9c01`, nil, ""},
		{"none", []string{"ffff", "--cores=1"}, exitFailed, "list all with gpuslice status -o wide", nil, ""},
		{"a GPU without a share", []string{"3f2a9c01", "--cores=1", "--gpu=1"}, exitFailed, "the container has no share of it", nil, ""},
		{"an unknown GPU", []string{"3f2a9c01", "--cores=1", "--gpu=7"}, exitFailed, `GPU "7"`, nil, ""},
		{"a slice's", []string{"51ce", "--cores=1"}, exitFailed, `has the slice "small"`, nil, ""},
		{"a pod's", []string{"c-train", "--cores=1"}, exitFailed, "gpuslice resize default/train:main", nil, ""},
		{"no change", []string{"3f2a9c01"}, exitUsage, "set --memory, --cores or both", nil, ""},
		{"no unit", []string{"3f2a9c01", "--memory=8000"}, exitUsage, "--memory", nil, ""},
		{"too many cores", []string{"3f2a9c01", "--cores=101"}, exitUsage, "0 to 100 percent", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := dockerNode(t)
			status, out, stderr := gpuslice(append([]string{"resize", "--state-dir", s.Dir}, test.args...)...)
			require.Equal(t, test.status, status, "%s%s", out, stderr)
			id := "3f2a9c01"
			if test.id != "" {
				id = test.id
			}
			if test.status != exitDone {
				assert.Contains(t, stderr, test.text)
				assert.Empty(t, out)
				assert.Equal(t, []grant.Share{h200(8192, 30)}, sharesOf(t, s, id))
				return
			}
			assert.Contains(t, out, test.text)
			assert.Equal(t, test.want, sharesOf(t, s, id))
		})
	}
}

// The driver would keep the old limit.
func TestResizeOfTheDriversLimit(t *testing.T) {
	for _, mode := range []string{"native", "native+preload"} {
		s := nodetest.NewStateDir(t)
		share := grant.Share{UUID: nodetest.T4, MemoryMiB: 512}
		claim := ledger.Claim{ContainerID: "driver", Owner: ledger.OwnerRuntime, Container: "driver", Shares: []grant.Share{share}, Mode: mode, CreatedAt: nodetest.Time}
		_, err := s.Ledger.Claim(t.Context(), claim, node.Capacities(nodetest.File().Devices), func(dir string) error {
			record, err := orphans.NewRecord(orphans.Procfs("/proc"), 1)
			return errors.Join(err, record.Write(dir), oci.Populate(dir, claim, oci.Settings{}))
		})
		require.NoError(t, err)
		status, out, stderr := gpuslice("resize", "--state-dir", s.Dir, "driver", "--memory=256MiB")
		assert.Equal(t, exitFailed, status, "%s", out)
		assert.Contains(t, stderr, "the driver limits the memory of container driver")
		assert.Equal(t, []grant.Share{share}, sharesOf(t, s, "driver"))
	}
}

// The cordon of a GPU in MIG mode applies to its MIG devices.
func TestCordonOfAMIGGPU(t *testing.T) {
	f := migNode(t)
	s := nodetest.NewStateDirOf(t, f)
	small, large := f.Node.GPUs[1].MIG[0].UUID, f.Node.GPUs[1].MIG[1].UUID
	s.Claim("c-slice", "slice", grant.Share{UUID: large, MemoryMiB: 72000, CorePercent: 100})
	claim := func(id string) error {
		claim := ledger.Claim{ContainerID: id, Owner: ledger.OwnerNRI, PodUID: id, PodNamespace: "default", PodName: id, Container: "main",
			Shares: []grant.Share{{UUID: small, MemoryMiB: 18000, CorePercent: 100}}, Mode: "preload", CreatedAt: nodetest.Time}
		_, err := s.Ledger.Claim(t.Context(), claim, node.Capacities(f.Devices), nil)
		return err
	}
	call := func(want int, args ...string) string {
		status, out, stderr := gpuslice(append(args, "--state-dir", s.Dir)...)
		require.Equal(t, want, status, stderr)
		return out + stderr
	}
	assert.Contains(t, call(exitDone, "drain", "1", "--dry-run"), "in use by container c-slice")
	require.NoError(t, s.Ledger.Release(t.Context(), "c-slice"))
	s.Claim("c-again", "again", grant.Share{UUID: large, MemoryMiB: 72000, CorePercent: 100})

	out := call(exitDone, "cordon", "1")
	assert.Contains(t, out, "its MIG device "+small+" gets no new containers on this node\n")
	assert.Contains(t, out, "in use by container c-again of pod default/again\n")
	require.ErrorIs(t, claim("c-new"), ledger.ErrCordoned)
	assert.Contains(t, call(exitFailed, "drain", "1"), "containers still use the GPU")
	assert.Contains(t, call(exitFailed, "uncordon", small), "gpuslice uncordon "+gpuUUID(1))
	assert.Regexp(t, `MIG 1g.18gb +cordoned`, call(exitDone, "topology"))
	require.ErrorIs(t, claim("c-new"), ledger.ErrCordoned)

	call(exitDone, "uncordon", "1")
	require.NoError(t, s.Ledger.Cordon(t.Context(), small))
	require.ErrorIs(t, claim("c-new"), ledger.ErrCordoned)
	call(exitDone, "uncordon", "1") // with its MIG devices
	call(exitDone, "cordon", large) // only one device
	require.NoError(t, claim("c-new"))
}

func TestCordonOnNode(t *testing.T) {
	s := dockerNode(t)
	status, out, stderr := gpuslice("cordon", "1", "--state-dir", s.Dir)
	require.Equal(t, exitDone, status, stderr)
	assert.Equal(t, "GPU "+nodetest.T4+" gets no new containers on this node\n"+
		"in use by container 3f2a0002\nin use by container 51ce\nin use by container c-train of pod default/train\n", out)
	cordoned, err := ledger.Cordoned(s.Dir)
	require.NoError(t, err)
	assert.Equal(t, []string{nodetest.T4}, cordoned)

	status, _, _ = gpuslice("uncordon", nodetest.T4, "--state-dir", s.Dir)
	require.Equal(t, exitDone, status)
	cordoned, err = ledger.Cordoned(s.Dir)
	require.NoError(t, err)
	assert.Empty(t, cordoned)

	status, _, stderr = gpuslice("cordon", "9", "--state-dir", s.Dir)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, `GPU "9" not found`)
	status, _, stderr = gpuslice("cordon", "0", "--state-dir", s.Dir+"/nowhere")
	assert.Equal(t, exitFailed, status)
	assert.NoDirExists(t, s.Dir+"/nowhere", stderr)
}
