// Package clients runs programs of other projects, as Debian 12 and NVIDIA have them, on simulated GPUs, with and without
// limits. docs/CLIENTS.md has what they see.
package clients
