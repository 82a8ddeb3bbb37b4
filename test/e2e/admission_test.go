//go:build e2e

package e2e_test

import (
	"cmp"
	"context"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// What can't be is refused when the pod is made, with the reason.
func TestWebhookRefuses(t *testing.T) {
	s := newSpace(t)
	for _, test := range []struct {
		name string
		ask  resources
		try  func(*corev1.Pod)
		says string
	}{
		{"memory by both ways", resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpumem-percentage": "10"}, nil, "nvidia.com/gpumem-percentage"},
		{"101 percent of compute time", resources{"nvidia.com/gpu": "1", "nvidia.com/gpucores": "101"}, nil, "nvidia.com/gpucores"},
		{"17 GPUs", resources{"nvidia.com/gpu": "17"}, nil, "nvidia.com/gpu"},
		{"a GPU and a half of gpu-manager's", resources{"tencent.com/vcuda-core": "150"}, nil, "multiple of 100"},
		{"a part of a GPU without memory", resources{"tencent.com/vcuda-core": "50"}, nil, "tencent.com/vcuda-memory"},
		{"both profiles", resources{"nvidia.com/gpu": "1", "tencent.com/vcuda-core": "100"}, nil, "tencent.com/vcuda-core"},
		{"a privileged container", gpu(1000, 10), withSecurity(func(c *corev1.SecurityContext) { c.Privileged = ref(true) }), "rivileged"},
		{"a node of its own choice", gpu(1000, 10), func(p *corev1.Pod) { p.Spec.NodeName = harness.NodeName }, "nodeName"},
		{"another scheduler", gpu(1000, 10), func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, "volcano"},
		{"a policy that there is not", gpu(1000, 10), withAnnotation("hami.io/gpu-scheduler-policy", "best"), "best"},
		{"numa-bind that is neither", gpu(1000, 10), withAnnotation("nvidia.com/numa-bind", "maybe"), "numa-bind"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pod("p", container("main", test.ask))
			if test.try != nil {
				test.try(p)
			}
			_, err := s.tenant.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
			require.ErrorContains(t, err, test.says)
			t.Log(err)
		})
	}
}

// What a pod leaves out is written into it.
func TestWebhookCompletes(t *testing.T) {
	s := newSpace(t)
	p := s.create(pod("p", container("main", resources{"nvidia.com/gpumem": "1000"}), container("other", nil)))
	require.Equal(t, cmp.Or(component.SchedulerName(), "default-scheduler"), p.Spec.SchedulerName)
	count := p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]
	require.Equal(t, int64(1), count.Value())
	require.NotContains(t, p.Spec.Containers[1].Resources.Limits, corev1.ResourceName("nvidia.com/gpu"))
	none := s.create(pod("none", container("main", nil)))
	require.Equal(t, "default-scheduler", none.Spec.SchedulerName)
}

// forged are the scheduler's annotations with values of a tenant's.
func forged(t *testing.T) map[string]string {
	annotations := map[string]string{}
	for _, key := range api.Owned {
		annotations[strings.Replace(key, "*", "x", 1)] = "forged"
	}
	annotations["hami.io/vgpu-devices-to-allocate"] = gpus(t)[0] + ",NVIDIA,140000,100:;"
	annotations["hami.io/vgpu-node"] = "elsewhere"
	return annotations
}

// requireForbidden checks that a write of each forged annotation is refused, and named.
func requireForbidden(t *testing.T, write func(key, value string) error) {
	for key, value := range forged(t) {
		err := write(key, value)
		require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%s: %v", key, err)
		require.ErrorContains(t, err, key)
	}
}

// HAMi's #3041: a write of the scheduler's annotations by any other user is refused, through every API, with
// and without the webhook.
func TestForgedAnnotations(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t)
	running := s.run(pod("running", container("main", gpu(cheatMiB, cheatCores))))
	waiting := s.create(pod("waiting", container("main", gpu(143772, 10))))
	for _, webhook := range []string{"with the webhook", "without the webhook"} {
		if webhook == "without the webhook" {
			require.NoError(t, cluster.StopWebhook(ctx))
			t.Cleanup(func() { require.NoError(t, cluster.StartWebhook(ctx)) })
		}
		for user, client := range map[string]kubernetes.Interface{"the tenant": s.tenant, "an administrator": cluster.API} {
			pods := client.CoreV1().Pods(s.name)
			create := func(change func(*corev1.Pod)) func(key, value string) error {
				return func(key, value string) error {
					p := pod("p", container("main", nil))
					p.Annotations = map[string]string{key: value}
					if change != nil {
						change(p)
					}
					_, err := pods.Create(ctx, p, metav1.CreateOptions{})
					return err
				}
			}
			patch := func(name string, subresources ...string) func(key, value string) error {
				return func(key, value string) error {
					_, err := pods.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+key+`":"`+value+`"}}}`), metav1.PatchOptions{}, subresources...)
					return err
				}
			}
			for name, write := range map[string]func(key, value string) error{
				"a new pod":                     create(nil),
				"one with HAMi's label":         create(func(p *corev1.Pod) { p.Labels = map[string]string{"hami.io/webhook": "ignore"} }),
				"one of the stock scheduler":    create(func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }),
				"one that is on the node":       create(func(p *corev1.Pod) { p.Spec.NodeName = harness.NodeName }),
				"one that asks for GPUs":        create(func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{container("main", gpu(1000, 10))} }),
				"a pod that runs":               patch(running.Name),
				"a pod that waits":              patch(waiting.Name),
				"its status":                    patch(waiting.Name, "status"),
				"a Binding":                     binding(ctx, client, waiting),
				"the grant of a pod that runs":  func(key, _ string) error { return patch(running.Name)("gpuslice.io/grant", key) },
				"an annotation that is removed": removal(ctx, client, running),
			} {
				t.Run(webhook+"/"+user+"/"+name, func(t *testing.T) {
					switch name {
					case "the grant of a pod that runs", "an annotation that is removed":
						require.ErrorContains(t, write("x", ""), "orbidden")
					case "one that asks for GPUs":
						if webhook == "without the webhook" {
							require.Error(t, write("gpuslice.io/grant", "x")) // no component can complete it
							return
						}
						requireForbidden(t, write)
					case "its status", "a Binding":
						if user == "the tenant" { // it has no right to either
							require.True(t, apierrors.IsForbidden(write("gpuslice.io/grant", "x")))
							return
						}
						requireForbidden(t, write)
					default:
						requireForbidden(t, write)
					}
				})
			}
		}
	}
	again := s.wait(running.Name, kube.Running)
	require.Equal(t, running.Annotations, again.Annotations)
	s.requireHeld(again, "main", cheatMiB)
}

func binding(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) func(key, value string) error {
	return func(key, value string) error {
		return client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: map[string]string{key: value}},
			Target:     corev1.ObjectReference{Kind: "Node", Name: harness.NodeName},
		}, metav1.CreateOptions{})
	}
}

func removal(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) func(key, value string) error {
	return func(string, string) error {
		_, err := client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"gpuslice.io/grant":null}}}`), metav1.PatchOptions{})
		return err
	}
}
