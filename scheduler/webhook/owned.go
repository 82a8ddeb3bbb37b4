package webhook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// changedOwned are the scheduler's annotations that one has and the other hasn't, or has
// otherwise, sorted.
func changedOwned(before, after map[string]string) []string {
	var changed []string
	for key, value := range after {
		if old, there := before[key]; (!there || old != value) && wire.IsOwned(key) {
			changed = append(changed, key)
		}
	}
	for key := range before {
		if _, there := after[key]; !there && wire.IsOwned(key) {
			changed = append(changed, key)
		}
	}
	slices.Sort(changed)
	return changed
}

// checkOwned refuses who changes the scheduler's annotations and is none of the writers.
// Taking one away is a change: who does it makes a GPU look free that is in use.
func (r *Rules) checkOwned(user string, before, after map[string]string) string {
	changed := changedOwned(before, after)
	if len(changed) == 0 || contains(r.Writers, user) {
		return ""
	}
	return fmt.Sprintf("only the scheduler may set, change or remove %s %s, and user %q is not the scheduler: leave %s as it is "+
		"(the operator names the scheduler's users by --annotation-writer)",
		plural(len(changed), "annotation"), strings.Join(changed, ", "), user, plural(len(changed), "it", "them"))
}

func plural(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return one
	case len(many) > 0:
		return many[0]
	}
	return one + "s"
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
