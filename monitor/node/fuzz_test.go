package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/node"
)

// The table of links is square, whatever the file has.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":2,"devices":[{"UUID":"a"}],"topology":{"uuids":["a","b"],"pairs":[[{},{}],[{}]]}}`))
	f.Add([]byte(`{"version":2,"topology":{"UUIDs":["a"],"Pairs":[[{"Level":3}]]}}`))
	f.Add([]byte(`{"version":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := node.Decode(data)
		if err != nil {
			return
		}
		for i, a := range file.Topology.UUIDs {
			require.Len(t, file.Topology.Pairs[i], len(file.Topology.UUIDs))
			_ = file.Topology.Link(a, file.Topology.UUIDs[0])
		}
	})
}
