package noderegister

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A condition is written when it changes, to the Node object of now, and is no other condition.
func TestCondition(t *testing.T) {
	verified := Condition{Type: "GPUShareIsolationVerified", Status: "True", Reason: "Verified", Message: "with driver 1", At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
	var mu sync.Mutex
	current := verified
	set := func(c Condition) { mu.Lock(); current = c; mu.Unlock() }
	conditions := func() []Condition { mu.Lock(); defer mu.Unlock(); return []Condition{current} }
	runWith(t, Options{}, conditions, nil, func(p *play) {
		written := func() []string {
			p.server.mu.Lock()
			defer p.server.mu.Unlock()
			return p.server.capacity
		}
		first := `{"status":{"conditions":[{"lastHeartbeatTime":"2026-01-02T03:04:05Z","lastTransitionTime":"2026-01-02T03:04:05Z","message":"with driver 1","reason":"Verified","status":"True","type":"GPUShareIsolationVerified"}]}}`
		require.Equal(t, []string{first}, written())
		p.after(10 * time.Minute)
		require.Len(t, written(), 1, "nothing changed, nothing is written")
		set(Condition{Type: "GPUShareIsolationVerified", Status: "Unknown", Reason: "NoReport", Message: "none"})
		p.after(time.Minute)
		require.Equal(t, `{"status":{"conditions":[{"message":"none","reason":"NoReport","status":"Unknown","type":"GPUShareIsolationVerified"}]}}`, written()[1])

		p.server.fail("patch nodes/status", metav1.StatusReasonForbidden)
		set(verified)
		p.after(10 * time.Minute)
		require.Len(t, written(), 2)
		require.Contains(t, p.log.String(), "write the node's condition")
		p.server.fail("patch nodes/status", "")
		p.after(10 * time.Minute)
		require.Len(t, written(), 3, "it is tried again")

		p.server.mu.Lock()
		p.server.node.UID = "u-2"
		p.server.mu.Unlock()
		p.after(time.Minute)
		require.Len(t, written(), 4, "a node that is created again has no condition of ours")
		p.stop()
		require.NoError(t, RemoveCondition(context.Background(), p.server.client(), nodeName, "GPUShareIsolationVerified"))
		require.Equal(t, `{"status":{"conditions":[{"$patch":"delete","type":"GPUShareIsolationVerified"}]}}`, written()[4])
	})
}

// Of several conditions those are written that changed; one without a status is removed.
func TestConditions(t *testing.T) {
	var mu sync.Mutex
	current := []Condition{{Type: "A", Status: "True", Reason: "R", Message: "m"}, {Type: "B"}}
	conditions := func() []Condition { mu.Lock(); defer mu.Unlock(); return slices.Clone(current) }
	runWith(t, Options{}, conditions, nil, func(p *play) {
		written := func() []string {
			p.server.mu.Lock()
			defer p.server.mu.Unlock()
			return p.server.capacity
		}
		require.Equal(t, []string{
			`{"status":{"conditions":[{"message":"m","reason":"R","status":"True","type":"A"}]}}`,
			`{"status":{"conditions":[{"$patch":"delete","type":"B"}]}}`,
		}, written())
		p.after(10 * time.Minute)
		require.Len(t, written(), 2)
		mu.Lock()
		current[1].Status = "False"
		mu.Unlock()
		p.after(time.Minute)
		require.Equal(t, `{"status":{"conditions":[{"message":"","reason":"","status":"False","type":"B"}]}}`, written()[2])
		p.after(time.Minute)
		require.Len(t, written(), 3)
	})
}
