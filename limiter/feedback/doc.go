// Package feedback corrects the shares of compute time, because the limiter only estimates the cost of
// launches: once per second, a Loop reads the containers' use from NVML and writes a CoreState per GPU into
// their limits files. A container's own numbers decide only whether it wants more. The agent runs it.
package feedback
