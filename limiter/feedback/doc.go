// Package feedback measures what containers use of the GPUs: once per second, a Loop reads NVML, attributes its figures
// to containers, and writes the memory that only the driver counts into their limits files. The agent runs it.
package feedback
