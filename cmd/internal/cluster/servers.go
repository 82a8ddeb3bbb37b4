package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Values of the label app.kubernetes.io/component, and names of the ports.
const (
	componentAgent     = "agent"
	componentScheduler = "scheduler"
	portMetrics        = "metrics"
	portHTTP           = "http"
)

// UsualNamespaces are searched if no namespace is named.
var UsualNamespaces = []string{"gpuslice-system", "gpuslice", "kube-system"}

var errNotFound = errors.New("not found")

// servers returns the pods of a component, ready ones first, and the names of other pods with its labels: any user can
// set these labels, so only the named namespace, or the only one of UsualNamespaces with such pods, is trusted.
func (c *Cluster) servers(ctx context.Context, component string) (ours []v1.Pod, others []string, err error) {
	pods, err := c.labelled(ctx, component)
	if err != nil {
		return nil, nil, fmt.Errorf("find gpuslice's %s: %w", component, err)
	}
	in := map[string]bool{}
	for _, p := range pods {
		in[p.Namespace] = true
	}
	candidates := UsualNamespaces
	if c.systemNamespace != "" {
		candidates = []string{c.systemNamespace}
	}
	found := slices.DeleteFunc(slices.Clone(candidates), func(namespace string) bool { return !in[namespace] })
	for _, p := range pods {
		if len(found) == 1 && p.Namespace == found[0] {
			ours = append(ours, p)
		} else {
			others = append(others, p.Namespace+"/"+p.Name)
		}
	}
	slices.SortStableFunc(ours, func(a, b v1.Pod) int { return cmp.Compare(readiness(&a), readiness(&b)) })
	slices.Sort(others)
	switch {
	case len(found) > 1:
		return nil, others, fmt.Errorf("gpuslice's %s is %w: several namespaces have pods with its labels (%s): set --system-namespace", component, errNotFound, strings.Join(found, ", "))
	case len(found) == 1:
		return ours, others, nil
	}
	where := "namespace " + strings.Join(candidates, ", ")
	switch {
	case len(others) > 0:
		err = fmt.Errorf("gpuslice's %s is %w in %s; pods elsewhere have its labels and are not trusted (%s): set --system-namespace", component, errNotFound, where, some(others))
	case c.systemNamespace != "":
		err = fmt.Errorf("gpuslice's %s is %w in %s: no pod has the labels %s: check --system-namespace", component, errNotFound, where, labels(component))
	default:
		err = fmt.Errorf("gpuslice's %s is %w: no pod has the labels %s: install it, or set --system-namespace", component, errNotFound, labels(component))
	}
	return nil, others, err
}

func labels(component string) string {
	return "app.kubernetes.io/name=gpuslice,app.kubernetes.io/component=" + component
}

func (c *Cluster) labelled(ctx context.Context, component string) (pods []v1.Pod, err error) {
	list := func(namespace string) error {
		some, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels(component)})
		if err != nil {
			return err
		}
		for _, p := range some.Items {
			if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
				pods = append(pods, p)
			}
		}
		return nil
	}
	all := list(metav1.NamespaceAll)
	if !apierrors.IsForbidden(all) {
		return pods, all
	}
	if c.systemNamespace != "" {
		return pods, list(c.systemNamespace)
	}
	for _, namespace := range UsualNamespaces {
		if err := list(namespace); err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%w; none found in the namespaces %s: set --system-namespace", all, strings.Join(UsualNamespaces, ", "))
	}
	return pods, nil
}

func readiness(p *v1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue && p.DeletionTimestamp == nil {
			return 0
		}
	}
	return 1
}

const maxNames = 5

func some(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}
