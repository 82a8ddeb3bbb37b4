package migrating

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scores are the cases of HAMi's scores of nodes and GPUs, and of its policies.
func scores(t *testing.T) []Placement {
	t.Helper()
	var file struct {
		Nodes map[string]map[string]Node `json:"nodes"`
		HAMi  []Placement                `json:"HAMi"`
	}
	read(t, "scores.yaml", &file)
	require.NotEmpty(t, file.HAMi)
	for i := range file.HAMi {
		c := &file.HAMi[i]
		c.of, c.nodes = ofHAMi, file.Nodes[c.Cluster]
		require.NotEmpty(t, c.nodes, "%s: unknown nodes", c.Name)
	}
	return file.HAMi
}

// decision is a case of testdata/decisions.json: where one pod gets GPUs, beside the existing ones.
//
// The file was derived from the sources of gpu-manager's evaluators (share, fragment, link, and their tree) and of gpu-admission's
// predicate, because neither module can be downloaded to build it. The derivation gave each result that the originals themselves have
// given in placements.yaml.
type decision struct {
	By       string   `json:"by"`
	Cluster  string   `json:"cluster"`
	Existing []string `json:"existing"`
	Pod      string   `json:"pod"`
	// Theirs are several where the original's choice is random.
	Theirs []string `json:"theirs"`
	Here   string   `json:"here"`
	Row    string   `json:"row"`
}

// decisions are the cases of gpu-manager and gpu-admission, pod by pod.
func decisions(t *testing.T) []Placement {
	t.Helper()
	data, err := testdata.ReadFile("testdata/decisions.json")
	require.NoError(t, err)
	var file struct {
		Nodes map[string]map[string]Node `json:"nodes"`
		Cases []decision                 `json:"cases"`
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.NotEmpty(t, file.Cases)
	all := make([]Placement, 0, len(file.Cases))
	for i, d := range file.Cases {
		p := Placement{Name: fmt.Sprintf("%s %d", d.By, i), Cluster: d.Cluster, Row: d.Row, Pods: slices.Concat(d.Existing, []string{d.Pod}),
			Theirs: []string{strings.Join(d.Theirs, " or ")}, of: ofGPUManager, nodes: file.Nodes[d.Cluster]}
		require.NotEmpty(t, p.nodes, "%s: unknown nodes", p.Name)
		if d.Here != "" {
			p.Here = []string{d.Here}
		}
		all = append(all, p)
	}
	return all
}
