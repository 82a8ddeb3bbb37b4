//go:build root

package chart

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Agents write a condition of their Node, and have the right to, also where the driver limits memory.
func TestConditionOfTheDriversLimits(t *testing.T) {
	for mode, want := range map[string]bool{"limiter": false, "auto": true, "native": true} {
		condition, status := false, false
		for _, object := range objects(t, render(t, "gpus", `agent.config={"memory-enforcement":"`+mode+`"}`)) {
			switch o := object.(type) {
			case *appsv1.DaemonSet:
				condition = condition || slices.Contains(o.Spec.Template.Spec.Containers[0].Args, "--node-condition")
			case *rbacv1.ClusterRole:
				for _, rule := range o.Rules {
					status = status || slices.Contains(rule.Resources, "nodes/status")
				}
			}
		}
		require.Equal(t, []bool{want, want}, []bool{condition, status}, mode)
	}
}

// A Job of `helm test` for each node: two containers request shares as a user's do, and nothing of them has rights. Only then agents
// write the node's condition, and have the right to.
func TestVerify(t *testing.T) {
	for enabled, values := range map[bool][]string{true: variants["verify"], false: nil} {
		var jobs []*batchv1.Job
		condition, status, admitted := false, false, false
		for _, object := range objects(t, render(t, "gpus", values...)) {
			switch o := object.(type) {
			case *batchv1.Job:
				if o.Annotations["helm.sh/hook"] == "test" {
					jobs = append(jobs, o)
				}
			case *appsv1.DaemonSet:
				condition = condition || slices.Contains(o.Spec.Template.Spec.Containers[0].Args, "--node-condition")
			case *schedulingv1.PriorityClass:
				require.Equal(t, corev1.PreemptNever, *o.PreemptionPolicy)
				require.Negative(t, o.Value)
			case *rbacv1.ClusterRole:
				for _, rule := range o.Rules {
					status = status || slices.Contains(rule.Resources, "nodes/status")
				}
			case *networkingv1.NetworkPolicy:
				for _, rule := range o.Spec.Ingress {
					for _, from := range rule.From {
						admitted = admitted || from.PodSelector != nil && from.PodSelector.MatchLabels["app.kubernetes.io/component"] == "verify" && from.NamespaceSelector == nil
					}
				}
			}
		}
		require.Equal(t, []bool{enabled, enabled, enabled}, []bool{condition, status, admitted})
		if !enabled {
			require.Empty(t, jobs)
			continue
		}
		require.Len(t, jobs, 2)
		for i, job := range jobs {
			pod := job.Spec.Template.Spec
			require.Equal(t, map[string]string{"kubernetes.io/hostname": []string{"node-1", "node-2"}[i]}, pod.NodeSelector)
			require.False(t, *pod.AutomountServiceAccountToken)
			require.Empty(t, pod.ServiceAccountName)
			require.Equal(t, "gpuslice-verify", pod.PriorityClassName)
			require.False(t, pod.HostPID || pod.HostNetwork || pod.HostIPC)
			cores := map[string]string{"first": "30", "second": "60", "verify": "0"}
			for _, c := range pod.Containers {
				got := c.Resources.Limits["nvidia.com/gpucores"]
				require.Equal(t, cores[c.Name], got.String(), c.Name)
				if delete(cores, c.Name); c.Name == "verify" {
					require.Contains(t, c.Args, "--agent=$(GPUSLICE_VERIFY_PORT)", "of the Service")
					continue
				}
				memory, count := c.Resources.Limits["nvidia.com/gpumem"], c.Resources.Limits["nvidia.com/gpu"]
				require.Equal(t, []string{"2048", "1"}, []string{memory.String(), count.String()}, "what package verify expects")
				require.False(t, slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "report" }))
				require.True(t, *c.SecurityContext.RunAsNonRoot)
			}
			require.Empty(t, cores)
		}
	}
	for _, wrong := range []string{
		"agent.metricsPort=0", "agent.enabled=false", "resourceNames.cores=-", "openshift.enabled=true",
	} {
		_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set", "verify.enabled=true,"+wrong)
		require.Error(t, err, wrong)
		require.Contains(t, errs, "verify.enabled", wrong)
	}
	require.Len(t, slices.DeleteFunc(objects(t, render(t, "gpus", `verify.enabled=true`)), func(o runtime.Object) bool {
		job, is := o.(*batchv1.Job)
		return !is || job.Annotations["helm.sh/hook"] != "test"
	}), 1, "without names of nodes: one that has room")
}
