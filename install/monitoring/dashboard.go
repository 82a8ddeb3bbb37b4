package monitoring

import "fmt"

// Grafana's dashboard model: schema version 39, Grafana 10.4 and later.
type (
	object = map[string]any
	list   = []any

	board struct {
		Title         string  `json:"title"`
		UID           string  `json:"uid"`
		Description   string  `json:"description"`
		Tags          list    `json:"tags"`
		SchemaVersion int     `json:"schemaVersion"`
		Editable      bool    `json:"editable"`
		Refresh       string  `json:"refresh"`
		Time          object  `json:"time"`
		Templating    object  `json:"templating"`
		Panels        []panel `json:"panels"`
	}

	panel struct {
		ID              int      `json:"id"`
		Type            string   `json:"type"`
		Title           string   `json:"title"`
		Description     string   `json:"description,omitempty"`
		GridPos         position `json:"gridPos"`
		Datasource      object   `json:"datasource,omitempty"`
		Targets         list     `json:"targets,omitempty"`
		FieldConfig     object   `json:"fieldConfig,omitempty"`
		Options         object   `json:"options,omitempty"`
		Transformations list     `json:"transformations,omitempty"`
	}

	position struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
)

type row struct {
	title  string
	height int
	panels []panel
}

const gridWidth = 24

var source = object{"type": "prometheus", "uid": "${datasource}"}

func dashboard() board {
	b := board{
		Title: "gpuslice", UID: "gpuslice",
		Description:   "Shared GPUs: grants, use, isolation and scheduling. Needs the recording rules of install/monitoring/rules.yaml.",
		Tags:          list{"gpuslice", "gpu"},
		SchemaVersion: 39, Editable: true, Refresh: "30s",
		Time: object{"from": "now-1h", "to": "now"},
		Templating: object{"list": list{
			object{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "includeAll": false, "multi": false},
			variable("node", "Node", "label_values(gpuslice_gpu_healthy, node)"),
			variable("namespace", "Namespace", `label_values(gpuslice_container_memory_limit_bytes{node=~"$node"}, namespace)`),
		}},
	}
	y := 0
	add := func(p panel, at position) {
		p.ID, p.GridPos = len(b.Panels)+1, at
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

// variable selects label values, read again when the time range changes (refresh 2).
func variable(name, label, query string) object {
	return object{
		"name": name, "label": label, "type": "query", "query": object{"query": query, "refId": name}, "datasource": source, "refresh": 2,
		"includeAll": true, "multi": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}, "sort": 1,
	}
}

// query is an expression and the legend of its series.
type query struct{ expr, legend string }

func target(index int, expr string, more object) object {
	t := object{"refId": string(rune('A' + index)), "expr": expr, "datasource": source}
	for k, v := range more {
		t[k] = v
	}
	return t
}

// stat shows one number, in red from bad on; 0 is never.
func stat(title, unit string, bad float64, description, expr string) panel {
	steps := list{object{"color": "green", "value": nil}}
	if bad > 0 {
		steps = append(steps, object{"color": "red", "value": bad})
	}
	return panel{
		Type: "stat", Title: title, Description: description, Datasource: source,
		Targets:     list{target(0, expr, object{"instant": true})},
		FieldConfig: object{"defaults": object{"unit": unit, "thresholds": object{"mode": "absolute", "steps": steps}}, "overrides": list{}},
		Options:     object{"colorMode": "value", "graphMode": "none", "reduceOptions": object{"calcs": list{"lastNotNull"}}},
	}
}

// graph shows lines over time. The axis of a ratio is at least from 0 to 1.
func graph(title, unit, description string, queries ...query) panel {
	custom := object{"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
	if unit == "percentunit" {
		custom["axisSoftMax"] = 1
	}
	p := panel{
		Type: "timeseries", Title: title, Description: description, Datasource: source,
		FieldConfig: object{"defaults": object{"unit": unit, "min": 0, "custom": custom}, "overrides": list{}},
		Options:     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}},
	}
	for i, q := range queries {
		p.Targets = append(p.Targets, target(i, q.expr, object{"legendFormat": q.legend, "range": true}))
	}
	return p
}

type column struct{ name, unit, expr string }

// table has a row for each set of labels, and a column for each label and number.
func table(title, description string, labels []string, columns ...column) panel {
	p := panel{Type: "table", Title: title, Description: description, Datasource: source, Options: object{"showHeader": true}}
	names, order, overrides := object{}, object{}, list{}
	for i, label := range labels {
		order[label] = i
	}
	for i, c := range columns {
		value := "Value #" + string(rune('A'+i))
		names[value], order[value] = c.name, len(labels)+i
		p.Targets = append(p.Targets, target(i, c.expr, object{"instant": true, "format": "table"}))
		property := func(id string, value any) object { return object{"id": id, "value": value} }
		properties := list{property("unit", c.unit)}
		if c.unit == "percentunit" {
			properties = append(properties, property("min", 0), property("max", 1), property("custom.cellOptions", object{"type": "gauge", "mode": "basic"}))
		}
		overrides = append(overrides, object{"matcher": object{"id": "byName", "options": c.name}, "properties": properties})
	}
	p.FieldConfig = object{"defaults": object{}, "overrides": overrides}
	p.Transformations = list{
		object{"id": "merge", "options": object{}},
		object{"id": "organize", "options": object{"excludeByName": object{"Time": true}, "indexByName": order, "renameByName": names}},
	}
	return p
}

func byGPU(metric string) string {
	return fmt.Sprintf(`sum by (node, index, model, uuid) (%s{node=~"$node"})`, metric)
}

func byContainer(metric string) string {
	return fmt.Sprintf(`sum by (node, namespace, pod, container) (%s{node=~"$node", namespace=~"$namespace"})`, metric)
}
