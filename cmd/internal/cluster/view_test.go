package cluster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// A cordon in the Node object is shown, whoever tells of the card; and so is the node's own.
func TestCordonsInTheViewOfACluster(t *testing.T) {
	cordoned := func(name, uuids string) *v1.Node {
		n := node(name, cardA, cardB)
		n.Annotations[wire.AnnotationCordon] = uuids
		return n
	}
	c, _ := of(map[string]any{"gpuslice/agent-n1:9394/api/v1/view": view.Node{Cards: []view.Card{{UUID: cardA, Healthy: true, Cordoned: true}, {UUID: cardB, Healthy: true}}}},
		cordoned("n1", cardB), cordoned("n2", cardA), cordoned("n3", "not a card"), server("agent", "n1", "metrics", 9394), server("agent", "n2", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	got := map[string]bool{}
	for _, card := range n.Cards {
		got[card.Node+" "+card.UUID] = card.Cordoned
	}
	assert.Equal(t, map[string]bool{"n1 " + cardA: true, "n1 " + cardB: true, "n2 " + cardA: true, "n2 " + cardB: false}, got)
	require.Len(t, n.Problems, 2)
	assert.Contains(t, n.Problems[0], "node n2: its agent (pod gpuslice/agent-n2) doesn't answer")
	assert.Contains(t, n.Problems[1], "node n3: what its Node object tells of cards can't be read: ")
}

// A card that isn't well is so for a reason, also where the Node object alone tells of it.
func TestUnhealthyCardWithoutAnAgent(t *testing.T) {
	sick := node("n1", cardA)
	sick.Annotations[wire.AnnotationCards] = strings.ReplaceAll(sick.Annotations[wire.AnnotationCards], `"healthy":true`, `"healthy":false`)
	c, _ := of(nil, sick, server("agent", "n1", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	require.Len(t, n.Cards, 1)
	assert.False(t, n.Cards[0].Healthy)
	assert.Equal(t, "its Node object says so; why, its node's agent knows", n.Cards[0].Unhealthy)
}
