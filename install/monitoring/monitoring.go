// Package monitoring has the rules for Prometheus and the dashboard for Grafana. panels.go describes the dashboard, and
// `make generate` writes dashboard.json. test/monitoring compares both with the exported metrics.
package monitoring

import (
	_ "embed" // the rules and the dashboard
	"encoding/json"
)

// Rules are Prometheus' recording and alert rules.
//
//go:embed rules.yaml
var Rules []byte

// Imported is dashboard.json.
//
//go:embed dashboard.json
var Imported []byte

// JSON is the dashboard that Grafana imports.
func JSON() ([]byte, error) {
	data, err := json.MarshalIndent(dashboard(), "", " ")
	return append(data, '\n'), err
}
