// Package audit compares every few seconds what runs on the node's GPUs with what was
// granted. It is the backstop of the limiter, which works inside the containers: what a
// tenant does to its own processes it can't do to NVML's list and the kernel's /proc.
//
//   - look.go: what one look has found out, as plain data
//   - find.go: what of it is wrong; pure
//   - history.go: since when, and whom the policy lets end; pure
//   - inspect.go, group.go, maps.go, descriptors.go: the container of a process, the
//     files that it has mapped and the GPUs that it has open, by /proc
//   - kill.go: the end of a process, by a pidfd
//   - report.go: metrics, events, the log
//   - auditor.go: the loop
//
// cmd/gpuslice-agent wires it up. docs/AUDIT.md is its manual.
package audit
