// Package versions runs the scheduler on API servers that emulate Kubernetes 1.33, 1.34 and 1.35, and with the rights that
// Kubernetes 1.30 gives to a scheduler.
package versions
