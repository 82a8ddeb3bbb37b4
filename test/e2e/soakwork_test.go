//go:build e2e && soak

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type step = func(context.Context) error

// background leaves what belongs to an object to the controller-manager, which is killed too.
func background() metav1.DeleteOptions {
	policy := metav1.DeletePropagationBackground
	return metav1.DeleteOptions{PropagationPolicy: &policy}
}

// or drops an error that reports that the work is done already: the answer to the first request was lost.
func or(err error, done func(error) bool) error {
	if done(err) {
		return nil
	}
	return err
}

// deployment is of pods that run until they are deleted.
func (s *soaked) deployment(p *corev1.Pod, replicas int32) (create, done, end step) {
	sets := s.tenant.AppsV1().Deployments(s.name)
	return func(ctx context.Context) error {
			_, err := sets.Create(ctx, &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: p.Name},
				Spec: appsv1.DeploymentSpec{
					Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec},
				},
			}, metav1.CreateOptions{})
			return or(err, apierrors.IsAlreadyExists)
		}, func(ctx context.Context) error {
			d, err := sets.Get(ctx, p.Name, metav1.GetOptions{})
			if err == nil && d.Status.AvailableReplicas != replicas {
				err = fmt.Errorf("%d of %d are available", d.Status.AvailableReplicas, replicas)
			}
			return err
		}, func(ctx context.Context) error {
			return or(sets.Delete(ctx, p.Name, background()), apierrors.IsNotFound)
		}
}

// job makes a Job of pods with containers that check their limits, and end.
func (s *soaked) job(p *corev1.Pod, completions int32) (create, done, end step) {
	jobs := s.tenant.BatchV1().Jobs(s.name)
	spec := *p.Spec.DeepCopy()
	spec.RestartPolicy = corev1.RestartPolicyNever
	for i := range spec.Containers {
		if len(spec.Containers[i].Resources.Limits) > 0 {
			spec.Containers[i].Command = []string{workload("meminfo")}
		} else {
			spec.Containers[i].Command = []string{"/bin/true"}
		}
	}
	retries := int32(20) // of pods that ended badly: their containerd was killed, or their device plugin
	return func(ctx context.Context) error {
			_, err := jobs.Create(ctx, &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: p.Name},
				Spec: batchv1.JobSpec{
					Completions: &completions, Parallelism: &completions, BackoffLimit: &retries,
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: spec},
				},
			}, metav1.CreateOptions{})
			return or(err, apierrors.IsAlreadyExists)
		}, func(ctx context.Context) error {
			j, err := jobs.Get(ctx, p.Name, metav1.GetOptions{})
			if err == nil && j.Status.Succeeded < completions {
				err = fmt.Errorf("%d of %d have succeeded, %d failed", j.Status.Succeeded, completions, j.Status.Failed)
			}
			return err
		}, func(ctx context.Context) error {
			return or(jobs.Delete(ctx, p.Name, background()), apierrors.IsNotFound)
		}
}

// gone returns an error with the pods of an app that still exist.
func (s *soaked) gone(ctx context.Context, app string) error {
	pods, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err == nil && len(pods.Items) > 0 {
		err = fmt.Errorf("%d pods are left, of which the first is %s, %s", len(pods.Items), pods.Items[0].Name, pods.Items[0].Status.Phase)
	}
	return err
}

// story is what is known of an app's pods, for people.
func (s *soaked) story(ctx context.Context, app string) string {
	pods, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, p := range pods.Items {
		fmt.Fprintf(&text, "pod %s: %s %s %s\n%s\n", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message, cluster.Events(ctx, s.name, p.Name))
	}
	return text.String()
}

// left counts what a container leaves if it leaves anything: its directory, its entry in the
// ledger, its mounts on the node. Pods of ours that were replaced have as many as before.
func (s *soaked) left(ctx context.Context) map[string]int {
	counts := map[string]int{}
	dirs, err := cluster.StateDirs()
	reserved, err2 := cluster.Reserved(ctx)
	held, err3 := cluster.Held(ctx)
	mounts, err4 := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", cluster.Kubelet.PID()))
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return map[string]int{err.Error(): 1}
	}
	counts["directories"], counts["reserved"], counts["held"] = len(dirs), len(reserved), len(held)
	counts["mounts"] = strings.Count(string(mounts), "\n")
	return counts
}
