//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

const (
	mib = 1 << 20
	// gpuMiB is what an H200 has.
	gpuMiB = 143771
	// gpuA100MiB is what an A100 has.
	gpuA100MiB = 81920
	// contextMiB is what a CUDA context takes of one, and contextA100MiB of an A100.
	contextMiB, contextA100MiB = 520, 420
	// patience is how long anything may take on a machine that is busy.
	patience = 4 * time.Minute
)

// second is the cluster's second node, while there is one.
var second *kube.Cluster

// has reports whether the cluster's Kubernetes has a feature.
func has(t *testing.T, feature kube.Since) bool {
	t.Helper()
	has, err := cluster.Has(feature)
	require.NoError(t, err)
	return has
}

// workload is the path of a CUDA workload inside the images.
func workload(name string) string { return harness.WorkloadDir + "/" + name }

// space is a test's namespace, with its tenant's client.
type space struct {
	t      *testing.T
	name   string
	tenant kubernetes.Interface
}

// newSpace makes a namespace. At the test's end all of its pods are deleted, and no GPU
// may be in use.
func newSpace(t *testing.T) *space { return newSpaceOf(t, metav1.ObjectMeta{GenerateName: "test-"}) }

// newSpaceOf makes one of a name that matters.
func newSpaceOf(t *testing.T, meta metav1.ObjectMeta) *space {
	ctx := context.Background()
	tenant, err := cluster.Client(kube.Tenant)
	require.NoError(t, err)
	made, err := cluster.API.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := &space{t: t, name: made.Name, tenant: tenant}
	t.Cleanup(s.clear)
	_, err = cluster.API.RbacV1().RoleBindings(s.name).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kube.Tenant.Name}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := cluster.API.CoreV1().ServiceAccounts(s.name).Get(ctx, "default", metav1.GetOptions{})
		return err
	}), "a pod needs its service account")
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := s.tenant.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		return err
	}), "the API server knows the tenant's rights some time after the RoleBinding is made")
	return s
}

// in is the namespace for a part of its test.
func (s *space) in(t *testing.T) *space { return &space{t: t, name: s.name, tenant: s.tenant} }

func (s *space) clear() {
	ctx := context.Background()
	s.empty()
	assert.NoError(s.t, harness.Until(ctx, patience, unused))
	assert.NoError(s.t, cluster.API.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}))
}

// empty deletes all pods, and waits until they are gone.
func (s *space) empty() {
	ctx := context.Background()
	background := metav1.DeletePropagationBackground
	assert.NoError(s.t, cluster.API.AppsV1().Deployments(s.name).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}))
	assert.NoError(s.t, harness.Until(ctx, patience, func(ctx context.Context) error {
		if err := cluster.API.CoreV1().Pods(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
		pods, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left, of which the first is %s", len(pods.Items), pods.Items[0].Name)
		}
		return err
	}))
}

// unused returns an error with what is still granted of the GPUs.
func unused(ctx context.Context) error {
	for _, node := range []*kube.Cluster{cluster, second} {
		if node == nil {
			continue
		}
		status, err := node.Status(ctx)
		if err != nil {
			return err
		}
		for _, c := range status.GPUs {
			if c.GrantedMemoryMiB != 0 || c.GrantedCores != 0 || c.Containers != 0 {
				return fmt.Errorf("GPU %s: %d MiB and %d %% are granted to %d containers", c.UUID, c.GrantedMemoryMiB, c.GrantedCores, c.Containers)
			}
		}
	}
	return nil
}

// GPUs are the UUIDs of the node's GPUs.
func gpus(t *testing.T) []string {
	status, err := cluster.Status(context.Background())
	require.NoError(t, err)
	var uuids []string
	for _, c := range status.GPUs {
		uuids = append(uuids, c.UUID)
	}
	return uuids
}

// resources are limits by the resource's name.
type resources map[corev1.ResourceName]string

func (r resources) requirements() corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	for name, amount := range r {
		limits[name] = resource.MustParse(amount)
	}
	return corev1.ResourceRequirements{Limits: limits}
}

// gpu asks for part of one GPU in HAMi's words.
func gpu(memoryMiB, cores int) resources {
	return resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem": strconv.Itoa(memoryMiB), "nvidia.com/gpucores": strconv.Itoa(cores)}
}

// container is a container that sleeps until it is ended.
func container(name string, r resources) corev1.Container {
	return corev1.Container{
		Name: name, Image: harness.WorkloadImage, ImagePullPolicy: corev1.PullNever, Resources: r.requirements(),
		Command: []string{"/bin/sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"},
	}
}

// pod is one with these containers.
func pod(name string, containers ...corev1.Container) *corev1.Pod {
	grace := int64(2)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: containers, TerminationGracePeriodSeconds: &grace},
	}
}

