// Package slice implements CDI devices gpuslice.io/slice=NAME: a fixed share of fixed GPUs for one container
// at a time, with plain runc or crun. Package cdispec makes them. Their CDI spec mounts the limiter's files
// and names two hooks ([Main]): createRuntime claims the share or refuses the container, poststop releases it
// and makes new files. docs/CDI.md has the guarantees.
//
//	<state>/slices/<name>/slice.json            the slice
//	<state>/slices/<name>/vgpu/{limits,usage}   the limiter's files, in a file system of their own
//	<state>/slices/<name>/claimed               exists from a claim until the files are renewed
//	<state>/slices/lock                         flock of each change
package slice
