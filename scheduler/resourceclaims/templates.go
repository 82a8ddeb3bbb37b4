package resourceclaims

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpuslice/gpuslice/api"
)

const (
	// period is how long new pods get the same ResourceClaimTemplate for the same request. After it they get another one. So a
	// template of an earlier period can be removed: no pod that is being created refers to it.
	period = 24 * time.Hour
	// unused is the age at which the period of a template is over for a whole period, also if clocks differ by hours.
	unused = 2 * period
	// sizesAge is how long the sizes of GPUs are not read again.
	sizesAge = time.Minute
)

// AllNamespaces stands for all namespaces.
const AllNamespaces = "*"

// Template has a name of its content and the period.
func Template(spec resourceapi.ResourceClaimSpec, period int64) *resourceapi.ResourceClaimTemplate {
	marked := map[string]string{api.LabelTranslated: "true"}
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: marked},
		Spec:       resourceapi.ResourceClaimTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(marked)}, Spec: spec},
	}
	content, _ := json.Marshal(template.Spec) // no field of these types has an error
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", period, content))
	template.Name = "gpuslice-" + hex.EncodeToString(sum[:12])
	return template
}

// Templates creates ResourceClaimTemplates for pods that are admitted, and removes those that no pod uses. All replicas of the
// webhook can do both at the same time.
type Templates struct {
	Client kubernetes.Interface
	// Namespaces are those of the pods; AllNamespaces: all.
	Namespaces []string
	Now        func() time.Time
	Log        *slog.Logger

	mutex sync.Mutex
	sizes Sizes
	read  time.Time
}

// Period is that of Template.
func (t *Templates) Period() int64 { return t.Now().Unix() / int64(period/time.Second) }

// Sizes reads them from the ResourceSlices.
func (t *Templates) Sizes(ctx context.Context) (Sizes, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if len(t.sizes.GPUs)+len(t.sizes.MIG) > 0 && t.Now().Sub(t.read) < sizesAge {
		return t.sizes, nil
	}
	found := map[string]map[int64]bool{api.DRATypeGPU: {}, api.DRATypeMIG: {}}
	list := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, api.DRADriver).String()
		return t.Client.ResourceV1().ResourceSlices().List(ctx, o)
	}))
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		addSizes(found, object.(*resourceapi.ResourceSlice))
		return nil
	})
	if err != nil {
		return Sizes{}, fmt.Errorf("read the sizes of GPUs from the ResourceSlices: %w", err)
	}
	t.sizes, t.read = Sizes{slices.Sorted(maps.Keys(found[api.DRATypeGPU])), slices.Sorted(maps.Keys(found[api.DRATypeMIG]))}, t.Now()
	return t.sizes, nil
}

// addSizes adds sizes by the type of device.
func addSizes(found map[string]map[int64]bool, slice *resourceapi.ResourceSlice) {
	for _, d := range slice.Spec.Devices {
		memory, there := d.Capacity[api.DRACapacityMemory]
		kind := d.Attributes[api.DRAAttributeType].StringValue
		if mib := memory.Value.Value() >> 20; there && mib > 0 && kind != nil && found[*kind] != nil {
			found[*kind][mib] = true
		}
	}
}

// Ensure creates the template, or checks that it exists with the same content: a user of the namespace can have created it.
func (t *Templates) Ensure(ctx context.Context, namespace string, template *resourceapi.ResourceClaimTemplate) error {
	templates := t.Client.ResourceV1().ResourceClaimTemplates(namespace)
	err := errors.New("it is created and removed again by others")
	for range 3 {
		found, getErr := templates.Get(ctx, template.Name, metav1.GetOptions{})
		switch {
		case getErr == nil && !equality.Semantic.DeepEqual(found.Spec, template.Spec):
			return fmt.Errorf("the ResourceClaimTemplate %s has another content than the pod's request: remove it, and create the pod again", template.Name)
		case getErr == nil && found.DeletionTimestamp != nil:
			return fmt.Errorf("the ResourceClaimTemplate %s is being deleted: create the pod again when it is gone", template.Name)
		case getErr == nil:
			return nil
		case !apierrors.IsNotFound(getErr):
			return fmt.Errorf("read the ResourceClaimTemplate %s: %w", template.Name, getErr)
		}
		created, createErr := templates.Create(ctx, template, metav1.CreateOptions{})
		switch {
		case createErr == nil && !equality.Semantic.DeepEqual(created.Spec, template.Spec):
			return fmt.Errorf("the API server stores the ResourceClaimTemplate %s with another content: a feature gate (DRAConsumableCapacity) is off, or a policy changes it", template.Name)
		case createErr == nil:
			return nil
		}
		err = createErr
		if !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return fmt.Errorf("create the ResourceClaimTemplate %s: %w", template.Name, err)
}

// Clean removes templates of earlier periods that no pod refers to.
func (t *Templates) Clean(ctx context.Context) error {
	namespaces := t.Namespaces
	if slices.Contains(namespaces, AllNamespaces) {
		namespaces = []string{metav1.NamespaceAll}
	}
	var errs []error
	for _, namespace := range namespaces {
		old, err := t.old(ctx, namespace)
		errs = append(errs, err)
		for namespace, templates := range old {
			errs = append(errs, t.remove(ctx, namespace, templates))
		}
	}
	return errors.Join(errs...)
}

// old are the templates of earlier periods, by namespace and name.
func (t *Templates) old(ctx context.Context, namespace string) (map[string]map[string]metav1.ObjectMeta, error) {
	old := map[string]map[string]metav1.ObjectMeta{}
	list := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		o.LabelSelector = labels.Set{api.LabelTranslated: "true"}.String()
		return t.Client.ResourceV1().ResourceClaimTemplates(namespace).List(ctx, o)
	}))
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		found := object.(*resourceapi.ResourceClaimTemplate).ObjectMeta
		if found.DeletionTimestamp == nil && t.Now().Sub(found.CreationTimestamp.Time) > unused {
			if old[found.Namespace] == nil {
				old[found.Namespace] = map[string]metav1.ObjectMeta{}
			}
			old[found.Namespace][found.Name] = found
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaimTemplates: %w", err)
	}
	return old, nil
}

// remove removes those of the namespace's templates that no pod refers to. Kubernetes reads the template of a pod when it makes the
// pod's ResourceClaim, also if that was deleted.
func (t *Templates) remove(ctx context.Context, namespace string, templates map[string]metav1.ObjectMeta) error {
	list := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		return t.Client.CoreV1().Pods(namespace).List(ctx, o)
	}))
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		for _, c := range object.(*corev1.Pod).Spec.ResourceClaims {
			if c.ResourceClaimTemplateName != nil {
				delete(templates, *c.ResourceClaimTemplateName)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	var errs []error
	for name, found := range templates {
		err := t.Client.ResourceV1().ResourceClaimTemplates(namespace).Delete(ctx, name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("remove the ResourceClaimTemplate %s/%s: %w", namespace, name, err))
			continue
		}
		t.Log.Info("removed a ResourceClaimTemplate that no pod uses", "namespace", namespace, "name", name)
	}
	return errors.Join(errs...)
}
