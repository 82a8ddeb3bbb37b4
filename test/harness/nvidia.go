package harness

import (
	"fmt"
	"os"
	"path/filepath"
)

// NvidiaRuntime is the path of NVIDIA's own container runtime.
func NvidiaRuntime() (string, error) { return tool("--where-nvidia", "nvidia-container-runtime") }

// NvidiaConfig are settings of NVIDIA's container runtime.
type NvidiaConfig struct {
	// IgnoreVariables makes it ignore the variables of unprivileged containers
	// (accept-nvidia-visible-devices-envvar-when-unprivileged = false).
	IgnoreVariables bool
	// AcceptMounts makes it read volume mounts (accept-nvidia-visible-devices-as-volume-mounts).
	AcceptMounts bool
}

// WriteNvidiaConfig writes the configuration of NVIDIA's container runtime, which injects
// this machine's simulated GPUs from their CDI spec.
func (m *Machine) WriteNvidiaConfig(c NvidiaConfig) error {
	return os.WriteFile(m.nvidiaConfigPath(), fmt.Appendf(nil, `accept-nvidia-visible-devices-envvar-when-unprivileged = %v
accept-nvidia-visible-devices-as-volume-mounts = %v
swarm-resource = "DOCKER_RESOURCE_GPU"
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["runc"]
[nvidia-container-runtime.modes.cdi]
spec-dirs = [%q]
[features]
disable-cuda-compat-lib-hook = true
`, !c.IgnoreVariables, c.AcceptMounts, m.CDIDir()), 0o644)
}

func (m *Machine) nvidiaConfigPath() string { return filepath.Join(m.Dir, "nvidia.toml") }
