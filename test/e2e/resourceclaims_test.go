//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// withDRA switches the node to DRA for a test.
func withDRA(t *testing.T) {
	restoreChart(t)
	installDRA(t, func(devices []resourceapi.Device) error {
		if len(devices) != len(gpus(t)) {
			return fmt.Errorf("%d GPUs are offered", len(devices))
		}
		return nil
	})
}

// restoreChart installs the chart without DRA when the test ends.
func restoreChart(t *testing.T) {
	ctx := context.Background()
	t.Cleanup(func() {
		require.NoError(t, cluster.InstallChart(ctx))
		require.NoError(t, cluster.WaitNode(ctx))
	})
}

// installDRA waits until no device has a taint, and the devices are as they are wanted.
func installDRA(t *testing.T, want func([]resourceapi.Device) error, more ...string) {
	ctx := context.Background()
	// The cluster's containerd has a directory of CDI specs that the driver's are not in.
	specs := filepath.Join(filepath.Dir(cluster.RuntimeConfig()), "no-cdi")
	require.NoError(t, os.MkdirAll(specs, 0o755))
	require.NoError(t, cluster.InstallChart(ctx, append(more, "--set=dra.enabled=true", "--set-json=agent.paths.cdi="+fmt.Sprintf(`["/etc/cdi","/var/run/cdi",%q]`, specs))...))
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		list, err := cluster.API.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var offered []resourceapi.Device
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				if len(d.Taints) > 0 {
					return fmt.Errorf("%s has taints: %v", d.Name, d.Taints)
				}
				offered = append(offered, d)
			}
		}
		return want(offered)
	}))
}

func shareOf(memory, cores string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.gpuslice.io",
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory), "cores": resource.MustParse(cores),
		}},
	}}}}}
}

// claim makes a ResourceClaim as the tenant; a template makes one for each pod.
func (s *space) claim(name, memory, cores string) {
	_, err := s.tenant.ResourceV1().ResourceClaims(s.name).Create(context.Background(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: shareOf(memory, cores)}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

func (s *space) template(name, memory, cores string) {
	_, err := s.tenant.ResourceV1().ResourceClaimTemplates(s.name).Create(context.Background(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: shareOf(memory, cores)},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// claiming has all containers of a pod use a ResourceClaim.
func claiming(p *corev1.Pod, of corev1.PodResourceClaim) *corev1.Pod {
	of.Name = "gpu"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{of}
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return p
}

func byClaim(name string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{ResourceClaimName: new(name)}
}

func byTemplate(name string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{ResourceClaimTemplateName: new(name)}
}

// requireLeft checks what a container of a claim in common can allocate beside the others.
func (s *space) requireLeft(p *corev1.Pod, container string, memoryMiB int64) {
	s.t.Helper()
	allocated := s.allocatable(p, container)
	require.LessOrEqual(s.t, allocated, memoryMiB-contextA100MiB)
	require.Greater(s.t, allocated, memoryMiB-contextA100MiB-50)
}

// requireStatus checks what the agent has written into a ResourceClaim, with the rights that the chart gives it.
func (s *space) requireStatus(name, memory string, cores int) {
	claim, err := cluster.API.ResourceV1().ResourceClaims(s.name).Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	require.Len(s.t, claim.Status.Devices, 1)
	allocated, device := claim.Status.Allocation.Devices.Results[0], claim.Status.Devices[0]
	require.Equal(s.t, allocated.Device, device.Device)
	require.Equal(s.t, string(*allocated.ShareID), *device.ShareID)
	require.Len(s.t, device.Conditions, 1)
	require.Equal(s.t, metav1.ConditionTrue, device.Conditions[0].Status)
	size := resource.MustParse(memory)
	require.JSONEq(s.t, fmt.Sprintf(`{"uuid":%q,"memoryMiB":%d,"cores":%d}`, strings.Replace(device.Device, "gpu-", "GPU-", 1), size.Value()/mib, cores), string(device.Data.Raw))
}

func waitsForGPU(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "cannot allocate all claims")
	})
}

// sumsGranted returns the sums of all GPUs: MiB, percent and shares.
func sumsGranted(ctx context.Context) (memory int64, cores, shares int, err error) {
	status, err := cluster.Status(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	for _, gpu := range status.GPUs {
		memory, cores, shares = memory+gpu.GrantedMemoryMiB, cores+gpu.GrantedCores, shares+gpu.Containers
	}
	return memory, cores, shares, nil
}

func requireGranted(t *testing.T, memory int64, cores, shares int) {
	t.Helper()
	require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		m, c, s, err := sumsGranted(ctx)
		if err == nil && (m != memory || c != cores || s != shares) {
			err = fmt.Errorf("%d MiB and %d %% are granted in %d shares", m, c, s)
		}
		return err
	}))
}

