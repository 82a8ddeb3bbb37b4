// Package feedback corrects the shares of compute time. The limiter estimates the cost of launches. Once per second a
// Loop reads from NVML what each container used, and writes into the limits files whether a GPU is contended, which
// containers are blocked by a higher priority, a correction of the share, and the present value of a soft ceiling.
// A container's own numbers decide only whether it wants more. Decide has the whole algorithm.
package feedback
