//go:build root

package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/test/harness"
)

// verify runs gpuslice verify. A busy machine has more time than two minutes.
func (m machine) verify(args ...string) (report verification.Report, stderr string, status int) {
	m.t.Helper()
	var out, errs bytes.Buffer
	c := m.verifying(args...)
	c.Stdout, c.Stderr = &out, &errs
	stop := harness.KeepBusy()
	defer func() { require.NoError(m.t, stop()) }()
	if err := c.Run(); err != nil {
		require.ErrorAs(m.t, err, new(*exec.ExitError))
	}
	if out.Len() > 0 {
		require.NoError(m.t, json.Unmarshal(out.Bytes(), &report), out.String())
	}
	return report, errs.String(), c.ProcessState.ExitCode()
}

func (m machine) verifying(args ...string) *exec.Cmd {
	m.t.Helper()
	program, err := harness.Artefact("bin", "gpuslice")
	require.NoError(m.t, err)
	driver, err := harness.Artefact("sim", "libcuda.so.1")
	require.NoError(m.t, err)
	c := exec.Command(program, append([]string{"verify", "--verbose", "-o", "json", "--timeout=10m", "--config", filepath.Join(m.Dir, "runtime.yaml")}, args...)...)
	c.Env = append(os.Environ(), append(m.RuntimeEnv(), "LD_LIBRARY_PATH="+filepath.Dir(driver))...)
	return c
}

// attempts is how often a busy machine may not run the programs that launch: it has fewer processors than one with GPUs, and only the
// check of shares depends on them.
const attempts = 5

// verifyUntil runs gpuslice verify until the check of shares has that result. All other checks hold each time.
func (m machine) verifyUntil(shares verification.State, args ...string) (report verification.Report, status int) {
	m.t.Helper()
	for range attempts {
		var stderr string
		report, stderr, status = m.verify(args...)
		require.NotEmpty(m.t, report.Rows, stderr)
		if states(report)["shares"] == shares {
			break
		}
		m.t.Logf("shares: %+v", report.Rows)
	}
	return report, status
}

// states are the results of a report's checks.
func states(r verification.Report) map[string]verification.State {
	all := map[string]verification.State{}
	for _, row := range r.Rows {
		all[row.Check] = row.State
	}
	return all
}

// passed are the results on a node without an agent.
func passed() map[string]verification.State {
	all := map[string]verification.State{"audit": verification.NotRun}
	for _, check := range []string{"enforcement", "cdi", "limiter", "limits-file", "gpu", "cuda-memory", "nvml-memory", "shares",
		"memory-alloc", "memory-async", "memory-vmm", "memory-managed", "memory-array"} {
		all[check] = verification.OK
	}
	return all
}

func TestVerify(t *testing.T) {
	m := newMachine(t)
	report, status := m.verifyUntil(verification.OK)
	require.Zero(t, status, "%+v", report)
	require.Equal(t, passed(), states(report), "%+v", report)
	require.Equal(t, verification.Verified, report.Outcome)
	require.Equal(t, "gpuslice run", report.Way)
	kept, err := verification.Read(m.LibraryDir())
	require.NoError(t, err)
	require.Equal(t, report, kept)
	m.free()
}

// faults are programs in the place of the probe, with a fault of the node, and the checks that find it.
var faults = map[string]struct {
	config, program, failed string
}{
	"the limiter is not loaded":  {"limiterMode: preload\n", "umount /etc/ld.so.preload && exec %s", "limiter"},
	"the limits file is missing": {"", "cp -a /.gpuslice $0.$$ && rm $0.$$/limits && mount --bind $0.$$ /.gpuslice && exec %s", "limits-file"},
	"NVML shows the whole GPU":   {"", "%s | sed -u s/nvml_total_bytes=.*/nvml_total_bytes=150754820096/", "nvml-memory"},
	"a second GPU is visible":    {"", "%s | sed -u s/^gpus=.*/gpus=2/", "gpu"},
	"arrays are not limited":     {"", "sed -u 's/^memory array.*/memory alloc 16 16/' | %s", "memory-array"},
	"shares are not enforced":    {"corePolicy: disable\n", "exec %s", "shares"},
}

