// Package audit compares the processes on a node's GPUs with the grants: tenants can disable the limiter, but not change
// NVML and /proc. Auditor runs passes: Inspector reads a Snapshot, Find returns its problems, and History confirms
// violations and decides which processes to kill. docs/AUDIT.md is the manual.
package audit
