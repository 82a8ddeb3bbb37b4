// Package feedback corrects the shares of compute time: the limiter only estimates the cost of launches. A Loop reads
// the containers' use from NVML once per second, and writes a CoreState per GPU into their limits files. A container's
// own numbers decide only whether it wants more. Decide has the algorithm.
package feedback
