package monitoring

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/stretchr/testify/require"
)

// mistakes are what Grafana's types refuse. Grafana fills in fields that have a default.
func mistakes(data []byte) (found []string) {
	plugins.RegisterDefaultPlugins()
	//lint:ignore SA1019 Version 2 of dashboards needs Grafana 12, and this one works from 10.4 on.
	var d sdk.Dashboard
	all := ""
	for _, err := range []error{d.UnmarshalJSONStrict(data), d.Validate()} {
		if err != nil {
			all += err.Error() + "\n"
		}
	}
	for line := range strings.Lines(all) {
		if !strings.HasSuffix(strings.TrimSpace(line), ": required field is missing from input") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// Grafana's own types read the dashboard, with the options of each kind of panel and its queries, and find no unknown field and
// no value that there is not.
func TestGrafanasSchema(t *testing.T) {
	require.Empty(t, mistakes(shipped(t, "dashboard.json")))
}

// The check finds wrong dashboards.
func TestGrafanasSchemaFindsMistakes(t *testing.T) {
	for name, change := range map[string]func(d, panel map[string]any){
		"a field of the dashboard":  func(d, _ map[string]any) { d["titel"] = "x" },
		"a field of a panel":        func(_, panel map[string]any) { panel["titel"] = "x" },
		"a value that there is not": func(d, _ map[string]any) { d["fiscalYearStartMonth"] = 12 },
		"a type":                    func(d, _ map[string]any) { d["editable"] = "yes" },
		"an option of a panel":      func(_, panel map[string]any) { panel["options"].(map[string]any)["legends"] = true },
		"a field of a query":        func(_, panel map[string]any) { panel["targets"].([]any)[0].(map[string]any)["expresion"] = "up" },
	} {
		t.Run(name, func(t *testing.T) {
			var d map[string]any
			require.NoError(t, json.Unmarshal(shipped(t, "dashboard.json"), &d))
			for _, p := range d["panels"].([]any) {
				if panel := p.(map[string]any); panel["type"] == "timeseries" {
					change(d, panel)
					break
				}
			}
			data, err := json.Marshal(d)
			require.NoError(t, err)
			require.NotEmpty(t, mistakes(data))
		})
	}
}
