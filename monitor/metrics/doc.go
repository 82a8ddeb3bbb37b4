// Package metrics exports a node's GPUs, containers and agent counters to Prometheus.
// Node reads GPUs and containers at each scrape, once for all of its metrics. NRI
// counts over time. NewHandler serves the registry. docs/METRICS.md lists all metrics.
package metrics
