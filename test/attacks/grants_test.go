//go:build attacks

package attacks

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/granttest"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// grantsAtOnce is how many pods with forged grants are made at a time.
const grantsAtOnce = 6

// Rows 48 to 80: a tenant that can write a pod's annotations forges grants by their form. Each is
// refused with the reason, or grants no more than a valid one, while others are made at the same time.
func TestForgedGrants(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{GPUs: []string{"H200", "H200"}})
	first, second := gpu(t, n, 0), gpu(t, n, 1)
	s, err := n.Status(context.Background())
	require.NoError(t, err)
	node := granttest.Node{Name: harness.NodeName, GPU: first, Other: second, Missing: "GPU-dddddddd-0000-4000-8000-000000000009", GPUMiB: s.GPUs[0].MemoryMiB}
	cases := append(granttest.MalformedCases(node), forgedGrants(node)...)
	probe(t, n, second, answerWithin)
	turns := make(chan struct{}, grantsAtOnce)
	var waiting sync.WaitGroup
	for i, c := range cases {
		turns <- struct{}{}
		waiting.Go(func() {
			defer func() { <-turns }()
			// Subtests would run one after the other. The description names the grant in a failure.
			if err := requireForgedRefused(n, fmt.Sprintf("f%d", i), c); err != nil {
				assert.NoError(t, err, c.Description)
			}
		})
	}
	waiting.Wait()
	t.Logf("%d forged grants", len(cases))
	t.Run("71 a letter written as its number is the same letter", func(t *testing.T) {
		good := granted(first, attackerMiB, attackerCores)
		good["gpuslice.io/grant"] = strings.Replace(good["gpuslice.io/grant"], "GPU-", `\u0047PU-`, 1)
		_, id := run(t, n, harness.Pod{Name: "escaped", Annotations: good}, harness.Container{})
		require.True(t, requireHeld(t, n, id, ""))
	})
}

// requireForgedRefused makes a pod with annotations that no scheduler wrote.
func requireForgedRefused(n *harness.Node, name string, c granttest.Malformed) error {
	ctx := context.Background()
	s, err := n.RunPod(ctx, harness.Pod{Name: name, Annotations: c.Annotations})
	if err != nil {
		if unsent := "invalid UTF-8"; strings.Contains(err.Error(), unsent) || strings.Contains(err.Error(), "gpuslice") {
			return nil // the runtime's client can't send it, or its pod is too large
		}
		return fmt.Errorf("run the pod: %w", err)
	}
	defer s.Remove(ctx) //nolint:errcheck // the node's end looks for what is left
	id, err := s.Create(ctx, harness.Container{Name: "main"})
	if err == nil {
		return fmt.Errorf("container %s was made", id)
	}
	for _, says := range append([]string{name}, c.Says...) {
		if !strings.Contains(err.Error(), says) {
			return fmt.Errorf("the refusal does not have %q: %w", says, err)
		}
	}
	return nil
}

// forgedGrants are further annotations that must be refused.
func forgedGrants(node granttest.Node) (cases []granttest.Malformed) {
	share := func(uuid, memory, cores string) string {
		return fmt.Sprintf(`{"uuid":%s,"memoryMiB":%s,"cores":%s}`, uuid, memory, cores)
	}
	pod := func(shares string) string { return `{"version":1,"containers":{"main":[` + shares + `]}}` }
	first := `"` + node.GPU + `"`
	good := share(first, "1000", "30")
	add := func(description, value, says string) {
		cases = append(cases, granttest.Malformed{Description: description, Annotations: map[string]string{api.AnnotationGrant: value}, Says: []string{says}})
	}
	for _, memory := range []string{"9223372036854775808", "9223372036854775807", "18446744073709552616", "-1", "1e3", "1000.0", `"1000"`, "null", "NaN", "01000", "[1000]", "{}", "true"} {
		add("memory "+memory, pod(share(first, memory, "30")), "gpuslice.io/grant")
	}
	for _, cores := range []string{"101", "-0", "4294967301", "30.0", `"30"`, "+30"} {
		add("cores "+cores, pod(share(first, "1000", cores)), "gpuslice.io/grant")
	}
	for _, uuid := range []string{strings.ToLower(node.GPU), "ＧＰＵ" + node.GPU[3:], "GРU" + node.GPU[3:], "all", "0", "*", "../" + node.GPU, node.GPU + "," + node.Other, node.GPU + " ", `GPU-\u0000`} {
		add("uuid "+uuid, pod(share(`"`+uuid+`"`, "1000", "30")), "gpuslice.io/grant")
	}
	add("a key twice", pod(`{"uuid":`+first+`,"memoryMiB":1,"memoryMiB":100000,"cores":1}`), "twice")
	add("a key in another case", pod(`{"UUID":`+first+`,"memoryMiB":1,"cores":1}`), "UUID")
	add("a container twice, once escaped", `{"version":1,"containers":{"main":[`+good+`],"m\u0061in":[`+good+`]}}`, "twice")
	add("a GPU twice", pod(good+","+good), "share 1")
	add("data after it", pod(good)+"{}", "JSON")
	add("a byte order mark", "\ufeff"+pod(good), "JSON")
	add("half a surrogate", pod(share(`"GPU-\ud800"`, "1", "1")), "gpuslice.io/grant")
	add("version 1.0", strings.Replace(pod(good), `"version":1`, `"version":1.0`, 1), "version")
	add("version true", strings.Replace(pod(good), `"version":1`, `"version":true`, 1), "version")
	add("a depth of 100,000", strings.Repeat(`{"containers":`, 10000)+strings.Repeat("[", 90000), "JSON")
	add("a NUL in the node's name", strings.Replace(pod(good), `"version":1`, `"version":1,"node":"node-1\u0000"`, 1), "node")
	many := make([]string, 3000)
	for i := range many {
		many[i] = fmt.Sprintf(`"c%d":[%s]`, i, share(first, "1", "1"))
	}
	add("more containers than a pod has", `{"version":1,"containers":{`+strings.Join(many, ",")+`}}`, "gpuslice.io/grant")
	seventeen := make([]string, 17)
	for i := range seventeen {
		seventeen[i] = share(fmt.Sprintf(`"GPU-%08x-0000-4000-8000-000000000000"`, i), "1", "1")
	}
	add("17 GPUs", pod(strings.Join(seventeen, ",")), "gpuslice.io/grant")

	hami := func(description, value string) {
		cases = append(cases, granttest.Malformed{Description: "HAMi " + description, Annotations: map[string]string{api.AnnotationHAMiToAllocate: value}, Says: []string{"hami.io/vgpu-devices-to-allocate"}})
	}
	for description, value := range map[string]string{
		"101 percent": node.GPU + ",NVIDIA,1000,101:;", "a sign": node.GPU + ",NVIDIA,+1000,1:;", "hexadecimal": node.GPU + ",NVIDIA,0x10,1:;",
		"Arabic digits": node.GPU + ",NVIDIA,١٠٠,1:;", "a space": node.GPU + ",NVIDIA, 100,1:;", "no end": node.GPU + ",NVIDIA,100,1",
		"a GPU twice": node.GPU + ",NVIDIA,1,1:" + node.GPU + ",NVIDIA,1,1:;", "another vendor's name": node.GPU + ",Nvidia,1,1:;",
		"a line feed": node.GPU + ",NVIDIA,1\n,1:;", "100,000 entries": strings.Repeat(";", 100000),
	} {
		hami(description, value)
	}
	return cases
}
