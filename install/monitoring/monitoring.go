// Package monitoring has rules for Prometheus and a dashboard for Grafana.
package monitoring

import _ "embed"

// Rules are Prometheus' recording and alert rules.
//
//go:embed rules.yaml
var Rules []byte

// Dashboard is the dashboard that Grafana imports.
//
//go:embed dashboard.json
var Dashboard []byte
