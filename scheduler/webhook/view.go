package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxContainers is how many containers of a pod are read; one with GPUs may have fewer (grant.MaxContainers).
const maxContainers = 1024

// view is what is read of a pod. The whole of it is not: an author can write lists of empty
// objects that are a hundred times as large in memory as in JSON.
type view struct {
	Metadata struct {
		Name        string            `json:"name"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		SchedulerName    string          `json:"schedulerName"`
		NodeName         string          `json:"nodeName"`
		RuntimeClassName *string         `json:"runtimeClassName"`
		Priority         *int32          `json:"priority"`
		HostPID          bool            `json:"hostPID"`
		InitContainers   []containerView `json:"initContainers"`
		Containers       []containerView `json:"containers"`
	} `json:"spec"`
}

type containerView struct {
	Name string `json:"name"`
	Env  []struct {
		Name string `json:"name"`
	} `json:"env"`
	Resources struct {
		Limits   corev1.ResourceList `json:"limits"`
		Requests corev1.ResourceList `json:"requests"`
	} `json:"resources"`
	SecurityContext struct {
		Privileged   *bool `json:"privileged"`
		Capabilities struct {
			Add []corev1.Capability `json:"add"`
		} `json:"capabilities"`
	} `json:"securityContext"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
}

// counted is an element of a list that is only counted. It takes no memory.
type counted struct{}

// UnmarshalJSON reads nothing.
func (*counted) UnmarshalJSON([]byte) error { return nil }

// decodePod reads a pod, which is of the namespace of the review: its own may be left out.
func decodePod(raw []byte, namespace string) (*corev1.Pod, error) {
	var count struct {
		Spec struct {
			InitContainers []counted `json:"initContainers"`
			Containers     []counted `json:"containers"`
		} `json:"spec"`
	}
	if err := decodeObject(raw, &count); err != nil {
		return nil, err
	}
	if n := len(count.Spec.InitContainers) + len(count.Spec.Containers); n > maxContainers {
		return nil, fmt.Errorf("the pod has %d containers: at most %d are read", n, maxContainers)
	}
	var v view
	if err := decodeObject(raw, &v); err != nil {
		return nil, err
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.Metadata.Name, Labels: v.Metadata.Labels, Annotations: v.Metadata.Annotations},
		Spec: corev1.PodSpec{
			SchedulerName: v.Spec.SchedulerName, NodeName: v.Spec.NodeName, RuntimeClassName: v.Spec.RuntimeClassName, Priority: v.Spec.Priority, HostPID: v.Spec.HostPID,
			InitContainers: containersOf(v.Spec.InitContainers), Containers: containersOf(v.Spec.Containers),
		},
	}, nil
}

func containersOf(views []containerView) []corev1.Container {
	list := make([]corev1.Container, len(views))
	for i, v := range views {
		list[i] = corev1.Container{
			Name: v.Name, RestartPolicy: v.RestartPolicy,
			Resources: corev1.ResourceRequirements{Limits: v.Resources.Limits, Requests: v.Resources.Requests},
			SecurityContext: &corev1.SecurityContext{
				Privileged: v.SecurityContext.Privileged, Capabilities: &corev1.Capabilities{Add: v.SecurityContext.Capabilities.Add},
			},
		}
		for _, e := range v.Env {
			list[i].Env = append(list[i].Env, corev1.EnvVar{Name: e.Name})
		}
	}
	return list
}
