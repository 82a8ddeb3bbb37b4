package webhook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// changedOwned returns the keys of scheduler annotations that differ, sorted. A removal counts: it
// makes GPUs look free that are in use.
func changedOwned(before, after map[string]string) []string {
	changed := added(before, after, wire.IsOwned)
	for key := range before {
		if _, there := after[key]; !there && wire.IsOwned(key) {
			changed = append(changed, key)
		}
	}
	slices.Sort(changed)
	return changed
}

// added returns the matching keys that are new or have a new value, sorted.
func added(before, after map[string]string, matches func(key string) bool) []string {
	var keys []string
	for key, value := range after {
		if old, there := before[key]; (!there || old != value) && matches(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// checkOwned rejects changes of scheduler annotations by users that are not Writers.
func (r *Rules) checkOwned(user string, before, after map[string]string) string {
	changed := changedOwned(before, after)
	if len(changed) == 0 || slices.Contains(r.Writers, user) {
		return ""
	}
	it := "it"
	if len(changed) > 1 {
		it = "them"
	}
	return fmt.Sprintf("only the scheduler may set, change or remove %s, and user %q is not the scheduler: leave %s as it is "+
		"(the operator names the scheduler's users by --annotation-writer)", annotations(changed), user, it)
}

// isTolerance reports whether NRI's default validator may read the annotation as the toleration of
// missing plugins, for the pod or a container.
func isTolerance(key string) bool {
	rest, is := strings.CutPrefix(key, grant.AnnotationTolerance)
	return is && (rest == "" || rest[0] == '/')
}

// checkTolerance rejects tolerations, which let containers start while the agent is away. Removing
// one is allowed.
func (r *Rules) checkTolerance(user, namespace string, before, after map[string]string) string {
	if slices.Contains(r.Writers, user) || slices.Contains(r.ToleratedUsers, user) || slices.Contains(r.ToleratedNamespaces, namespace) {
		return ""
	}
	set := added(before, after, isTolerance)
	if len(set) == 0 {
		return ""
	}
	return fmt.Sprintf("%s would let containers start while the node's agent is away, without limits: leave it out "+
		"(the operator names namespaces and users that may have it by --tolerated-namespace and --tolerated-user)", annotations(set))
}

func annotations(keys []string) string {
	word := "annotation "
	if len(keys) > 1 {
		word = "annotations "
	}
	return word + strings.Join(keys, ", ")
}
