// Package monitoring has rules for Prometheus and a dashboard for Grafana: `make generate` writes dashboard.json.
package monitoring

import (
	_ "embed"
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
