// Package upgrade tests that versions of gpuslice understand each other: what the last one wrote (testdata/compat) is read
// by this one, and what this one writes is read by the last one's readers (previous.go). The rule is docs/UPGRADING.md's;
// that nobody's job is hurt meanwhile is tested on a real Kubernetes, in test/e2e.
package upgrade
