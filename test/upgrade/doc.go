// Package upgrade tests that versions of gpuslice can read each other's data: this version reads what the
// last one wrote (testdata/compat), and the last one's readers (previous.go) read what this one writes. The
// rule is in docs/UPGRADING.md. test/e2e tests on a real Kubernetes that no job is disturbed meanwhile.
package upgrade
