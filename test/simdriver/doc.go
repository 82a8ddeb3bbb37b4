// Package simdriver tests the simulated driver of testdata/simdriver and the workloads of testdata/workloads, and holds
// what a suite needs to use them: building them, making GPUs, starting programs on them, reading their state.
//
// It imports nothing of ours. It is imported by tests only.
package simdriver
