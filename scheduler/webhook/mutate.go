package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// mutate changes no value of the author. It ignores invalid requests: validate reports them.
func (r *Rules) mutate(pod *corev1.Pod) []operation {
	model := convert.Pod(pod)
	req, err := request.FromPod(model, r.Request)
	if err != nil || req == nil {
		return nil
	}
	var patch []operation
	if r.replaced(pod.Spec.SchedulerName) {
		patch = append(patch, add("/spec/schedulerName", r.SchedulerName))
	}
	if r.RuntimeClass != "" && pod.Spec.RuntimeClassName == nil {
		patch = append(patch, add("/spec/runtimeClassName", r.RuntimeClass))
	}
	for i, c := range model.Containers {
		if req.Containers[i].GPUs == 0 {
			continue
		}
		spec, path := containerAt(pod, i)
		patch = append(patch, r.count(spec, path, c, req.Containers[i].GPUs)...)
		patch = append(patch, r.priority(spec, path, c)...)
	}
	if missing, err := missingRequirements(pod.Annotations, withGPUs(model, req), r.RequiredPlugin); err == nil {
		patch = append(patch, addToMap("/metadata/annotations", len(pod.Annotations) > 0, missing)...)
	}
	return patch
}

// count adds the number of GPUs if only memory or cores are requested.
func (r *Rules) count(spec *corev1.Container, path string, c scheduler.Container, gpus int) []operation {
	names := &r.Request.Names
	if names.Count == "" || has(c, names.Count) || !has(c, names.Memory) && !has(c, names.MemoryPercentage) && !has(c, names.Cores) {
		return nil
	}
	entry := map[string]string{names.Count: strconv.Itoa(gpus)}
	// Kubernetes requires an equal limit and request.
	return append(addToMap(path+"/resources/limits", len(spec.Resources.Limits) > 0, entry),
		addToMap(path+"/resources/requests", len(spec.Resources.Requests) > 0, entry)...)
}

func (r *Rules) priority(spec *corev1.Container, path string, c scheduler.Container) []operation {
	if !r.TaskPriority || !has(c, r.Request.Names.Priority) {
		return nil
	}
	for _, v := range spec.Env {
		if v.Name == api.EnvTaskPriority {
			return nil
		}
	}
	v := map[string]string{"name": api.EnvTaskPriority, "value": strconv.FormatInt(c.Resources[r.Request.Names.Priority].Value, 10)}
	if len(spec.Env) == 0 {
		return []operation{add(path+"/env", []any{v})}
	}
	return []operation{add(path+"/env/-", v)}
}

func has(c scheduler.Container, resource string) bool {
	_, there := c.Resources[resource]
	return resource != "" && there
}

// containerAt returns the container at a position of scheduler.Pod.Containers, and its path.
func containerAt(pod *corev1.Pod, i int) (*corev1.Container, string) {
	if n := len(pod.Spec.InitContainers); i >= n {
		return &pod.Spec.Containers[i-n], "/spec/containers/" + strconv.Itoa(i-n)
	}
	return &pod.Spec.InitContainers[i], "/spec/initContainers/" + strconv.Itoa(i)
}

func withGPUs(pod *scheduler.Pod, req *request.Request) []string {
	var names []string
	for i, c := range pod.Containers {
		if req.Containers[i].GPUs > 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

// operation is of a JSON patch (RFC 6902). "add" also replaces.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func add(path string, value any) operation { return operation{"add", path, value} }

// token escapes a name for a path (RFC 6901).
var token = strings.NewReplacer("~", "~0", "/", "~1").Replace

// addToMap creates the map if needed.
func addToMap(path string, there bool, entries map[string]string) []operation {
	if len(entries) == 0 {
		return nil
	}
	if !there {
		return []operation{add(path, entries)}
	}
	var patch []operation
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		patch = append(patch, add(path+"/"+token(key), entries[key]))
	}
	return patch
}

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
