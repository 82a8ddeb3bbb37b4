// Package audit compares every few seconds what runs on the node's cards with what was
// granted. It is the backstop of the limiter, which works inside the containers: what a
// tenant does to its own processes it can't do to NVML's list and the kernel's /proc.
//
//   - look.go: what one look has found out, as plain data
//   - find.go: what of it is wrong; pure
//   - history.go: since when, and whom the policy lets end; pure
//   - inspect.go, group.go, maps.go, ancestors.go: whose a process is and what it has
//     mapped, by /proc
//   - kill.go: the end of a process, by a pidfd
//   - report.go: metrics, events, the log
//   - auditor.go: the loop
//
// It imports gpu, limiter, monitor/cores (whose process it is) and oci/claimed (which
// process it is), and is wired up by cmd/gpuslice-agent. docs/AUDIT.md is its manual.
package audit
