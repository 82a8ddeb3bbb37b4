package main

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// A node that has nothing is unfit, and the report says so on standard output.
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
	assert.Len(t, report.Results, 16)
	for _, r := range report.Results {
		assert.NotEmpty(t, r.Check)
		assert.NotEmpty(t, r.Found)
		assert.Equal(t, r.State == doctor.OK, len(r.Fix) == 0)
	}
}

// A reader that went away is a failure of the work.
func TestDoctorToNobody(t *testing.T) {
	for _, form := range []string{"table", "json"} {
		var stderr bytes.Buffer
		assert.Equal(t, exitFailed, execute(context.Background(), []string{"doctor", "-o", form, "--root", t.TempDir()}, nobody{}, &stderr))
		assert.Contains(t, stderr.String(), "nobody reads")
	}
}
