//go:build root

package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/test/harness"
)

// gpuslice verify in a pod of which two containers have shares, as in the chart's Job: the checks pass, the audit's too.
func TestVerify(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{})
	metrics := strings.TrimSuffix(n.HealthAddress(), ":9396") + ":9394"
	n.Agent.Kill()
	n.SetAgentArgs("--metrics-address="+metrics, "--audit-interval=1s")
	require.NoError(t, n.StartAgent(ctx))
	uuid := gpu(t, n, 0)
	probe, err := harness.Artefact("lib", "gpuslice-probe")
	require.NoError(t, err)
	sockets := filepath.Join(n.Dir, "verify")
	require.NoError(t, os.Mkdir(sockets, 0o755))
	require.NoError(t, os.Chmod(sockets, 0o777))

	pod := run(t, n, harness.Pod{Name: "verify", Annotations: named(map[string]string{"first": share(uuid, 2048, 30), "second": share(uuid, 2048, 60)})})
	for _, name := range []string{"first", "second"} {
		start(t, pod, harness.Container{
			Name: name, Command: []string{"/gpuslice-probe", "/run/verify/" + name + ".sock"}, User: 65532, ReadOnly: true,
			Mounts: []*cri.Mount{{ContainerPath: "/gpuslice-probe", HostPath: probe, Readonly: true}, {ContainerPath: "/run/verify", HostPath: sockets}},
		})
	}
	program, err := harness.Artefact("bin", "gpuslice")
	require.NoError(t, err)
	var out, errs bytes.Buffer
	c := osexec.Command(program, "verify", "--verbose", "-o", "json", "--timeout=10m", "--sockets", sockets, "--pod", "default/verify",
		"--agent", "http://"+metrics, "--library-dir", n.LibraryDir())
	c.Stdout, c.Stderr = &out, &errs
	stop := harness.KeepBusy()
	_ = c.Run() // the report has the result
	require.NoError(t, stop())
	var report verification.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report), "%s%s", &errs, &out)
	require.Len(t, report.Rows, 14)
	for _, row := range report.Rows {
		if row.Check != "shares" { // on a busy machine: test/process
			require.Equal(t, verification.OK, row.State, "%+v", row)
		}
	}
	require.Equal(t, "preload+library", report.Enforcement)
	require.Equal(t, "pod default/verify", report.Way)
	require.NoError(t, pod.Remove(ctx))
	requireNothingLeft(t, n)
}
