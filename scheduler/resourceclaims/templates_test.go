package resourceclaims

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
)

var today = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// clock is the time that the webhook has.
type clock struct{ now time.Time }

func newTemplates(client *fake.Clientset, c *clock, namespaces ...string) *Templates {
	return &Templates{Client: client, Namespaces: namespaces, Now: func() time.Time { return c.now }, Log: slog.New(slog.DiscardHandler)}
}

func claimOf(t *testing.T, memory int64) resourceapi.ResourceClaimSpec {
	t.Helper()
	got, err := translate(t, Sizes{}, nil, container("main", scheduler.App, resources{api.ResourceMemory: memory}))
	require.NoError(t, err)
	return got.Claims[0].Spec
}

func names(t *testing.T, client *fake.Clientset, namespace string) (list []string) {
	t.Helper()
	found, err := client.ResourceV1().ResourceClaimTemplates(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range found.Items {
		list = append(list, found.Items[i].Name)
	}
	return list
}

func TestTemplate(t *testing.T) {
	a := Template(claimOf(t, 1000), 7)
	require.Equal(t, a, Template(claimOf(t, 1000), 7))
	require.Regexp(t, "^gpuslice-[0-9a-f]{24}$", a.Name)
	require.NotEqual(t, a.Name, Template(claimOf(t, 1001), 7).Name, "another content")
	require.NotEqual(t, a.Name, Template(claimOf(t, 1000), 8).Name, "another period")
	require.Equal(t, "true", a.Labels[api.LabelTranslated])
	require.Equal(t, "true", a.Spec.Labels[api.LabelTranslated])
}

func TestEnsure(t *testing.T) {
	client := fake.NewClientset()
	templates := newTemplates(client, &clock{today}, "team")
	template := Template(claimOf(t, 1000), templates.Period())
	require.NoError(t, templates.Ensure(t.Context(), "team", template))
	require.NoError(t, templates.Ensure(t.Context(), "team", template), "twice")
	require.Equal(t, []string{template.Name}, names(t, client, "team"))
	require.Empty(t, names(t, client, "other"))

	t.Run("another content", func(t *testing.T) {
		changed := template.DeepCopy()
		changed.Namespace, changed.Spec.Spec.Devices.Requests[0].Exactly.Count = "team", 16
		_, err := client.ResourceV1().ResourceClaimTemplates("team").Update(t.Context(), changed, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.ErrorContains(t, templates.Ensure(t.Context(), "team", template), "has another content than the pod's request")
	})
}

// The API server stores an amount in its shortest form.
func TestEnsureComparesAmounts(t *testing.T) {
	template := Template(claimOf(t, 30720), 1)
	stored := template.DeepCopy()
	stored.Namespace = "team"
	stored.Spec.Spec.Devices.Requests[0].Exactly.Capacity.Requests[api.DRACapacityMemory] = resource.MustParse("30720Mi")
	require.NoError(t, newTemplates(fake.NewClientset(stored), &clock{today}).Ensure(t.Context(), "team", template))
}

// An API server without a feature stores a ResourceClaim without the amounts.
func TestEnsureComparesWhatIsStored(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "resourceclaimtemplates", func(action clienttesting.Action) (bool, runtime.Object, error) {
		stored := action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(*resourceapi.ResourceClaimTemplate)
		stored.Spec.Spec.Devices.Requests[0].Exactly.Capacity = nil
		return true, stored, nil
	})
	require.ErrorContains(t, newTemplates(client, &clock{today}).Ensure(t.Context(), "team-a", Template(claimOf(t, 1000), 7)), "DRAConsumableCapacity")
}

func TestEnsureErrors(t *testing.T) {
	template := Template(claimOf(t, 1000), 1)
	for _, verb := range []string{"get", "create"} {
		client := fake.NewClientset()
		client.PrependReactor(verb, "resourceclaimtemplates", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("exceeded quota")
		})
		require.ErrorContains(t, newTemplates(client, &clock{today}).Ensure(t.Context(), "team", template), "exceeded quota")
	}
	deleted := template.DeepCopy()
	deleted.Namespace, deleted.DeletionTimestamp, deleted.Finalizers = "team", &metav1.Time{Time: today}, []string{"a/b"}
	require.ErrorContains(t, newTemplates(fake.NewClientset(deleted), &clock{today}).Ensure(t.Context(), "team", template), "is being deleted")
}

// Replicas that admit equal pods at the same time create one template.
func TestEnsureAtTheSameTime(t *testing.T) {
	client := fake.NewClientset()
	template := Template(claimOf(t, 1000), 1)
	var replicas sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		replicas.Go(func() { errs <- newTemplates(client, &clock{today}).Ensure(t.Context(), "team", template.DeepCopy()) })
	}
	replicas.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.Equal(t, []string{template.Name}, names(t, client, "team"))
}

// A template that another replica removes between two calls is created again.
func TestEnsureAgainstRemoval(t *testing.T) {
	client := fake.NewClientset()
	template := Template(claimOf(t, 1000), 1)
	first := true
	client.PrependReactor("create", "resourceclaimtemplates", func(clienttesting.Action) (bool, runtime.Object, error) {
		defer func() { first = false }()
		if first {
			return true, nil, apierrors.NewAlreadyExists(resourceapi.Resource("resourceclaimtemplates"), template.Name)
		}
		return false, nil, nil
	})
	require.NoError(t, newTemplates(client, &clock{today}).Ensure(t.Context(), "team", template))
	require.Equal(t, []string{template.Name}, names(t, client, "team"))
}

