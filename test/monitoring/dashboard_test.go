package monitoring

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dashboard is dashboard.json as Grafana reads it.
type dashboard struct {
	Templating struct {
		List []struct {
			Name  string
			Type  string
			Query any
		}
	}
	Panels []struct {
		Type, Title string
		Targets     []struct{ Expr, LegendFormat string }
		Datasource  *struct{ UID string }

		Transformations []struct {
			ID      string
			Options struct{ IndexByName, RenameByName map[string]any }
		}
	}
}

// Each panel shows exported metrics, and each label that it shows exists.
func TestDashboard(t *testing.T) {
	s := newServer(t)
	var d dashboard
	require.NoError(t, json.Unmarshal(shipped(t, "dashboard.json"), &d))
	expressions := 0
	for _, p := range d.Panels {
		var columns []string // of a table
		for _, transformation := range p.Transformations {
			for name := range transformation.Options.IndexByName {
				if !strings.HasPrefix(name, "Value #") {
					columns = append(columns, name)
				}
			}
		}
		for _, target := range p.Targets {
			expressions++
			require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
			assert.Empty(t, s.shown(target.Expr, append(mentioned(target.LegendFormat), columns...)), p.Title)
		}
		assert.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
	}
	assert.Greater(t, expressions, 40)
}

var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// The values of each variable exist.
func TestVariables(t *testing.T) {
	s := newServer(t)
	var d dashboard
	require.NoError(t, json.Unmarshal(shipped(t, "dashboard.json"), &d))
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Type != "query" {
			continue
		}
		parts := labelValues.FindStringSubmatch(v.Query.(map[string]any)["query"].(string))
		require.Len(t, parts, 3, v.Name)
		assert.Empty(t, s.shown(parts[1], parts[2:]), v.Name)
	}
	assert.Equal(t, []string{"datasource", "node", "namespace"}, names)
}

// The test finds wrong expressions.
func TestWrongPanels(t *testing.T) {
	s := newServer(t)
	for expr, want := range map[string]string{
		`gpuslice_gpu_memory_used_byte`:                                                    "is not exported",
		`gpuslice_gpu_memory_used_bytes{nod=~".+"}`:                                        "is not exported",
		`gpuslice_gpu_memory_used_bytes{node="other"}`:                                     "is not exported",
		`sum(rate(gpuslice_container_launches[5m]))`:                                       "is not exported",
		`sum(gpuslice_gpu_healthy == 0 or gpuslice_gpu_sick) or vector(0)`:                 "is not exported",
		`sum by (nod) (gpuslice_gpu_healthy)`:                                              "has no label nod",
		`histogram_quantile(0.9, sum by (verb) (gpuslice_scheduler_denials_total_bucket))`: "is not exported",
		`sum(gpuslice_gpu_healthy{node=~"$nodes"})`:                                        "is not exported",
		`rate(gpuslice_container_launches_total[$interval])`:                               "a variable",
		`sum(`:                      "unclosed",
		`gpuslice_gpu_healthy > 10`: "shows nothing",
	} {
		wrong := s.shown(expr, nil)
		require.NotEmpty(t, wrong, expr)
		assert.Contains(t, strings.Join(wrong, "\n"), want)
	}
	assert.Empty(t, s.shown("gpuslice_gpu_healthy", mentioned("{{node}} {{uuid}}")))
	assert.Len(t, s.shown("gpuslice_gpu_healthy", mentioned("{{node}} {{id}}")), 1)
	assert.Len(t, s.shown("sum by (node) (gpuslice_gpu_healthy)", mentioned("{{uuid}}")), 1)
}
