package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// An empty node fails, and the report is on standard output.
func TestDoctorOfAnEmptyNode(t *testing.T) {
	root := t.TempDir()
	status, out, stderr := gpuslice("doctor", "--root", root)
	assert.Equal(t, exitFailed, status)
	assert.Equal(t, "gpuslice: "+errUnfit.Error()+"\n", stderr)
	assert.Contains(t, out, "\nfail  state-dir         open /run/gpuslice: no such file or directory\n")
	assert.Contains(t, out, "\n         cp install/run-gpuslice.mount /etc/systemd/system/\n")

	status, out, _ = gpuslice("doctor", "--root", root, "-o", "json")
	assert.Equal(t, exitFailed, status)
	var report doctor.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	assert.Equal(t, doctor.Fail, report.State)
	assert.Len(t, report.Results, 21)
	for _, r := range report.Results {
		assert.NotEmpty(t, r.Check)
		assert.NotEmpty(t, r.Found)
		assert.Equal(t, r.State == doctor.OK, len(r.Fix) == 0)
	}
}

// The argument names what the host is for.
func TestDoctorOfADockerHost(t *testing.T) {
	root := t.TempDir()
	status, out, _ := gpuslice("doctor", "docker", "podman", "--root", root)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, out, "fail  docker            /etc/docker/daemon.json has no runtime gpuslice\n")
	assert.Contains(t, out, "\nfail  podman ")
	assert.Contains(t, out, " checks for docker, podman: ")
	assert.NotContains(t, out, "kubelet")
	status, _, stderr := gpuslice("doctor", "runtime", "--root", root)
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, stderr, "unexpected arguments (runtime): use gpuslice doctor [kubernetes|docker|podman]...")
}

// sickRoot is a node's root directory with all that can be fixed, and the options for it.
func sickRoot(t *testing.T) (root string, args []string) {
	root = t.TempDir()
	put := func(file, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o644))
	}
	put("etc/containerd/config.toml", "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/gpuslice"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(root, "run/gpuslice"), 0o755))
	return root, []string{"doctor", "--root", root, "--health-address", ""}
}

// Safe changes are made and shown.
func TestDoctorFix(t *testing.T) {
	root, args := sickRoot(t)
	_, out, _ := gpuslice(args...)
	assert.Contains(t, out, "\nRun gpuslice doctor --fix to fix some of it; it shows each change.\n")

	status, out, stderr := gpuslice(append(args, "--fix", "--dry-run")...)
	assert.Equal(t, exitFailed, status)
	assert.Equal(t, "gpuslice: "+errUnfit.Error()+"\n", stderr)
	for _, want := range []string{
		"fix of nri, nri-validator:\n", "+  disable = false\n", "nothing was changed (--dry-run)",
		"fix of state-dir:\n", "+/run/gpuslice: owner 0, mode 0711\n", "\nfail  nri               NRI is off",
	} {
		assert.Contains(t, out, want)
	}

	status, out, _ = gpuslice(append(args, "--fix")...)
	assert.Equal(t, exitFailed, status, "the driver is still missing")
	for _, want := range []string{
		"changed    /etc/containerd/config.toml  (backup: /etc/containerd/config.toml.gpuslice-backup-",
		"note: run `systemctl restart containerd`", "created    /etc/systemd/system/run-gpuslice.mount\n",
		"\nfail  nri               NRI is on, but its socket does not exist", // until containerd is restarted
		"\nok    nri-validator     default_validator is on\n",
	} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "mode 0755)")
	assert.NotContains(t, out, "doctor --fix to fix")
	info, err := os.Stat(filepath.Join(root, "run/gpuslice"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o711), info.Mode().Perm())

	status, out, stderr = gpuslice(append(args, "--fix", "-o", "json")...)
	assert.Equal(t, exitFailed, status)
	assert.True(t, json.Valid([]byte(out)))
	assert.Contains(t, stderr, "no automatic fix: follow the steps of each check\n")
}

// After a failed fix the others are made, and the exit status is 1.
func TestDoctorFailedFix(t *testing.T) {
	root, args := sickRoot(t)
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/containerd/config.toml"),
		[]byte("# DO NOT EDIT\nversion = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"), 0o644))
	status, out, stderr := gpuslice(append(args, "--fix")...)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, out, "not done: /etc/containerd/config.toml is a generated file")
	assert.Contains(t, out, "+/run/gpuslice: owner 0, mode 0711\n")
	assert.Contains(t, stderr, "gpuslice: fix of nri, nri-validator: ")

	status, _, stderr = gpuslice("doctor", "--dry-run", "--root", root)
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, stderr, "--dry-run needs --fix: add it")
}

// A closed output is a failure of the work.
func TestDoctorToAClosedOutput(t *testing.T) {
	for _, form := range []string{"table", "json"} {
		var stderr bytes.Buffer
		assert.Equal(t, exitFailed, execute(context.Background(), []string{"doctor", "-o", form, "--root", t.TempDir()}, closedOutput{}, &stderr))
		assert.Contains(t, stderr.String(), "output closed")
	}
}
