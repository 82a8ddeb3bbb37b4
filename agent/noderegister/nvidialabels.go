package noderegister

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// nvidiaLabels are as feature discovery writes them. Where GPUs differ it describes one of them; here memory and capability are
// the minimum, and there is no product and no family.
func nvidiaLabels(n Node) map[string]string {
	l := map[string]string{}
	write := func(key, value string) { set(l, api.NVIDIAPrefix+key, value) }
	same := func(key string, of func(Device) string) {
		if value := common(n.Devices, of); value != mixed {
			write(key, value)
		}
	}
	same("gpu.product", func(d Device) string { return product(d.GPU.Model) })
	same("gpu.family", func(d Device) string { return family(d.GPU.ComputeCapability) })
	write("gpu.memory", smallest(n.Devices, func(d Device) int64 { return d.GPU.MemoryMiB }))
	write("gpu.count", strconv.Itoa(len(n.Devices)))
	parts := func(key, version string, names ...string) {
		for i, number := range strings.SplitN(version, ".", len(names)) {
			if number != "" {
				write(key+names[i], number)
			}
		}
	}
	parts("gpu.compute.", lowestCapability(n.Devices), "major", "minor")
	write("mig.capable", strconv.FormatBool(slices.ContainsFunc(n.Devices, func(d Device) bool { return d.GPU.MIGCapable || d.GPU.MIGEnabled })))
	write("cuda.driver-version.full", n.DriverVersion)
	parts("cuda.driver-version.", n.DriverVersion, "major", "minor", "revision")
	write("cuda.runtime-version.full", n.CUDAVersion)
	parts("cuda.runtime-version.", n.CUDAVersion, "major", "minor")
	return l
}

var notInProducts = regexp.MustCompile(`[^A-Za-z0-9-_. ]`)

func product(model string) string {
	return strings.Join(strings.Fields(notInProducts.ReplaceAllString(model, "")), "-")
}

var families = map[string]string{
	"1": "tesla", "2": "fermi", "3": "kepler", "5": "maxwell", "6": "pascal", "7": "volta", "8": "ampere", "9": "hopper",
	"10": "blackwell", "12": "blackwell", "13": "rubin",
	"7.5": "turing", "8.9": "ada-lovelace",
}

func family(capability string) string {
	if name, ok := families[capability]; ok {
		return name
	}
	major, _, _ := strings.Cut(capability, ".")
	if name, ok := families[major]; ok {
		return name
	}
	return "undefined"
}
