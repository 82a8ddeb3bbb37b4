package testcases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// client impersonates a user with all rights, because only admission is tested.
func client(admin *rest.Config, user string) (kubernetes.Interface, error) {
	config := rest.CopyConfig(admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	return kubernetes.NewForConfig(config)
}

// Try does the write on a real API server with install/admission's policy or webhooks, and returns an
// error if the result differs from the table. Its pods, in this namespace if it names none, wait for a scheduler that isn't there.
func (a Annotations) Try(ctx context.Context, admin *rest.Config, namespace string) (err error) {
	if a.Namespace != "" {
		namespace = a.Namespace
	}
	as, err := client(admin, a.As)
	if err != nil {
		return err
	}
	scheduler, err := client(admin, Scheduler)
	if err != nil {
		return err
	}
	pod := a.pod()
	if a.Resource == "pods" && a.Subresource == "" && a.Operation == "CREATE" {
		pod.Annotations = a.After
		_, err := as.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return a.judge(err)
	}
	pod.Annotations = a.Before
	if pod, err = scheduler.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the pod that is to be changed: %w", err)
	}
	defer func() {
		now := int64(0)
		err = errors.Join(err, scheduler.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	}()
	if err := a.judge(a.write(ctx, as, pod.DeepCopy())); err != nil {
		return err
	}
	is, err := scheduler.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := a.After
	if a.Denied {
		want = a.Before
	}
	if !maps.Equal(want, is.Annotations) {
		return fmt.Errorf("the pod's annotations are %q, and should be %q", is.Annotations, want)
	}
	return nil
}

// judge compares the answer with the table.
func (a Annotations) judge(err error) error {
	switch {
	case a.Denied && !a.Dropped && err == nil:
		return errors.New("it is admitted")
	case a.Denied && !a.Dropped && !strings.Contains(err.Error(), a.Message):
		return fmt.Errorf("it is refused for another reason: %w", err)
	case !a.Denied && err != nil:
		return fmt.Errorf("it is refused: %w", err)
	}
	return nil
}

// write is the case's, of a pod that is there.
func (a Annotations) write(ctx context.Context, as kubernetes.Interface, pod *corev1.Pod) error {
	pods := as.CoreV1().Pods(pod.Namespace)
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: a.After},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "no-such-node"},
	}
	pod.Annotations = a.After
	var err error
	switch what := a.Resource + "/" + a.Subresource; what {
	case "pods/":
		_, err = pods.Update(ctx, pod, metav1.UpdateOptions{})
	case "pods/status":
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	case "pods/ephemeralcontainers":
		_, err = pods.UpdateEphemeralContainers(ctx, pod.Name, pod, metav1.UpdateOptions{})
	case "pods/resize":
		_, err = pods.UpdateResize(ctx, pod.Name, pod, metav1.UpdateOptions{})
	case "pods/binding":
		err = pods.Bind(ctx, binding, metav1.CreateOptions{})
	case "bindings/":
		err = as.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("bindings").Body(binding).Do(ctx).Error()
	default:
		err = fmt.Errorf("%s: unsupported resource", what)
	}
	return err
}

func (a Annotations) pod() *corev1.Pod {
	scheduler := a.SchedulerName
	if scheduler == "" {
		scheduler = "no-such-scheduler"
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "annotations-", Labels: a.Labels},
		Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
}

// Try creates the pod on a real API server with install/admission's webhooks, as a dry run, and returns
// an error if the result differs from the table.
func (p Pod) Try(ctx context.Context, admin *rest.Config, namespace string) error {
	as, err := client(admin, Tenant)
	if err != nil {
		return err
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(p.Manifest), pod); err != nil {
		return err
	}
	pod.GenerateName = "pods-"
	made, err := as.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case p.Denied != "" && err == nil:
		return errors.New("it is admitted")
	case p.Denied != "" && !strings.Contains(err.Error(), p.Denied):
		return fmt.Errorf("it is refused for another reason: %w", err)
	case p.Denied != "":
		return nil
	case err != nil:
		return fmt.Errorf("it is refused: %w", err)
	case p.Scheduler != "" && made.Spec.SchedulerName != p.Scheduler:
		return fmt.Errorf("its scheduler is %q", made.Spec.SchedulerName)
	}
	return nil
}
