//go:build chaos

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

const (
	namespace   = "default"
	nodes       = 4
	gpusOfNode  = 4
	memoryOfGPU = 80000
	// wanted is how many pods there are at a time: more than fit.
	wanted = 3 * nodes * gpusOfNode
)

// lab is a cluster of objects, replicas of the scheduler, and the load that they place.
type lab struct {
	cluster  *kube.Cluster
	api      kubernetes.Interface
	admin    *rest.Config
	audit    *audit
	kind     kind
	number   int
	replicas []*replica

	mu     sync.Mutex
	random *rand.Rand
	made   int
	load   sync.WaitGroup
	stop   context.CancelFunc
	drain  bool // only delete pods
	paused bool

	stepping sync.Mutex
}

func (l *lab) float() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.Float64()
}

func (l *lab) between(least, most time.Duration) time.Duration {
	return least + time.Duration(l.float()*float64(most-least))
}

// newLab starts a control plane with what the kind of scheduler needs there, and as many replicas. Close it also after an error.
func newLab(ctx context.Context, k kind, number, replicas int, seed uint64) (l *lab, err error) {
	l = &lab{kind: k, number: number, random: rand.New(rand.NewPCG(seed, 0))}
	if l.cluster, err = kube.NewControlPlane(ctx); err != nil {
		return l, err
	}
	if l.admin, err = l.cluster.Config(kube.Admin); err != nil {
		return l, err
	}
	if l.api, err = kubernetes.NewForConfig(l.admin); err != nil {
		return l, err
	}
	if err = kube.CreateServiceAccount(ctx, l.api, namespace); err != nil {
		return l, err
	}
	for _, file := range k.manifests {
		if err := l.apply(ctx, file); err != nil {
			return l, fmt.Errorf("%s: %w", file, err)
		}
	}
	for i := range nodes {
		if err := l.makeNode(ctx, i); err != nil {
			return l, err
		}
	}
	if *policies {
		if err := l.checkPolicy(ctx); err != nil {
			return l, err
		}
	}
	if l.audit, err = newAudit(ctx, l.api); err != nil {
		return l, err
	}
	for i := range replicas {
		r, err := l.newReplica(ctx, i)
		if err != nil {
			return l, err
		}
		l.replicas = append(l.replicas, r)
	}
	return l, nil
}

