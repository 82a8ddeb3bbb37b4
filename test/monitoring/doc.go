// Package monitoring tests install/monitoring against the metrics that the agent and the
// scheduler really export: Prometheus' own engine evaluates every panel and rule on what
// their registries give, and promtool runs the rules' unit tests (rules_test.yaml). Package
// browser looks at the built-in pages in Chromium. It is a module of its own, so that what
// ships depends on neither.
package monitoring