// grantedByHand binds a pod to the node with these shares, as a scheduler would.
func grantedByHand(p *corev1.Pod, shares map[string]string) *corev1.Pod {
	containers := map[string]json.RawMessage{}
	for name, share := range shares {
		containers[name] = json.RawMessage(share)
	}
	data, err := json.Marshal(map[string]any{"version": 1, "node": harness.NodeName, "containers": containers})
	if err != nil {
		panic(err)
	}
	p.Annotations = map[string]string{"gpuslice.io/grant": string(data)}
	p.Spec.NodeName = harness.NodeName
	return p
}

func share(uuid string, mib, cores int) string {
	return fmt.Sprintf(`[{"uuid":%q,"memoryMiB":%d,"cores":%d}]`, uuid, mib, cores)
}

// create makes a pod as the tenant.
func (s *space) create(p *corev1.Pod) *corev1.Pod {
	made, err := s.tenant.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
	require.NoError(s.t, err)
	return made
}

// wait waits until a pod is as it is wanted.
func (s *space) wait(name string, want func(*corev1.Pod) error) *corev1.Pod {
	p, err := cluster.WaitPod(context.Background(), s.name, name, patience, want)
	require.NoError(s.t, err)
	return p
}

// run makes a pod as the tenant and waits until it runs.
func (s *space) run(p *corev1.Pod) *corev1.Pod {
	s.create(p)
	return s.wait(p.Name, kube.Running)
}

// delete deletes a pod and waits until it is gone.
func (s *space) delete(name string) {
	ctx := context.Background()
	require.NoError(s.t, s.tenant.CoreV1().Pods(s.name).Delete(ctx, name, metav1.DeleteOptions{}))
	require.NoError(s.t, harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := cluster.API.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("pod %s is still there", name), err)
	}))
}

// device is a GPU as a container sees it.
type device struct {
	uuid     string
	totalMiB int64
}

// execIn runs a command in a container, on the pod's node. A non-zero exit status is not an error.
func execIn(p *corev1.Pod, container string, command ...string) (stdout, stderr string, exitCode int, err error) {
	node := cluster
	if second != nil && p.Spec.NodeName == kube.SecondNode {
		node = second
	}
	return node.ExecIn(context.Background(), p, container, command...)
}

// devices asks a container what it has; none where it has no driver.
func (s *space) devices(p *corev1.Pod, container string) []device {
	stdout, stderr, code, err := execIn(p, container, workload("meminfo"))
	require.NoError(s.t, err)
	const noDriver = 4
	if code == noDriver {
		return nil
	}
	require.Zero(s.t, code, "%s%s", stdout, stderr)
	return parseDevices(s.t, stdout)
}

// parseDevices reads what the workload meminfo printed, and checks that all ways to ask
// for a GPU's memory have one answer; CUDA leaves out of a whole GPU what the driver
// keeps for itself.
func parseDevices(t *testing.T, text string) []device {
	v := harness.KeyValues(text)
	var all []device
	for i := range number(t, v["device_count"]) {
		prefix := fmt.Sprintf("device.%d.", i)
		total := number(t, v[prefix+"total_bytes"])
		require.Equal(t, total, number(t, v[prefix+"info_total_bytes"]))
		byNVML := number(t, v[fmt.Sprintf("nvml.%d.total_bytes", i)])
		if total != byNVML {
			require.Less(t, total, byNVML)
			require.Contains(t, []int64{gpuMiB, gpuA100MiB}, byNVML/mib)
		}
		all = append(all, device{v[prefix+"uuid"], byNVML / mib})
	}
	return all
}

// allocatable is how many MiB of its first GPU a container can allocate.
func (s *space) allocatable(p *corev1.Pod, container string) int64 {
	stdout, stderr, code, err := execIn(p, container, workload("alloc"), "--chunk-mib=10")
	require.NoError(s.t, err)
	require.Zero(s.t, code, "%s%s", stdout, stderr)
	v := harness.KeyValues(stdout)
	require.Equal(s.t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
	return number(s.t, v["allocated_bytes"]) / mib
}

// requireHeld checks that a container has these MiB of one GPU, and can't have more.
func (s *space) requireHeld(p *corev1.Pod, container string, memoryMiB int64) {
	devices := s.devices(p, container)
	require.Len(s.t, devices, 1)
	require.Equal(s.t, memoryMiB, devices[0].totalMiB)
	s.requireAllocatable(p, container, devices[0])
}

// requireAllocatable checks that a container can allocate what it has of its first GPU.
func (s *space) requireAllocatable(p *corev1.Pod, container string, d device) {
	context := int64(contextMiB)
	if slices.Contains(gpus(s.t)[6:], d.uuid) {
		context = contextA100MiB
	}
	allocated := s.allocatable(p, container)
	require.LessOrEqual(s.t, allocated, d.totalMiB-context)
	require.Greater(s.t, allocated, d.totalMiB-context-50)
}

func number(t *testing.T, text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	require.NoError(t, err)
	return n
}