func (l *lab) close() error {
	var errs []error
	for _, r := range l.replicas {
		r.close()
	}
	if l.cluster != nil {
		if *logs != "" {
			errs = append(errs, l.cluster.SaveLogs(filepath.Join(*logs, strconv.Itoa(l.number))))
		}
		errs = append(errs, l.cluster.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// apply creates the objects of a manifest of install/.
func (l *lab) apply(ctx context.Context, file string) error {
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(root, "install", file))
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		object, err := decode([]byte(document))
		if err != nil {
			return err
		}
		if _, is := object.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); is && !*policies {
			continue
		}
		if err := create(ctx, l.api, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// checkPolicy waits until the API server refuses a grant of the scheduler's account that names another leader than the Lease.
func (l *lab) checkPolicy(ctx context.Context) error {
	config := rest.CopyConfig(l.admin)
	config.Impersonate.UserName = account
	scheduler, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	holder, transitions := "none", int32(1)
	leases := l.api.CoordinationV1().Leases("kube-system")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.kind.lease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseTransitions: &transitions}}
	lease, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	bind := func(leader string) error {
		return scheduler.CoreV1().Pods(namespace).Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: "pod-00000", Annotations: map[string]string{api.AnnotationGrant: "x", api.AnnotationLeader: leader}},
			Target:     v1.ObjectReference{Kind: "Node", Name: nodeName(0)},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	if err := l.makePodNamed(ctx, "pod-00000", memoryOfGPU); err != nil {
		return err
	}
	err = harness.Until(ctx, time.Minute, func(context.Context) error {
		if err := bind("other/1/" + string(lease.UID)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), api.AnnotationLeader) {
			return fmt.Errorf("a grant of another leader is not refused by the policy: %v", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := bind("none/1/" + string(lease.UID)); err != nil {
		return fmt.Errorf("the leader's grant is refused: %w", err)
	}
	now := int64(0)
	return errors.Join(leases.Delete(ctx, lease.Name, metav1.DeleteOptions{}),
		l.api.CoreV1().Pods(namespace).Delete(ctx, "pod-00000", metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// registered is what a node's agent writes; broken GPUs are unhealthy.
func registered(node int, broken ...int) string {
	return kube.GPUs(node, gpusOfNode, memoryOfGPU, func(gpu int, of *api.NodeGPU) {
		healthy := !slices.Contains(broken, gpu)
		of.Healthy = &healthy
	})
}

func (l *lab) makeNode(ctx context.Context, i int) error {
	return kube.CreateNode(ctx, l.api, nodeName(i), gpusOfNode, registered(i))
}

func (l *lab) annotateNode(ctx context.Context, i int, key string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return err
	}
	_, err = l.api.CoreV1().Nodes().Patch(ctx, nodeName(i), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// makePod makes one that requests a whole GPU, or a half of one.
func (l *lab) makePod(ctx context.Context) error {
	l.mu.Lock()
	l.made++
	name, memory := fmt.Sprintf("pod-%05d", l.made), int64(memoryOfGPU)
	if l.random.IntN(4) == 0 {
		memory /= 2
	}
	l.mu.Unlock()
	return l.makePodNamed(ctx, name, memory)
}

func (l *lab) makePodNamed(ctx context.Context, name string, memory int64) error {
	limits := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "nvidia.com/gpumem": *resource.NewQuantity(memory, resource.DecimalSI)}
	none := false
	_, err := l.api.CoreV1().Pods(namespace).Create(ctx, &v1.Pod{
		// The load is the controller.
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: ownedBy(name)},
		Spec: v1.PodSpec{SchedulerName: l.kind.schedulerName, AutomountServiceAccountToken: &none,
			Containers: []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Limits: limits}}}},
	}, metav1.CreateOptions{})
	return err
}

func ownedBy(name string) []metav1.OwnerReference {
	controller := true
	return []metav1.OwnerReference{{APIVersion: "chaos/v1", Kind: "Load", Name: name, UID: types.UID(name), Controller: &controller}}
}

// own changes the pod's controller.
func (l *lab) own(ctx context.Context, pod *v1.Pod, owner string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": ownedBy(owner)}})
	if err != nil {
		return err
	}
	_, err = l.api.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (l *lab) deletePod(ctx context.Context, pod *v1.Pod) error {
	now := int64(0)
	err := l.api.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// resize asks for more or less memory for a pod that has a half of a GPU.
func (l *lab) resize(ctx context.Context, pod *v1.Pod) error {
	memory := int64(memoryOfGPU/4) * int64(1+int(3*l.float()))
	request, err := grant.EncodeResize(map[string]grant.Wanted{"main": {MemoryMiB: &memory}})
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{api.AnnotationResize: request}}})
	if err != nil {
		return err
	}
	_, err = l.api.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// begin keeps as many pods as are wanted, and gives GPUs to other pods all the time. The API server may be away.
func (l *lab) begin(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	l.load.Go(func() {
		for ctx.Err() == nil {
			l.step(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

func (l *lab) end() {
	l.stop()
	l.load.Wait()
}

func (l *lab) step(ctx context.Context) {
	l.stepping.Lock()
	defer l.stepping.Unlock()
	l.mu.Lock()
	paused := l.paused
	l.mu.Unlock()
	if paused {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pods := l.audit.snapshot()
	for _, p := range pods {
		age := time.Since(p.since)
		switch bound := p.pod.Spec.NodeName != ""; {
		case bound && age > l.between(time.Second, 4*time.Second):
			_ = l.deletePod(ctx, p.pod)
		case bound && l.float() < 0.03:
			_ = l.resize(ctx, p.pod)
		case !bound && l.float() < 0.002: // in each phase
			_ = l.deletePod(ctx, p.pod)
		}
	}
	l.mu.Lock()
	drain := l.drain
	l.mu.Unlock()
	for i := len(pods); i < wanted && !drain && ctx.Err() == nil; i++ {
		_ = l.makePod(ctx)
	}
}

// settle waits until each pod that exists now was placed: the load goes on to delete bound pods, and makes no new ones.
func (l *lab) settle(ctx context.Context, patience time.Duration) error {
	l.setDrain(true)
	defer l.setDrain(false)
	waiting := map[types.UID]string{}
	for _, p := range l.audit.snapshot() {
		if p.pod.Spec.NodeName == "" {
			waiting[p.pod.UID] = p.pod.Name
		}
	}
	err := harness.Until(ctx, patience, func(context.Context) error {
		unbound := map[types.UID]bool{}
		for _, p := range l.audit.snapshot() {
			unbound[p.pod.UID] = p.pod.Spec.NodeName == ""
		}
		maps.DeleteFunc(waiting, func(uid types.UID, _ string) bool { return !unbound[uid] })
		if len(waiting) > 0 {
			return fmt.Errorf("%d pods are stuck: %s", len(waiting), strings.Join(slices.Sorted(maps.Values(waiting)), ", "))
		}
		return nil
	})
	return err
}

// pause returns when the load does nothing.
func (l *lab) pause(paused bool) {
	l.stepping.Lock()
	defer l.stepping.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = paused
}

func (l *lab) setDrain(drain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drain = drain
}

// progress waits until so many more pods are bound.
func (l *lab) progress(ctx context.Context, pods int, patience time.Duration) error {
	before := l.audit.boundPods()
	return harness.Until(ctx, patience, func(context.Context) error {
		if n := l.audit.boundPods() - before; n < pods {
			return fmt.Errorf("only %d of %d pods were bound", n, pods)
		}
		return nil
	})
}

// leader returns the replica that holds the Lease.
func (l *lab) leader(ctx context.Context) (*replica, error) {
	var leader *replica
	err := harness.Until(ctx, time.Minute, func(ctx context.Context) error {
		lease, err := l.api.CoordinationV1().Leases("kube-system").Get(ctx, l.kind.lease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, r := range l.replicas {
			if h := lease.Spec.HolderIdentity; h != nil && strings.HasPrefix(*h, r.host+"_") {
				leader = r
				return nil
			}
		}
		return errors.New("no replica leads")
	})
	return leader, err
}

// other waits until another replica leads.
func (l *lab) other(ctx context.Context, than *replica) error {
	return harness.Until(ctx, time.Minute, func(ctx context.Context) error {
		now, err := l.leader(ctx)
		if err == nil && now == than {
			err = fmt.Errorf("%s leads on", than.host)
		}
		return err
	})
}
