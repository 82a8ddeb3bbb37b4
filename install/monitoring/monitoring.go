// Package monitoring has what Prometheus and Grafana are given: rules.yaml, and the
// dashboard, of which panels.go is the description and dashboard.json what Grafana
// imports (`make generate` writes it). test/monitoring compares both with the metrics that
// are really exported. It imports nothing of ours.
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

// JSON is the dashboard as Grafana imports it.
func JSON() ([]byte, error) {
	data, err := json.MarshalIndent(dashboard(), "", " ")
	return append(data, '\n'), err
}
