// Package versions runs the scheduler on API servers that emulate Kubernetes 1.33, 1.34 and 1.35.
package versions
