package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// The formats of kubectl.
func TestOutputFormats(t *testing.T) {
	s := terminalNode(t)
	show := func(args ...string) string { return shows(t, append(args, "--state-dir", s.Dir)...) }
	gpus := "gpu/" + nodetest.H200 + "\ngpu/" + nodetest.T4 + "\n"
	assert.Equal(t, gpus+"container/c-infer\ncontainer/c-train\n", show("status", "-o", "name"))
	assert.Equal(t, gpus, show("topology", "-o", "name"))
	assert.Equal(t, "container/c-train\n", show("describe", "container", "default/train", "-o", "name"))
	assert.Equal(t, "gpu/"+nodetest.T4+"\n", show("describe", "gpu", "1", "-o", "name"))
	assert.Equal(t, "c-infer c-train", show("status", "-o", "jsonpath={.containers[*].containerID}"))
	assert.Equal(t, "node-1", show("status", "-o", "go-template={{.name}}"))
	s.Claim("c-hostile", "hostile\x1b[2J", grant.Share{UUID: nodetest.T4, MemoryMiB: 1000})
	for _, form := range []string{"name", "jsonpath={.containers[*].pod}", "go-template={{range .containers}}{{.pod}}{{end}}", "yaml", "json"} {
		assert.NotContains(t, show("status", "-o", form), "\x1b", form)
	}
	status, _, stderr := gpuslice("status", "-o", "jsonpath={", "--state-dir", s.Dir)
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, stderr, "correct the template")
}

// An error with control characters, such as a scheduler's answer, is printed without them.
func TestErrorsAreClean(t *testing.T) {
	status, _, stderr := gpuslice("describe\x1b[2J")
	assert.Equal(t, exitUsage, status)
	assert.NotContains(t, stderr, "\x1b")
}

func TestNamespaceFilter(t *testing.T) {
	s := terminalNode(t)
	for args, want := range map[string]string{"": "c-infer c-train", "-n default": "c-infer c-train", "-n team-a": "", "-n team-a -A": "c-infer c-train"} {
		call := append([]string{"status", "-o", "jsonpath={.containers[*].containerID}", "--state-dir", s.Dir}, strings.Fields(args)...)
		assert.Equal(t, want, shows(t, call...), args)
	}
}

// --watch prints again after a change, and ends with a signal.
func TestStatusWatch(t *testing.T) {
	s := terminalNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &lineWriter{lines: make(chan string, 100)}
	ended := make(chan int)
	go func() {
		ended <- execute(ctx, []string{"status", "--watch", "-o", "name", "--state-dir", s.Dir}, out, out)
	}()
	wait := func(want string) {
		t.Helper()
		select {
		case line := <-out.lines:
			require.Contains(t, line, want)
		case <-time.After(time.Minute):
			require.FailNow(t, "no output with "+want)
		}
	}
	wait("container/c-train")
	s.Claim("c-new", "new", grant.Share{UUID: nodetest.T4, MemoryMiB: 1000})
	wait("container/c-new")
	cancel()
	assert.Equal(t, exitDone, <-ended)
}

type lineWriter struct{ lines chan string }

func (w *lineWriter) Write(data []byte) (int, error) {
	w.lines <- string(data)
	return len(data), nil
}

// All connection flags of kubectl are accepted.
func TestKubectlFlags(t *testing.T) {
	noKubeconfig(t)
	kubeconfig := unreachable(t)
	for _, flags := range []string{"--cluster=k --user=u --as=someone --as-group=g", "--server=http://127.0.0.1:1 --token=x --request-timeout=1s", "--context=other"} {
		call := append([]string{"explain", "a/p", "--kubeconfig", kubeconfig}, strings.Fields(flags)...)
		status, _, stderr := gpuslice(call...)
		assert.Equal(t, exitFailed, status)
		assert.Contains(t, stderr, "127.0.0.1:1", flags)
	}
	status, _, stderr := gpuslice("explain", "a/p", "--kubeconfig", kubeconfig, "--cluster=none")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, `cluster "none" does not exist`)
}
