package webhook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

// isTolerance says whether NRI's default validator may read the annotation as the toleration of
// missing plugins: for the pod, or for a container of it. (Kubernetes takes no key of two
// slashes; a key of the operator's own may have one less.)
func isTolerance(key string) bool {
	rest, is := strings.CutPrefix(key, grant.AnnotationTolerance)
	return is && (rest == "" || rest[0] == '/')
}

// checkTolerance refuses who has containers made while the agent is away, and is not to. That
// one is taken away harms nobody.
func (r *Rules) checkTolerance(user, namespace string, before, after map[string]string) string {
	if contains(r.Writers, user) || contains(r.ToleratedUsers, user) || contains(r.ToleratedNamespaces, namespace) {
		return ""
	}
	var set []string
	for key, value := range after {
		if old, there := before[key]; (!there || old != value) && isTolerance(key) {
			set = append(set, key)
		}
	}
	if len(set) == 0 {
		return ""
	}
	slices.Sort(set)
	return fmt.Sprintf("%s %s would let containers start while the node's agent is away, without limits: leave it out "+
		"(the operator names namespaces and users that may have it by --tolerated-namespace and --tolerated-user)",
		plural(len(set), "annotation"), strings.Join(set, ", "))
}
