// Package monitoring tests install/monitoring against the metrics that the agent and the
// scheduler really export: Prometheus' engine evaluates every panel and rule on the
// metrics of their registries, and promtool runs the rules' unit tests (rules_test.yaml). Package
// browser looks at the built-in pages in Chromium. It is a separate module, so that
// gpuslice depends on neither.
package monitoring
