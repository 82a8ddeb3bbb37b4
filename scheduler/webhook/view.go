package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const maxContainers = 1024 // see also grant.MaxContainers

// view has the fields that are read. Lists of empty objects in a complete pod would need a hundred
// times as much memory as their JSON.
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

type counted struct{}

// UnmarshalJSON ignores the value.
func (*counted) UnmarshalJSON([]byte) error { return nil }

// decodePod sets the review's namespace: the pod's own may be missing.
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
		return nil, fmt.Errorf("the pod has %d containers: the maximum is %d", n, maxContainers)
	}
	var v view
	if err := decodeObject(raw, &v); err != nil {
		return nil, err
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.Metadata.Name, Labels: v.Metadata.Labels,
			Annotations: v.Metadata.Annotations},
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
