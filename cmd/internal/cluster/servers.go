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

// Components that answer through the proxy: the label app.kubernetes.io/component of their
// pods, and the name of their port.
const (
	componentAgent     = "agent"
	componentScheduler = "scheduler"
	portMetrics        = "metrics"
	portHTTP           = "http"
)

// UsualNamespaces are those that gpuslice is looked for in, where none is named.
var UsualNamespaces = []string{"gpuslice-system", "gpuslice", "kube-system"}

// errNotFound is of a component of which no pod could be found that is to be believed.
var errNotFound = errors.New("not found")

// servers are the pods of a component that are asked, ready ones first, and the names of others that have
// its labels. Anybody who may make pods can give his own those labels: pods of one namespace are believed, the one
// that the caller names, or else the only one of UsualNamespaces that has any.
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
		return nil, others, fmt.Errorf("gpuslice's %s is %w: pods with its labels are in the namespaces %s: say by --system-namespace which is gpuslice's own", component, errNotFound, strings.Join(found, ", "))
	case len(found) == 1:
		return ours, others, nil
	}
	where := "namespace " + strings.Join(candidates, ", ")
	switch {
	case len(others) > 0:
		err = fmt.Errorf("gpuslice's %s is %w in %s, and not looked for elsewhere, for anybody's pods may have its labels, as %s: name gpuslice's own namespace by --system-namespace", component, errNotFound, where, some(others))
	case c.systemNamespace != "":
		err = fmt.Errorf("gpuslice's %s is %w in %s (--system-namespace): it has no pod with the labels %s", component, errNotFound, where, labels(component))
	default:
		err = fmt.Errorf("gpuslice's %s is %w: no pod has the labels %s", component, errNotFound, labels(component))
	}
	return nil, others, err
}

func labels(component string) string {
	return "app.kubernetes.io/name=gpuslice,app.kubernetes.io/component=" + component
}

// labelled are the pods with a component's labels that have not ended: of all namespaces, or, for who may not list
// those, of the ones that it may be in.
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
		return nil, fmt.Errorf("%w; and none that you may list is in namespace %s: if gpuslice is elsewhere, name its namespace by --system-namespace", all, strings.Join(UsualNamespaces, ", "))
	}
	return pods, nil
}

// readiness is 0 of a pod that is ready, and stays.
func readiness(p *v1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue && p.DeletionTimestamp == nil {
			return 0
		}
	}
	return 1
}

// mostNamed bounds how many names a message has.
const mostNamed = 5

// some are the first few of the names.
func some(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}
