package cli

import (
	"bufio"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// budgeted is a cluster with a plan to move a pod, which a budget delays for ever.
type budgeted struct {
	mu          sync.Mutex
	annotations map[string]string // of the node
	// uncordons is sent a value when the cordon is to be removed, which then waits for one from goOn.
	uncordons, goOn chan struct{}
}

func (b *budgeted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	status, answer := http.StatusOK, any(nil)
	node := func() v1.Node {
		return v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: maps.Clone(b.annotations)}}
	}
	switch path := r.URL.Path; {
	case path == "/api/v1/pods":
		answer = v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "gpuslice-system", Name: "scheduler-x"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
		}}}
	case strings.HasSuffix(path, "/debug/defrag"):
		answer = defrag.Plan{Pod: "default/large", Node: "node-1", Moves: []defrag.Move{{Pod: "default/moved", UID: "u", From: "node-1", To: "node-2"}}, GPUs: []string{gpuUUID(1)}}
	case strings.HasSuffix(path, "/debug/state"):
		gpu := scheduler.GPU{UUID: gpuUUID(1), Cordoned: b.annotations[api.AnnotationHAMiCordon] != ""}
		answer = engine.State{Nodes: []engine.NodeState{{Name: "node-1", GPUs: []engine.GPUState{{GPU: gpu}}}}}
	case path == "/api/v1/nodes":
		answer = v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []v1.Node{node()}}
	case path == "/api/v1/nodes/node-1" && r.Method == http.MethodPatch:
		var patch struct {
			Metadata struct{ Annotations map[string]*string }
		}
		if json.NewDecoder(r.Body).Decode(&patch) != nil {
			status = http.StatusBadRequest
			break
		}
		if patch.Metadata.Annotations[api.AnnotationHAMiCordon] == nil {
			select {
			case b.uncordons <- struct{}{}:
				<-b.goOn
			case <-r.Context().Done():
				return
			}
		}
		for key, value := range patch.Metadata.Annotations {
			if delete(b.annotations, key); value != nil {
				b.annotations[key] = *value
			}
		}
		answer = node()
	case path == "/api/v1/nodes/node-1":
		answer = node()
	case strings.HasSuffix(path, "/eviction"):
		status = http.StatusTooManyRequests
	default:
		status = http.StatusNotFound
	}
	if answer == nil {
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(status), Message: "no"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}

// Whatever ends defrag but a second signal, its cordon is removed.
func TestSignalsToDefrag(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP) // programs that a test starts below nohup would ignore it
	defer signal.Stop(caught)
	for name, test := range map[string]struct {
		signal, next syscall.Signal // next: while the cordon is removed
		closed       bool           // the reader of its output has ended, too
	}{
		"SIGINT": {signal: syscall.SIGINT}, "SIGTERM": {signal: syscall.SIGTERM}, "the end of the terminal": {signal: syscall.SIGHUP, next: syscall.SIGHUP},
		"the end of a pipe": {signal: syscall.SIGINT, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &budgeted{annotations: map[string]string{}, uncordons: make(chan struct{}), goOn: make(chan struct{})}
			server := httptest.NewServer(b)
			t.Cleanup(server.Close)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			text, err := os.ReadFile(unreachable(t))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(text), "http://127.0.0.1:1", server.URL)), 0o600))
			output, input, err := os.Pipe()
			require.NoError(t, err)
			defer output.Close()
			program := exec.CommandContext(t.Context(), exe, "defrag", "default/large", "--yes", "--kubeconfig", kubeconfig)
			program.Env = append(os.Environ(), runAs+"=main")
			program.Stdout, program.Stderr = input, input
			require.NoError(t, program.Start())
			ended := make(chan error, 1)
			go func() { ended <- program.Wait() }()
			require.NoError(t, input.Close())
			lines := bufio.NewScanner(output)
			for lines.Scan() && !strings.Contains(lines.Text(), "cannot be evicted yet") {
			}
			require.Contains(t, lines.Text(), "cannot be evicted yet")
			if test.closed {
				require.NoError(t, output.Close())
			}
			require.NoError(t, program.Process.Signal(test.signal))
			if !test.closed {
				require.True(t, lines.Scan())
				assert.Equal(t, "GPU "+gpuUUID(1)+" of node node-1 is uncordoned, then defrag ends: another signal would keep it cordoned", lines.Text())
			}
			select {
			case <-b.uncordons:
			case <-ended:
				require.Fail(t, "it has ended without removing the cordon")
			case <-time.After(time.Minute):
				require.Fail(t, "the cordon is not removed")
			}
			if test.next != 0 {
				require.NoError(t, program.Process.Signal(test.next))
			}
			b.goOn <- struct{}{}
			for !test.closed && lines.Scan() {
			}
			<-ended
			b.mu.Lock()
			defer b.mu.Unlock()
			assert.Empty(t, b.annotations)
			if test.next != 0 {
				assert.Equal(t, exitFailed, program.ProcessState.ExitCode(), "no signal has ended it")
			}
		})
	}
}
