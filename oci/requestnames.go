package oci

import (
	"os"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// ToolkitConfig is NVIDIA's container toolkit's.
const ToolkitConfig = "/etc/nvidia-container-runtime/config.toml"

// defaultRequestName is in NVIDIA's documentation of swarm-resource. It is always included, because an agent in a
// container can't read the configuration.
const defaultRequestName = "DOCKER_RESOURCE_GPU"

// HostRequestNames returns the variables that NVIDIA's runtime prefers to NVIDIA_VISIBLE_DEVICES on this node.
func HostRequestNames() []string {
	data, err := os.ReadFile(ToolkitConfig)
	if err != nil {
		return []string{defaultRequestName}
	}
	return append(UnknownRequestNames(string(data)), defaultRequestName)
}

// UnknownRequestNames returns names that an agent without access to the configuration does not void.
func UnknownRequestNames(config string) []string {
	return slices.DeleteFunc(RequestNames(config), func(name string) bool { return name == defaultRequestName })
}

// RequestNames reads swarm-resource from the toolkit's configuration. It uses no TOML library, because the runtime
// wrapper starts several times for each container.
func RequestNames(config string) (names []string) {
	for line := range strings.Lines(config) {
		key, value, is := strings.Cut(strings.TrimSpace(line), "=")
		if strings.HasPrefix(key, "[") {
			break // the first table
		}
		if key = strings.Trim(strings.TrimSpace(key), `"'`); !is || key != "swarm-resource" {
			continue
		}
		value = strings.TrimSpace(value)
		if value == "" || value[0] != '"' && value[0] != '\'' {
			continue
		}
		value, _, _ = strings.Cut(value[1:], value[:1])
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !strings.Contains(name, "=") && name != api.EnvVisibleDevices {
				names = append(names, name)
			}
		}
	}
	return names
}

func (c Container) requested() (names []string) {
	for _, name := range c.RequestNames {
		if _, set := c.getenv(name); set {
			names = append(names, name)
		}
	}
	return names
}