// The unmodified kube-scheduler allocates shares to pods with ResourceClaims, of which one is in common to two containers
// of a pod and to another pod. The chart refuses that where Kubernetes is too old.
func TestResourceClaims(t *testing.T) {
	ctx := context.Background()
	if !has(t, kube.DRA) {
		require.ErrorContains(t, cluster.InstallChart(ctx, "--set=dra.enabled=true"), "Upgrade to 1.36")
		return
	}
	withDRA(t)
	s := newSpace(t)
	s.template("own", "2000Mi", "20")
	s.claim("shared", "4000Mi", "30")
	own := s.run(claiming(pod("own", container("main", nil)), byTemplate("own")))
	s.requireHeld(own, "main", 2000)

	holds := container("holds", nil)
	holds.Command = []string{workload("hold"), "--mib=1000"}
	pair := s.run(claiming(pod("pair", holds, container("idle", nil)), byClaim("shared")))
	other := s.run(claiming(pod("other", container("idle", nil)), byClaim("shared")))
	for _, p := range []*corev1.Pod{pair, other} {
		devices := s.devices(p, "idle")
		require.Len(t, devices, 1)
		require.EqualValues(t, 4000, devices[0].totalMiB)
		require.Contains(t, gpus(t)[6:], devices[0].uuid, "kube-scheduler takes the first pool: the A100s")
	}
	require.NoError(t, harness.Until(ctx, patience, func(context.Context) error {
		if text, err := cluster.Logs(pair, "holds"); err != nil || !strings.Contains(text, "ready=1") {
			return errors.Join(errors.New("it does not hold its memory yet"), err)
		}
		return nil
	}))
	left := int64(4000 - 1000 - contextA100MiB)
	s.requireLeft(pair, "idle", left)
	s.requireLeft(other, "idle", left)
	requireGranted(t, 6000, 50, 2)

	s.requireStatus("shared", "4000Mi", 30)

	// The agent is replaced; then the pod that holds memory goes.
	require.NoError(t, cluster.KillPods(ctx, "agent"))
	require.NoError(t, cluster.WaitRelease(ctx))
	s.requireLeft(other, "idle", left)
	s.delete("pair")
	s.requireLeft(other, "idle", 4000)
	requireGranted(t, 6000, 50, 2)

	// What does not fit waits with the scheduler's reason, and runs when there is room.
	s.template("all", "1Mi", "100")
	var names []string
	for i := range gpus(t) {
		names = append(names, fmt.Sprint("all-", i))
		s.create(claiming(pod(names[i], container("main", nil)), byTemplate("all")))
	}
	pending := 0
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		pods, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		running := 0
		pending = 0
		for i := range pods.Items {
			p := &pods.Items[i]
			switch {
			case kube.Running(p) == nil:
				running++
			case waitsForGPU(p):
				pending++
			}
		}
		if running+pending != len(names)+2 || pending == 0 {
			return fmt.Errorf("%d pods run, and %d wait for a GPU", running, pending)
		}
		return nil
	}))
	s.delete("own")
	s.delete("other")
	for _, name := range names {
		s.wait(name, kube.Running)
	}
	s.empty()
	requireGranted(t, 0, 0, 0)
	claim, err := cluster.API.ResourceV1().ResourceClaims(s.name).Get(ctx, "shared", metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, claim.Status.Allocation, "no pod has it")
}
