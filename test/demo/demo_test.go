//go:build root

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// The node that "keep" leaves up is there for the commands that it prints, and "stop" removes all of it.
func TestKeep(t *testing.T) {
	program, kept := filepath.Join(t.TempDir(), "demo"), fmt.Sprintf("/run/gpuslice-demo-%d", os.Getpid())
	t.Setenv("DEMO_LINK", kept)
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	demo := func(args ...string) (string, error) {
		out, err := exec.Command(program, args...).CombinedOutput()
		return string(out), err
	}
	text, err := demo("stop")
	require.Error(t, err)
	require.Equal(t, "demo: no node is up: make demo DEMO=keep brings one up\n", text)

	text, err = demo("keep")
	require.NoError(t, err, text)
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			text, err := demo("stop")
			t.Log(text, err)
		}
	})
	dir, err := os.Readlink(kept)
	require.NoError(t, err)
	require.NotContains(t, text, "FAIL")
	_, hints, _ := strings.Cut(text, "The node is up")
	var script strings.Builder
	for _, line := range regexp.MustCompile(`(?m)^  (.*)$`).FindAllStringSubmatch(hints, -1) {
		if line[1] != "make demo DEMO=stop" {
			script.WriteString(line[1] + "\n")
		}
	}
	var stdout, stderr bytes.Buffer
	shell := exec.Command("/bin/bash", "-euxc", script.String())
	shell.Stdout, shell.Stderr = &stdout, &stderr
	require.NoError(t, shell.Run(), stderr.String())
	require.Contains(t, stdout.String(), "Pod:          default/train")
	require.Contains(t, stdout.String(), "device.0.total_bytes=4294967296")
	require.Equal(t, 5, strings.Count(stderr.String(), "\n+ ")+1, stderr.String())
	page := regexp.MustCompile(`http://127[\d.]+:\d+/`).FindString(hints)
	response, err := http.Get(page)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "default/train")

	endless := fmt.Sprint(100_000 + os.Getpid())
	// A container that goes on ends with the node.
	shell = exec.Command("/bin/bash", "-euc", ". "+kept+`/env; ctr run --detach --runc-binary "$(command -v gpuslice-runtime)" --env GPUSLICE_MEMORY=4GiB `+
		harness.WorkloadImage+" own /bin/sleep "+endless)
	out, err = shell.CombinedOutput()
	require.NoError(t, err, string(out))

	text, err = demo("keep")
	require.Error(t, err)
	require.Contains(t, text, "take it down first: make demo DEMO=stop")

	t.Setenv(harness.CRIRuntimeEnv, "another") // the node knows its own
	text, err = demo("stop")
	require.NoError(t, err, text)
	stopped = true
	require.NoDirExists(t, dir)
	require.NoFileExists(t, kept)
	mounts, err := harness.MountsBelow(dir)
	require.NoError(t, err)
	require.Empty(t, mounts)
	left, err := harness.Processes(func(_, args string) bool { return strings.Contains(args, dir+"/") || strings.Contains(args, endless) })
	require.NoError(t, err)
	require.Empty(t, left)
}

// After the daemons were killed "stop" removes what they left.
func TestStopAfterAKill(t *testing.T) {
	program, kept := filepath.Join(t.TempDir(), "demo"), fmt.Sprintf("/run/gpuslice-demo-killed-%d", os.Getpid())
	t.Setenv("DEMO_LINK", kept)
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command(program, "keep").CombinedOutput()
	require.NoError(t, err, string(out))
	dir, err := os.Readlink(kept)
	require.NoError(t, err)
	daemons, err := harness.Processes(func(program, args string) bool {
		return strings.Contains(args, dir+"/") && (program == "containerd" || program == "gpuslice-agent")
	})
	require.NoError(t, err)
	require.Len(t, daemons, 2)
	for _, pid := range daemons {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	out, err = exec.Command(program, "stop").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoDirExists(t, dir)
	roots, err := harness.CgroupRoots()
	require.NoError(t, err)
	for _, root := range roots {
		require.NoDirExists(t, filepath.Join(root, filepath.Base(dir)))
	}
}

// What a call of "stop" that failed at its end has left is only the link.
func TestStopWithoutADirectory(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(t.TempDir(), "gone"), kept))
	stop := exec.Command("go", "run", ".", "stop")
	stop.Env = append(os.Environ(), "DEMO_LINK="+kept)
	out, err := stop.CombinedOutput()
	require.NoError(t, err, string(out))
	_, err = os.Lstat(kept)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// For another user than root there is one line, before anything is built.
func TestRootIsNeeded(t *testing.T) {
	for _, target := range []string{"DEMO=run", "DEMO=keep", "DEMO=stop"} {
		cmd := exec.Command("make", "-s", "-C", "../..", "demo", target)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.Error(t, cmd.Run())
		require.Regexp(t, `^make demo: root is needed: .*\nmake: \*\*\* .*\n$`, stderr.String())
	}
}
