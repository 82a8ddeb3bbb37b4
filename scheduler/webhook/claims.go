package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/resourceclaims"
)

// Templates are the ResourceClaimTemplates of pods: resourceclaims.Templates.
type Templates interface {
	Period() int64
	Sizes(ctx context.Context) (resourceclaims.Sizes, error)
	Ensure(ctx context.Context, namespace string, template *resourceapi.ResourceClaimTemplate) error
}

// claims is what translate has of the cluster.
type claims struct {
	period int64
	sizes  func() (resourceclaims.Sizes, error)
}

// maxTemplates bounds what one pod makes the webhook create, also if the pod is refused afterwards.
const maxTemplates = 16

// mutator answers /mutate. Only it changes the cluster, and not in a dry run.
type mutator struct {
	rules     Rules
	templates Templates
}

func (m mutator) answer(ctx context.Context, request *admissionv1.AdmissionRequest) answer {
	if len(m.rules.ClaimNamespaces) == 0 {
		return m.rules.answerMutate(request, claims{})
	}
	a := m.rules.answerMutate(request, claims{m.templates.Period(), func() (resourceclaims.Sizes, error) { return m.templates.Sizes(ctx) }})
	if request.DryRun != nil && *request.DryRun {
		return a
	}
	for _, template := range a.templates {
		if err := m.templates.Ensure(ctx, request.Namespace, template); err != nil {
			return reject(ReasonTemplate, fmt.Sprintf("the pod's request becomes a ResourceClaim: %v", err))
		}
	}
	return a
}

func (r *Rules) claims(namespace string) bool {
	return slices.Contains(r.ClaimNamespaces, namespace) || slices.Contains(r.ClaimNamespaces, resourceclaims.AllNamespaces)
}

// translate replaces the pod's requests for GPUs by ResourceClaims. After that the pod requests nothing for which the API server
// calls /validate, so it has validate's checks. It ignores invalid requests: these stay, and validate reports them.
func (r *Rules) translate(pod *corev1.Pod, c claims) answer {
	model := convert.Pod(pod)
	req, err := request.FromPod(model, r.Request)
	if err != nil || req == nil {
		return answer{}
	}
	if pod.Spec.NodeName != "" {
		return reject(ReasonNodeName, fmt.Sprintf("spec.nodeName %q bypasses the scheduler, which allocates ResourceClaims: "+
			"select the node by spec.nodeSelector (kubernetes.io/hostname) or node affinity", pod.Spec.NodeName))
	}
	if message := r.checkPrivileges(pod, model, req); message != "" {
		return reject(ReasonPrivileged, message)
	}
	var sizes resourceclaims.Sizes
	if resourceclaims.NeedsSizes(req) {
		if sizes, err = c.sizes(); err != nil {
			return reject(ReasonTemplate, err.Error())
		}
	}
	t, err := resourceclaims.Translate(model, req, &r.Request.Names, sizes)
	if err != nil {
		return reject(ReasonRequest, err.Error())
	}
	missing, err := missingRequirements(pod.Annotations, withGPUs(model, req), r.RequiredPlugin)
	if err != nil {
		return reject(ReasonPlugin, err.Error())
	}
	a := answer{warnings: append(t.Warnings, r.ignoredPriority(pod.Namespace, req)...)}
	a.patch = addToMap("/metadata/annotations", len(pod.Annotations) > 0, missing)
	if r.RuntimeClass != "" && pod.Spec.RuntimeClassName == nil {
		a.patch = append(a.patch, add("/spec/runtimeClassName", r.RuntimeClass))
	}
	for i := range model.Containers {
		spec, path := containerAt(pod, i)
		if req.Containers[i].GPUs > 0 {
			a.patch = append(a.patch, r.priority(spec, path, model.Containers[i])...)
		}
		a.patch = append(a.patch, r.withoutGPUs(spec, path)...)
	}
	a.addClaims(pod, t.Claims, c.period)
	if len(a.templates) > maxTemplates {
		return reject(ReasonRequest, fmt.Sprintf("its containers have %d different requests for GPUs: a pod can have %d as ResourceClaims", len(a.templates), maxTemplates))
	}
	return a
}

// withoutGPUs removes the requests for GPUs.
func (r *Rules) withoutGPUs(spec *corev1.Container, path string) []operation {
	n := &r.Request.Names
	var patch []operation
	for _, list := range []struct {
		path string
		list corev1.ResourceList
	}{{"/resources/limits/", spec.Resources.Limits}, {"/resources/requests/", spec.Resources.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(list.list)) {
			if slices.Contains([]string{n.Count, n.Memory, n.MemoryPercentage, n.Cores, n.Priority, n.VcudaCore, n.VcudaMemory}, string(name)) {
				patch = append(patch, operation{Op: "remove", Path: path + list.path + token(string(name))})
			}
		}
	}
	return patch
}

// addClaims gives the containers their ResourceClaims, with names that the pod does not have.
func (a *answer) addClaims(pod *corev1.Pod, list []resourceclaims.Claim, period int64) {
	taken := map[string]bool{}
	for _, c := range pod.Spec.ResourceClaims {
		taken[c.Name] = true
	}
	has, next := len(pod.Spec.ResourceClaims) > 0, 0
	for _, c := range list {
		name := ""
		for ; name == "" || taken[name]; next++ {
			name = fmt.Sprintf("gpuslice-%d", next)
		}
		template := resourceclaims.Template(c.Spec, period)
		if !slices.ContainsFunc(a.templates, func(t *resourceapi.ResourceClaimTemplate) bool { return t.Name == template.Name }) {
			a.templates = append(a.templates, template)
		}
		a.patch = append(a.patch, appendTo("/spec/resourceClaims", has, map[string]string{"name": name, "resourceClaimTemplateName": template.Name}))
		has = true
		for _, i := range c.Containers {
			spec, path := containerAt(pod, i)
			a.patch = append(a.patch, appendTo(path+"/resources/claims", len(spec.Resources.Claims) > 0, map[string]string{"name": name}))
		}
	}
}

// appendTo creates the list if needed.
func appendTo(path string, there bool, entry map[string]string) operation {
	if !there {
		return add(path, []any{entry})
	}
	return add(path+"/-", entry)
}