// stored is a template in the API server.
func stored(template *resourceapi.ResourceClaimTemplate, namespace string, created time.Time) *resourceapi.ResourceClaimTemplate {
	template = template.DeepCopy()
	template.Namespace, template.CreationTimestamp, template.UID = namespace, metav1.NewTime(created), types.UID(namespace+template.Name)
	return template
}

func podWith(namespace, name, template string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: new("x")}, {Name: "gpuslice-0", ResourceClaimTemplateName: &template}}}}
}

func TestClean(t *testing.T) {
	const day = 24 * time.Hour
	template := func(memory int64, created time.Time) *resourceapi.ResourceClaimTemplate {
		return Template(claimOf(t, memory), created.Unix()/int64(day/time.Second))
	}
	old, recent := today.Add(-3*day), today.Add(-day)
	unusedOld, usedOld, fresh := template(1, old), template(2, old), template(3, recent)
	foreign := template(4, old)
	foreign.Labels = nil
	objects := func() []runtime.Object {
		return []runtime.Object{
			stored(unusedOld, "team", old), stored(usedOld, "team", old), stored(fresh, "team", recent), stored(foreign, "team", old),
			stored(unusedOld, "other", old), podWith("team", "a", usedOld.Name), podWith("other", "b", "x"),
		}
	}
	client := fake.NewClientset(objects()...)
	require.NoError(t, newTemplates(client, &clock{today}, "team").Clean(t.Context()))
	require.ElementsMatch(t, []string{usedOld.Name, fresh.Name, foreign.Name}, names(t, client, "team"))
	require.Equal(t, []string{unusedOld.Name}, names(t, client, "other"), "another namespace")
	for _, action := range client.Actions() {
		if d, is := action.(clienttesting.DeleteAction); is {
			require.NotNil(t, d.GetDeleteOptions().Preconditions.UID, "only the one that was read")
		}
	}

	client = fake.NewClientset(objects()...)
	require.NoError(t, newTemplates(client, &clock{today}, AllNamespaces).Clean(t.Context()))
	require.ElementsMatch(t, []string{usedOld.Name, fresh.Name, foreign.Name}, names(t, client, "team"))
	require.Empty(t, names(t, client, "other"))
}

// Nothing is removed if the pods can't be read.
func TestCleanErrors(t *testing.T) {
	template := Template(claimOf(t, 1), 1)
	client := fake.NewClientset(stored(template, "team", today.Add(-100*time.Hour)))
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("timeout") })
	require.ErrorContains(t, newTemplates(client, &clock{today}, "team").Clean(t.Context()), "timeout")
	require.Equal(t, []string{template.Name}, names(t, client, "team"))
}

// At whatever time a pod is admitted: the template that it gets is not removed before an hour has passed in which no pod refers to it,
// also if the clock of the replica that removes is ahead.
func TestCleanDuringAdmission(t *testing.T) {
	for hour := range 24 * 4 {
		created := today.Truncate(24 * time.Hour)
		admitted := created.Add(time.Duration(hour) * time.Hour)
		client := fake.NewClientset(stored(Template(claimOf(t, 1), created.Unix()/(24*3600)), "team", created))
		c := &clock{admitted}
		templates := newTemplates(client, c, "team")
		template := Template(claimOf(t, 1), templates.Period())
		require.NoError(t, templates.Ensure(t.Context(), "team", template))
		if list, err := client.ResourceV1().ResourceClaimTemplates("team").Get(t.Context(), template.Name, metav1.GetOptions{}); err == nil && list.CreationTimestamp.IsZero() {
			list.CreationTimestamp = metav1.NewTime(admitted)
			_, err := client.ResourceV1().ResourceClaimTemplates("team").Update(t.Context(), list, metav1.UpdateOptions{})
			require.NoError(t, err)
		}
		c.now = admitted.Add(12 * time.Hour)
		require.NoError(t, templates.Clean(t.Context()))
		require.Contains(t, names(t, client, "team"), template.Name)
	}
}

func sliceWith(name, driver string, kind string, sizes ...string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver}}
	for _, size := range sizes {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: strings.ToLower(size), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{api.DRAAttributeType: {StringValue: &kind}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{api.DRACapacityMemory: {Value: resource.MustParse(size)}},
		})
	}
	return s
}

func TestSizes(t *testing.T) {
	client := fake.NewClientset(sliceWith("a", api.DRADriver, "gpu", "80Gi", "40Gi", "80Gi"), sliceWith("b", api.DRADriver, "mig", "10Gi"))
	c := &clock{today}
	templates := newTemplates(client, c)
	sizes, err := templates.Sizes(t.Context())
	require.NoError(t, err)
	require.Equal(t, Sizes{GPUs: []int64{40 << 10, 80 << 10}, MIG: []int64{10 << 10}}, sizes)
	require.Equal(t, "spec.driver=gpu.gpuslice.io", client.Actions()[0].(clienttesting.ListAction).GetListRestrictions().Fields.String())

	_, err = client.ResourceV1().ResourceSlices().Create(t.Context(), sliceWith("c", api.DRADriver, "gpu", "141Gi"), metav1.CreateOptions{})
	require.NoError(t, err)
	c.now = today.Add(sizesAge - 1)
	sizes, err = templates.Sizes(t.Context())
	require.NoError(t, err)
	require.Len(t, sizes.GPUs, 2, "read a moment ago")
	c.now = today.Add(sizesAge)
	sizes, err = templates.Sizes(t.Context())
	require.NoError(t, err)
	require.Len(t, sizes.GPUs, 3)
}
