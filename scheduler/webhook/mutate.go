package webhook

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// taskPriority is HAMi's variable: "0" is high.
const taskPriority = "CUDA_TASK_PRIORITY"

// mutate is what a new pod lacks. It changes nothing that the author said, and nothing of
// what the pod asks for; of a pod that has it all, it is nothing. A pod that can't be read is left
// to validate, which says why.
func (r *Rules) mutate(pod *corev1.Pod) []operation {
	seen := kube.Pod(pod)
	asked, err := request.FromPod(seen, r.Request)
	if err != nil || asked == nil {
		return nil
	}
	var patch []operation
	if r.replaced(pod.Spec.SchedulerName) {
		patch = append(patch, add("/spec/schedulerName", r.SchedulerName))
	}
	if r.RuntimeClass != "" && pod.Spec.RuntimeClassName == nil {
		patch = append(patch, add("/spec/runtimeClassName", r.RuntimeClass))
	}
	for i, c := range seen.Containers {
		if asked.Containers[i].GPUs == 0 {
			continue
		}
		spec, path := containerAt(pod, i)
		patch = append(patch, r.count(spec, path, c, asked.Containers[i].GPUs)...)
		patch = append(patch, r.priority(spec, path, c)...)
	}
	// An error is the author's, and validate's to tell.
	if lacks, err := requiring(pod.Annotations, withGPUs(seen, asked), r.RequiredPlugin); err == nil {
		patch = append(patch, addToMap("/metadata/annotations", len(pod.Annotations) > 0, lacks)...)
	}
	return patch
}

// count says in the spec how many GPUs a container has that asks for memory or cores alone.
func (r *Rules) count(spec *corev1.Container, path string, c scheduler.Container, gpus int) []operation {
	names := &r.Request.Names
	if names.Count == "" || has(c, names.Count) || !has(c, names.Memory) && !has(c, names.MemoryPercentage) && !has(c, names.Cores) {
		return nil
	}
	entry := map[string]string{names.Count: strconv.Itoa(gpus)}
	// Kubernetes wants a limit, and a request that is equal to it.
	return append(addToMap(path+"/resources/limits", len(spec.Resources.Limits) > 0, entry),
		addToMap(path+"/resources/requests", len(spec.Resources.Requests) > 0, entry)...)
}

// priority hands the resource's value to the container, unless it has the variable.
func (r *Rules) priority(spec *corev1.Container, path string, c scheduler.Container) []operation {
	if !r.TaskPriority || !has(c, r.Request.Names.Priority) {
		return nil
	}
	for _, v := range spec.Env {
		if v.Name == taskPriority {
			return nil
		}
	}
	v := map[string]string{"name": taskPriority, "value": strconv.FormatInt(c.Resources[r.Request.Names.Priority].Value, 10)}
	if len(spec.Env) == 0 {
		return []operation{add(path+"/env", []any{v})}
	}
	return []operation{add(path+"/env/-", v)}
}

func has(c scheduler.Container, resource string) bool {
	_, there := c.Resources[resource]
	return resource != "" && there
}

// containerAt is the container at a position of scheduler.Pod, and its path in the pod.
func containerAt(pod *corev1.Pod, i int) (*corev1.Container, string) {
	if n := len(pod.Spec.InitContainers); i >= n {
		return &pod.Spec.Containers[i-n], "/spec/containers/" + strconv.Itoa(i-n)
	}
	return &pod.Spec.InitContainers[i], "/spec/initContainers/" + strconv.Itoa(i)
}

// withGPUs are the names of the containers that ask for GPUs.
func withGPUs(pod *scheduler.Pod, asked *request.Request) []string {
	var names []string
	for i, c := range pod.Containers {
		if asked.Containers[i].GPUs > 0 {
			names = append(names, c.Name)
		}
	}
	return names
}
