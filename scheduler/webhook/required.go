package webhook

import (
	"encoding/json"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// requiredPlugins is NRI's annotation (its pkg/plugin.RequiredPluginsAnnotation): a list in YAML
// of the plugins without which a container is not created. NRI's default validator reads, for each
// container, the first that is there of
//
//	required-plugins.noderesource.dev/container.<name>
//	required-plugins.noderesource.dev/pod
//	required-plugins.noderesource.dev
const requiredPlugins = "required-plugins.noderesource.dev"

// maxRequired bounds such a list: a name is short, and YAML is slow to read. The agent's own is 12 bytes.
const maxRequired = 4 << 10

// requiring are the annotations that a pod lacks for NRI to require the plugin for each of
// these containers. What else it requires stays. An error is for the pod's author. Each annotation is
// read once, however many containers go by it.
func requiring(annotations map[string]string, containers []string, plugin string) (map[string]string, error) {
	if plugin == "" {
		return nil, nil
	}
	lacks, read := map[string]string{}, map[string]bool{}
	for _, name := range containers {
		key := requiredPlugins
		for _, k := range []string{requiredPlugins + "/container." + name, requiredPlugins + "/pod"} {
			if _, there := annotations[k]; there {
				key = k
				break
			}
		}
		if read[key] {
			continue
		}
		read[key] = true
		with, err := requiringIn(key, annotations[key], plugin)
		if err != nil {
			return nil, err
		}
		if with != "" {
			lacks[key] = with
		}
	}
	return lacks, nil
}

// requiringIn is the annotation's list with the plugin; empty where it has it.
func requiringIn(key, text, plugin string) (string, error) {
	if len(text) > maxRequired {
		return "", fmt.Errorf("annotation %s: has %d bytes, and may have %d", key, len(text), maxRequired)
	}
	var list []string
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		return "", fmt.Errorf("annotation %s: must be a list of NRI plugins, such as [%q]", key, plugin)
	}
	if slices.ContainsFunc(list, func(entry string) bool { return isPlugin(entry, plugin) }) {
		return "", nil
	}
	data, err := json.Marshal(append(list, plugin))
	if err != nil {
		return "", fmt.Errorf("annotation %s: %w", key, err)
	}
	return string(data), nil
}

// isPlugin says whether an entry means the plugin: by its name, or with its index in front.
func isPlugin(entry, plugin string) bool {
	if entry == plugin {
		return true
	}
	const index = len("00-")
	return len(entry) > index && entry[index:] == plugin && entry[index-1] == '-'
}
