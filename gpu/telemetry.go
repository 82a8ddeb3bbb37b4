package gpu

import "time"

// Telemetry is what a card, or a MIG device, does at a moment. What NVML does not say of
// it is nil: a MIG device has no temperature of its own, nor use of its processors.
type Telemetry struct {
	// Taken is when it was read.
	Taken time.Time `json:"taken"`
	// MemoryUsedBytes is what is used of the card, by whomever.
	MemoryUsedBytes  *uint64 `json:"memoryUsedBytes,omitempty"`
	MemoryTotalBytes *uint64 `json:"memoryTotalBytes,omitempty"`
	// UtilizationPercent is the part of the time in which some kernel ran.
	UtilizationPercent *int `json:"utilizationPercent,omitempty"`
	// MemoryControllerPercent is the part of the time in which memory was read or written.
	MemoryControllerPercent *int    `json:"memoryControllerPercent,omitempty"`
	TemperatureCelsius      *int    `json:"temperatureCelsius,omitempty"`
	PowerMilliwatts         *uint32 `json:"powerMilliwatts,omitempty"`
}
