package cluster

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// The rights of install/people-rbac.yaml are those that the commands use, no more.
func TestRightsOfPeople(t *testing.T) {
	pod := granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000})
	c, client := of(map[string]any{
		"gpuslice/agent-n1:9394/api/v1/view": view.Node{}, "gpuslice/scheduler-n1:8080/debug/explain": engine.Explanation{},
	}, node("n1", gpuA), pod, server("agent", "n1", "metrics", 9394), server("scheduler", "n1", "http", 8080))
	whole, wholeClient := c, client
	scheduling(client, func(string) (grant.ResizeStatus, string) {
		return grant.ResizeStatus{Outcome: grant.ResizeReserved}, ""
	})
	used := func(calls ...func() error) map[string][]string {
		client.ClearActions()
		for _, call := range calls {
			require.NoError(t, call())
		}
		verbs := map[string]map[string]bool{}
		for _, a := range client.Actions() {
			resource := a.GetResource().Resource
			if sub := a.GetSubresource(); sub != "" {
				resource += "/" + sub
			}
			if verbs[resource] == nil {
				verbs[resource] = map[string]bool{}
			}
			verbs[resource][a.GetVerb()] = true
		}
		sorted := map[string][]string{}
		for resource, set := range verbs {
			sorted[resource] = slices.Sorted(maps.Keys(set))
		}
		return sorted
	}
	mib := int64(1)
	roles := rolesIn(t, "../../../install/people-rbac.yaml")
	within := func(role string, used map[string][]string) {
		t.Helper()
		for resource, verbs := range used {
			for _, verb := range verbs {
				assert.Contains(t, roles[role][resource], verb, "%s: %s", role, resource)
			}
		}
	}
	within("gpuslice-view", used(
		func() error { _, err := c.View(t.Context()); return err },
		func() error { _, err := c.Explain(t.Context(), "ns", "p"); return err },
	))
	claiming, client2 := of(nil, claimants(claimOf("waits", "gpu.gpuslice.io", nil))...)
	client, c = client2, claiming
	within("gpuslice-view", used(func() error {
		x, err := c.Explain(t.Context(), "ns", "p")
		assert.Empty(t, x.UnknownClaims)
		return err
	}))
	c, client = whole, wholeClient
	within("gpuslice-edit", used(func() error {
		p, err := c.Pod(t.Context(), "ns", "p")
		if err == nil {
			_, err = c.Resize(t.Context(), p, map[string]grant.Wanted{"main": {MemoryMiB: &mib}})
		}
		return err
	}))
	operate := used(
		func() error { _, err := c.GPU(t.Context(), "n1", "0"); return err },
		func() error { _, err := c.Cordon(t.Context(), "n1", gpuA, true); return err },
		func() error { return c.Clear(t.Context(), "ns", "p", false, func(string, ...any) {}) },
		func() error { _, err := c.Holders(t.Context(), "n1", gpuA); return err },
		func() error {
			err := c.Evict(t.Context(), []Holder{{Namespace: "ns", Name: "p", UID: "another"}}, Evictions{GracePeriod: time.Second, Report: func(string, ...any) {}})
			return err
		},
	)
	within("gpuslice-operate", operate)
	assert.Contains(t, operate, "nodes")
	assert.Equal(t, []string{"get"}, roles["gpuslice-ask"]["pods/proxy"])
}

func rolesIn(t *testing.T, path string) map[string]map[string][]string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	roles := map[string]map[string][]string{}
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct{ Resources, Verbs []string }
		}
		if decoder.Decode(&o) != nil {
			break
		}
		require.Equal(t, "ClusterRole", o.Kind)
		roles[o.Metadata.Name] = map[string][]string{}
		for _, rule := range o.Rules {
			for _, resource := range rule.Resources {
				roles[o.Metadata.Name][resource] = append(roles[o.Metadata.Name][resource], rule.Verbs...)
			}
		}
	}
	require.Len(t, roles, 4)
	return roles
}
