package noderegister

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

// maxLabel is Kubernetes' limit for values and for keys without prefix, in bytes.
const maxLabel = 63

const mixed = "mixed"

// labels describe the offered GPUs, healthy or not. Numbers are the minimum of the GPUs, and "mixed" matches
// no model, so that a selector never gets a GPU that it excludes.
func labels(n Node, o Options) map[string]string {
	l := map[string]string{}
	if o.TencentModel {
		if model := common(n.Devices, func(d Device) string { return tencentModel(d.GPU.Model) }); model != mixed {
			set(l, api.LabelTencentModel, model)
		}
	}
	ours := func(key, value string) { set(l, api.LabelPrefix+key, value) }
	ours("count", strconv.Itoa(len(n.Devices)))
	version(ours, "driver-version", n.DriverVersion)
	version(ours, "cuda-version", n.CUDAVersion)
	if n.MemoryEnforcement != "" {
		ours("memory-enforcement", n.MemoryEnforcement)
	}
	if len(n.Devices) == 0 {
		return l
	}
	if o.NVIDIALabels {
		maps.Copy(l, nvidiaLabels(n))
	}

	models := map[string]int{}
	for _, d := range n.Devices {
		models[labelValue(d.GPU.Model)]++
	}
	for model, count := range models {
		if model != "" {
			ours("model."+cut(model, maxLabel-len("gpu.model.")), strconv.Itoa(count))
		}
	}
	ours("model", common(n.Devices, func(d Device) string { return labelValue(d.GPU.Model) }))
	ours("memory", smallest(n.Devices, func(d Device) int64 { return d.GPU.MemoryMiB }))
	ours("replicas", smallest(n.Devices, func(d Device) int64 { return int64(d.Replicas) }))
	ours("mode", common(n.Devices, Device.mode))
	version(ours, "compute-capability", lowestCapability(n.Devices))
	ours("nvlink", nvlink(n.Devices, n.Topology))

	if !slices.ContainsFunc(n.Devices, func(d Device) bool { return !d.GPU.MIGCapable && !d.GPU.MIGEnabled }) {
		ours("mig.capable", "true")
	}
	ours("mig.enabled", common(n.Devices, func(d Device) string { return strconv.FormatBool(d.GPU.MIGEnabled) }))
	ours("mig.strategy", cmp.Or(string(n.MIGStrategy), string(nvidia.MIGNone)))
	profiles := map[string]int{}
	for _, d := range n.Devices {
		for _, instance := range d.GPU.MIG {
			profiles[instance.ResourceName()]++
		}
	}
	for profile, count := range profiles {
		ours(cut(profile, maxLabel-len("gpu.")), strconv.Itoa(count))
	}
	return l
}

func set(l map[string]string, key, value string) {
	if value = labelValue(value); value != "" {
		l[key] = value
	}
}

// version also sets .major and .minor, which selectors can compare (Gt, Lt).
func version(set func(key, value string), key, version string) {
	if version == "" {
		return
	}
	set(key, version)
	parts := strings.SplitN(version, ".", 3)
	for i, name := range []string{".major", ".minor"} {
		if i >= len(parts) {
			return
		}
		if _, err := strconv.ParseUint(parts[i], 10, 31); err != nil {
			return
		}
		set(key+name, parts[i])
	}
}

func common(devices []Device, of func(Device) string) string {
	value := ""
	for i, d := range devices {
		if v := of(d); i == 0 {
			value = v
		} else if v != value {
			return mixed
		}
	}
	return value
}

func smallest(devices []Device, of func(Device) int64) string {
	least := of(devices[0])
	for _, d := range devices[1:] {
		least = min(least, of(d))
	}
	return strconv.FormatInt(least, 10)
}

func lowestCapability(devices []Device) string {
	type capability struct{ major, minor int }
	var lowest capability
	for i, d := range devices {
		var c capability
		if _, err := fmt.Sscanf(d.GPU.ComputeCapability, "%d.%d", &c.major, &c.minor); err != nil {
			return ""
		}
		if i == 0 || c.major < lowest.major || c.major == lowest.major && c.minor < lowest.minor {
			lowest = c
		}
	}
	return fmt.Sprintf("%d.%d", lowest.major, lowest.minor)
}

func nvlink(devices []Device, t nvidia.Topology) string {
	linked, pairs := 0, 0
	for i, a := range devices {
		for _, b := range devices[:i] {
			pairs++
			if p, known := t.Pair(a.GPU.UUID, b.GPU.UUID); known && p.NVLinks > 0 {
				linked++
			}
		}
	}
	switch linked {
	case 0:
		return "none"
	case pairs:
		return "all"
	default:
		return "some"
	}
}

var invalidInLabels = regexp.MustCompile(`[^-_.A-Za-z0-9]+`)

// labelValue replaces each run of invalid characters by a hyphen, and trims the ends. It can be
// empty.
func labelValue(text string) string {
	return cut(invalidInLabels.ReplaceAllString(text, "-"), maxLabel)
}

// cut shortens a value; the ends stay letters or digits.
func cut(value string, most int) string {
	value = strings.TrimLeft(value, "-_.")
	return strings.TrimRight(value[:min(len(value), most)], "-_.")
}

var (
	brands = []string{"NVIDIA", "Tesla", "GeForce", "Quadro", "GRID"}
	series = []string{"RTX", "GTX", "GT", "TITAN"}
)

// tencentModel is gpu-manager's name of a model, without brand, memory and board: "Tesla M40 24GB"
// is M40, "NVIDIA A100-SXM4-80GB" A100, "GeForce RTX 2080" RTX-2080.
func tencentModel(name string) string {
	words := strings.Fields(name)
	for len(words) > 1 && slices.ContainsFunc(brands, sameWord(words[0])) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	if slices.ContainsFunc(series, sameWord(words[0])) {
		for i, w := range words {
			if i > 0 && isPackage(w) {
				words = words[:i]
				break
			}
		}
		return labelValue(strings.Join(words, "-"))
	}
	model, _, _ := strings.Cut(words[0], "-")
	return labelValue(model)
}

func sameWord(word string) func(string) bool {
	return func(other string) bool { return strings.EqualFold(word, other) }
}

func isPackage(word string) bool {
	word = strings.ToUpper(word)
	size, isSize := strings.CutSuffix(word, "GB")
	_, err := strconv.Atoi(size)
	return isSize && err == nil || word == "PCIE" || word == "NVL" || strings.HasPrefix(word, "SXM") || strings.HasPrefix(word, "HBM")
}
