// Package audit compares the processes on a node's GPUs with the grants: tenants can disable the limiter, but
// not change NVML and /proc. The agent runs an Auditor. docs/AUDIT.md is the manual.
package audit
