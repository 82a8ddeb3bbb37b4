//go:build root

package docker_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/test/harness"
)

// gpuslice verify --image: both containers get their shares by the runtime, and are gone afterwards.
func verified(t *testing.T, d docker) {
	program, err := harness.Artefact("bin", "gpuslice")
	require.NoError(t, err)
	driver, err := harness.Artefact("sim", "libcuda.so.1")
	require.NoError(t, err)
	var out, errs bytes.Buffer
	c := exec.Command(program, "verify", "--verbose", "-o", "json", "--timeout=10m", "--image", harness.WorkloadImage, "--config", filepath.Join(d.m.Dir, "runtime.yaml"))
	c.Env = append(os.Environ(), append(d.m.RuntimeEnv(), "LD_LIBRARY_PATH="+filepath.Dir(driver), "DOCKER_HOST=unix://"+filepath.Join(d.Dir, "docker.sock"))...)
	c.Stdout, c.Stderr = &out, &errs
	stop := harness.KeepBusy()
	_ = c.Run() // the report has the result
	require.NoError(t, stop())
	var report verification.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report), "%s%s", &errs, &out)
	require.Len(t, report.Rows, 14)
	require.Equal(t, "docker run "+harness.WorkloadImage, report.Way)
	for _, row := range report.Rows {
		if row.Check != "audit" && row.Check != "shares" { // there is no agent; and on a busy machine: test/process
			require.Equal(t, verification.OK, row.State, "%+v", row)
		}
	}
	left, err := d.Containers(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
}
