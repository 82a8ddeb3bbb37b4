package webhook

import (
	"encoding/json"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// requiredPlugins is NRI's RequiredPluginsAnnotation, a YAML list. For each container, NRI's
// default validator reads the first of KEY/container.NAME, KEY/pod and KEY.
const requiredPlugins = "required-plugins.noderesource.dev"

// maxRequired limits the bytes of a list: YAML is slow to parse.
const maxRequired = 4 << 10

// missingRequirements returns the annotations to set so that NRI requires the plugin for these
// containers.
func missingRequirements(annotations map[string]string, containers []string, plugin string) (map[string]string, error) {
	if plugin == "" {
		return nil, nil
	}
	missing, done := map[string]string{}, map[string]bool{}
	for _, name := range containers {
		key := requiredPlugins
		for _, k := range []string{requiredPlugins + "/container." + name, requiredPlugins + "/pod"} {
			if _, there := annotations[k]; there {
				key = k
				break
			}
		}
		if done[key] {
			continue
		}
		done[key] = true
		with, err := addPlugin(key, annotations[key], plugin)
		if err != nil {
			return nil, err
		}
		if with != "" {
			missing[key] = with
		}
	}
	return missing, nil
}

// addPlugin returns the list with the plugin; "" if it has it.
func addPlugin(key, text, plugin string) (string, error) {
	if len(text) > maxRequired {
		return "", fmt.Errorf("annotation %s: %d bytes are more than the maximum of %d", key, len(text), maxRequired)
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

// isPlugin accepts the plugin's name and "NN-name", with its index.
func isPlugin(entry, plugin string) bool {
	if entry == plugin {
		return true
	}
	const index = len("00-")
	return len(entry) > index && entry[index:] == plugin && entry[index-1] == '-'
}
