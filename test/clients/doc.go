// Package clients runs programs of other projects, as Debian 12 has them, on simulated GPUs, with and without a limit.
// docs/CLIENTS.md has what they see.
package clients
