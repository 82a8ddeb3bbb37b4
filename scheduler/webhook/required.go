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

// requiring are the annotations that a pod lacks for NRI to require the plugin for each of
// these containers. What else it requires stays. An error is for the pod's author.
func requiring(annotations map[string]string, containers []string, plugin string) (map[string]string, error) {
	if plugin == "" {
		return nil, nil
	}
	lacks := map[string]string{}
	for _, name := range containers {
		key := requiredPlugins
		for _, k := range []string{requiredPlugins + "/container." + name, requiredPlugins + "/pod"} {
			if _, there := annotations[k]; there {
				key = k
				break
			}
		}
		var list []string
		if err := yaml.Unmarshal([]byte(annotations[key]), &list); err != nil {
			return nil, fmt.Errorf("annotation %s: must be a list of NRI plugins, such as [%q]", key, plugin)
		}
		if slices.ContainsFunc(list, func(entry string) bool { return isPlugin(entry, plugin) }) {
			continue
		}
		data, err := json.Marshal(append(list, plugin))
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", key, err)
		}
		lacks[key] = string(data)
	}
	return lacks, nil
}

// isPlugin says whether an entry means the plugin: by its name, or with its index in front.
func isPlugin(entry, plugin string) bool {
	if entry == plugin {
		return true
	}
	const index = len("00-")
	return len(entry) > index && entry[index:] == plugin && entry[index-1] == '-'
}
