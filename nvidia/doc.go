// Package nvidia reads a node's GPUs with NVML: [Discover] reads once; a [Cache] reads at an interval, so that
// its readers never wait for NVML. The agent uses a Cache, the CLI Discover.
package nvidia