// Each fault fails its own check, and no other one. The check of shares depends on the machine too: it counts only for its own fault.
func TestVerifyFindsFaults(t *testing.T) {
	probe, err := harness.Artefact("lib", "gpuslice-probe")
	require.NoError(t, err)
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			require.NoError(t, m.WriteRuntimeConfig(fault.config))
			path := filepath.Join(m.Dir, "probe")
			require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+fmt.Sprintf(fault.program, probe)+"\n"), 0o755))
			var report verification.Report
			var status int
			if fault.failed == "shares" {
				report, status = m.verifyUntil(verification.Failed, "--probe", path)
			} else {
				report, _, status = m.verify("--probe", path)
			}
			require.Equal(t, 1, status, "%+v", report)
			var failed []string
			for _, row := range report.Rows {
				if row.State == verification.Failed && (row.Check != "shares" || fault.failed == "shares") {
					failed = append(failed, row.Check)
				}
			}
			require.Equal(t, []string{fault.failed}, failed, "%+v", report)
			m.free()
		})
	}
}

// Only free room is taken: with too little of it, nothing is started, and the last report stays.
func TestVerifyWithoutRoom(t *testing.T) {
	m := newMachine(t)
	before := verification.Report{Driver: "1", Outcome: verification.Incomplete}
	require.NoError(t, verification.Write(m.LibraryDir(), before))
	holder, _ := m.start("ready", "--memory", "141000MiB", "--name", "job", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
	_, stderr, status := m.verify()
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "no GPU has room for two containers with 2048 MiB and 10 and 20 % each: GPU 0 has 2771 MiB free")
	require.Equal(t, map[string]int64{"job": 141000}, m.reserved())
	kept, err := verification.Read(m.LibraryDir())
	require.NoError(t, err)
	require.Equal(t, "1", kept.Driver)
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	m.ended(holder)

	_, stderr, status = m.verify("--gpu", "7")
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "there is no GPU 7")
	_, stderr, status = m.verify("--sockets", "/nowhere")
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "belong together")
}

// killedPatience is within --timeout=10m of the program.
const killedPatience = 5 * time.Minute

// A program that is killed leaves nothing: its containers end with their input.
func TestVerifyKilled(t *testing.T) {
	m := newMachine(t)
	stop := harness.KeepBusy()
	t.Cleanup(func() { require.NoError(t, stop()) })
	for _, until := range []string{"container 2", "memory vmm", "shares of compute time"} {
		c := m.verifying()
		log := filepath.Join(m.Dir, "log")
		f, err := os.Create(log)
		require.NoError(t, err)
		c.Stderr, c.Stdout = f, f
		require.NoError(t, c.Start())
		kill := sync.OnceFunc(func() { _ = c.Process.Kill(); _ = c.Wait() })
		t.Cleanup(kill) // where the test fails
		f.Close()
		require.NoError(t, harness.Until(context.Background(), killedPatience, func(context.Context) error {
			text, err := os.ReadFile(log)
			if err == nil && !strings.Contains(string(text), until) {
				err = errors.New(string(text))
			}
			return err
		}))
		kill()
		m.free()
		_, err = verification.Read(m.LibraryDir())
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

// With the agent, a process without a share has to be reported. TestVerify has the check of shares.
func TestVerifyWithTheAgent(t *testing.T) {
	m := newMachine(t)
	_, metrics := m.startAgent()
	require.NoError(t, harness.Until(t.Context(), patience, func(context.Context) error {
		response, err := http.Get("http://" + metrics + "/metrics")
		if err == nil {
			response.Body.Close()
		}
		return err
	}))
	report, stderr, _ := m.verify()
	want, got := passed(), states(report)
	want["audit"] = verification.OK
	delete(want, "shares")
	delete(got, "shares")
	require.Equal(t, want, got, "%s%+v", stderr, report)
	m.free()
}
