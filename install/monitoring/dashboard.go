package monitoring

import "fmt"

// row is a heading and the panels under it, from left to right.
type row struct {
	title  string
	height int
	panels []panel
}

// gridWidth is that of Grafana's grid.
const gridWidth = 24

var source = &datasource{Type: "prometheus", UID: "${datasource}"}

// dashboard lays the rows out.
func dashboard() board {
	b := board{
		Title: "gpuslice", UID: "gpuslice",
		Description:   "GPUs that containers share: who was granted what, who uses what, whether isolation holds, and what the scheduler does. Wants install/monitoring/rules.yaml to be loaded.",
		Tags:          []string{"gpuslice", "gpu"},
		SchemaVersion: 39, Editable: true, Refresh: "30s",
		Time:       timeRange{From: "now-1h", To: "now"},
		Templating: templating{List: variables()},
	}
	y, id := 0, 0
	add := func(p panel, at position) {
		id++
		p.ID, p.GridPos = id, at
		b.Panels = append(b.Panels, p)
	}
	for _, r := range rows() {
		add(panel{Type: "row", Title: r.title}, position{H: 1, W: gridWidth, Y: y})
		y++
		width := gridWidth / len(r.panels)
		for i, p := range r.panels {
			add(p, position{H: r.height, W: width, X: i * width, Y: y})
		}
		y += r.height
	}
	return b
}

func variables() []variable {
	all := &selected{Text: "All", Value: "$__all"}
	values := func(name, label, query string) variable {
		return variable{Name: name, Label: label, Type: "query", Datasource: source, Refresh: 2, IncludeAll: true, Multi: true, AllValue: ".*",
			Current: all, Sort: 1, Query: map[string]string{"query": query, "refId": name}}
	}
	return []variable{
		{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"},
		values("node", "Node", "label_values(gpuslice_gpu_healthy, node)"),
		values("namespace", "Namespace", `label_values(gpuslice_container_memory_limit_bytes{node=~"$node"}, namespace)`),
	}
}

// query is an expression, and what its lines are called.
type query struct{ expr, legend string }

func number(f float64) *float64 { return &f }

// targets are named A, B, C, ...
func targets(queries []query, change func(*target)) (all []target) {
	for i, q := range queries {
		t := target{RefID: string(rune('A' + i)), Expr: q.expr, LegendFormat: q.legend, Datasource: source}
		change(&t)
		all = append(all, t)
	}
	return all
}

// stat is one number. It is red from bad on, unless that is 0.
func stat(title, unit string, bad float64, description, expr string) panel {
	steps := []step{{Color: "green"}}
	if bad > 0 {
		steps = append(steps, step{Color: "red", Value: &bad})
	}
	return panel{
		Type: "stat", Title: title, Description: description, Datasource: source,
		Targets:     targets([]query{{expr, ""}}, func(t *target) { t.Instant = true }),
		FieldConfig: &fieldConfig{Defaults: fieldDefaults{Unit: unit, Thresholds: &thresholds{"absolute", steps}}, Overrides: []override{}},
		Options:     map[string]any{"colorMode": "value", "graphMode": "none", "reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}}},
	}
}

// graph is lines over time. Ratios are drawn from 0 to 1 at least.
func graph(title, unit, description string, queries ...query) panel {
	d := fieldDefaults{Unit: unit, Min: number(0), Custom: map[string]any{"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}}
	if unit == "percentunit" {
		d.Custom["axisSoftMax"] = 1
	}
	return panel{
		Type: "timeseries", Title: title, Description: description, Datasource: source,
		Targets:     targets(queries, func(t *target) { t.Range = true }),
		FieldConfig: &fieldConfig{Defaults: d, Overrides: []override{}},
		Options:     map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom"}, "tooltip": map[string]any{"mode": "multi", "sort": "desc"}},
	}
}

// column is a number of each row of a table: what it is called, its unit, and where it comes from.
type column struct{ name, unit, expr string }

// table has a row for each set of labels, and a column for each of them and for each number.
func table(title, description string, labels []string, columns ...column) panel {
	p := panel{
		Type: "table", Title: title, Description: description, Datasource: source,
		FieldConfig: &fieldConfig{Overrides: []override{}},
		Options:     map[string]any{"showHeader": true},
	}
	names, order := map[string]string{}, map[string]int{}
	for i, label := range labels {
		order[label] = i
	}
	for i, c := range columns {
		id := string(rune('A' + i))
		value := "Value #" + id
		names[value], order[value] = c.name, len(labels)+i
		p.Targets = append(p.Targets, target{RefID: id, Expr: c.expr, Instant: true, Format: "table", Datasource: source})
		properties := []property{{"unit", c.unit}}
		if c.unit == "percentunit" {
			properties = append(properties, property{"min", 0}, property{"max", 1}, property{"custom.cellOptions", map[string]string{"type": "gauge", "mode": "basic"}})
		}
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, override{matcher{"byName", c.name}, properties})
	}
	p.Transformations = []transformation{
		{"merge", map[string]any{}},
		{"organize", map[string]any{"excludeByName": map[string]bool{"Time": true}, "indexByName": order, "renameByName": names}},
	}
	return p
}

// byGPU sums a metric of GPUs by the labels of a GPU.
func byGPU(metric string) string {
	return fmt.Sprintf(`sum by (node, index, model, uuid) (%s{node=~"$node"})`, metric)
}

// byContainer sums a metric of containers over their GPUs, and over a container's restarts.
func byContainer(metric string) string {
	return fmt.Sprintf(`sum by (node, namespace, pod, container) (%s{node=~"$node", namespace=~"$namespace"})`, metric)
}
