// Package faults tries to get a GPU past the agent while something is broken: every
// state of the plugin times every kind of container, on a real containerd, at
// least fifty containers each. It takes minutes and is run by `make test-faults`.
// What comes out is in docs/FAULTS.md.
package faults
