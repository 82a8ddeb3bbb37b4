package hardware

import "time"

// Telemetry is the state of a GPU or a MIG device. Values that NVML does not have are nil.
type Telemetry struct {
	Taken time.Time `json:"taken"`
	// MemoryUsedBytes includes the driver's own memory only with drivers before 510.
	MemoryUsedBytes         *uint64 `json:"memoryUsedBytes,omitempty"`
	MemoryTotalBytes        *uint64 `json:"memoryTotalBytes,omitempty"`
	UtilizationPercent      *int    `json:"utilizationPercent,omitempty"`
	MemoryControllerPercent *int    `json:"memoryControllerPercent,omitempty"`
	TemperatureCelsius      *int    `json:"temperatureCelsius,omitempty"`
	PowerMilliwatts         *uint32 `json:"powerMilliwatts,omitempty"`
}

// TimeSource is where the use of a GPU's time by single containers comes from.
type TimeSource string

const (
	TimesBySamples TimeSource = "nvmlDeviceGetProcessUtilization"
	TimesByInfo    TimeSource = "nvmlDeviceGetProcessesUtilizationInfo"
	// TimesByLimiter: NVML has no figures of processes, and only the limiter measures.
	TimesByLimiter TimeSource = "limiter"
)
