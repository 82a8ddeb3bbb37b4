package hostinstall

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

func (h testHost) repairs(version string) RepairOptions {
	return RepairOptions{
		Root: h.root, RuntimeConfig: "/etc/containerd/config.toml", ContainerdVersion: version,
		StateDir: "/run/gpuslice", StateMount: []byte("[Mount]\nWhere=/run/gpuslice\n"),
	}
}

func (h testHost) repair(r doctor.Repair, o RepairOptions) string {
	var out strings.Builder
	require.NoError(h.t, Repair(h.t.Context(), r, o, &out))
	return out.String()
}

// Of containerd just what NRI needs is set, and uninstall takes it back.
func TestRepairContainerd(t *testing.T) {
	h := newTestHost(t)
	before := "# mine\nversion = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = 'pause'\n"
	h.put("/etc/containerd/config.toml", before)
	require.NoError(t, os.Remove(h.path("/usr/bin/gpuslice-runtime"))) // it needs none
	o := h.repairs("1.7.24")
	dry := o
	dry.DryRun = true
	shown := h.repair(doctor.RepairContainerd, dry)
	assert.Contains(t, shown, "+++ /etc/containerd/config.toml")
	assert.Contains(t, shown, "nothing was changed (--dry-run)")
	assert.Equal(t, before, h.read("/etc/containerd/config.toml"))

	done := h.repair(doctor.RepairContainerd, o)
	assert.Contains(t, done, "\n+  disable = false\n")
	assert.Contains(t, done, "changed    /etc/containerd/config.toml  (backup: ")
	assert.Contains(t, done, "systemctl restart containerd")
	after := h.read("/etc/containerd/config.toml")
	assert.Contains(t, after, "disable = false")
	assert.NotContains(t, after, "gpuslice-runtime")
	assert.NotContains(t, after, "runtimes")
	assert.Contains(t, after, "sandbox_image = 'pause'")
	assert.Equal(t, "unchanged  /etc/containerd/config.toml\n", h.repair(doctor.RepairContainerd, o), "done again it does nothing")

	_, err := h.uninstall(h.options("containerd"))
	require.NoError(t, err)
	assert.Equal(t, before, h.read("/etc/containerd/config.toml"))
}

func TestRepairStateMount(t *testing.T) {
	h := newTestHost(t)
	o := h.repairs("")
	o.DryRun = true
	assert.Contains(t, h.repair(doctor.RepairStateMount, o), "+Where=/run/gpuslice")
	assert.NoFileExists(t, h.path(doctor.StateMountUnit))
	o.DryRun = false
	out := h.repair(doctor.RepairStateMount, o)
	assert.Contains(t, out, "created    "+doctor.StateMountUnit)
	assert.Contains(t, out, "systemctl daemon-reload && systemctl enable --now run-gpuslice.mount")
	assert.Equal(t, string(o.StateMount), h.read(doctor.StateMountUnit))
	h.put(doctor.StateMountUnit, "# an administrator's\n")
	h.repair(doctor.RepairStateMount, o)
	assert.Equal(t, "# an administrator's\n", h.read(doctor.StateMountUnit), "an existing unit is kept")
}

func TestRepairNothing(t *testing.T) {
	h := newTestHost(t)
	assert.ErrorContains(t, Repair(t.Context(), "driver", h.repairs(""), &strings.Builder{}), "unknown repair \"driver\"")
	h.put("/etc/containerd/config.toml", "oom_score = 0\n")
	assert.ErrorContains(t, Repair(t.Context(), doctor.RepairContainerd, h.repairs("2.4.2"), &strings.Builder{}), "config migrate")
}
