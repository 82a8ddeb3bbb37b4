package nriplugin

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

const (
	// refusalKept is longer than the kubelet's longest pause between two tries (5 minutes).
	refusalKept    = 6 * time.Minute
	mostRefusals   = 64 // the newest; they are an annotation of the Node
	longestRefusal = 300
)

// refusals are the containers with a grant that this node can't serve. The scheduler evicts their pods: it has placed them on GPUs that
// others have, or that are not there any more.
type refusals struct {
	mu  sync.Mutex
	all map[refusedContainer]refusal
	now func() time.Time // nil: time.Now
}

type refusedContainer struct{ podUID, name string }

type refusal struct {
	reason string
	last   time.Time
}

func (r *refusals) clock() time.Time {
	if r.now != nil {
		return r.now()
	}
	return time.Now()
}

// note keeps or ends a container's refusal, and reports whether anything has changed.
func (r *refusals) note(pod *api.PodSandbox, ctr *api.Container, err error) (changed bool) {
	key := refusedContainer{pod.GetUid(), ctr.GetName()}
	r.mu.Lock()
	defer r.mu.Unlock()
	before, there := r.all[key]
	if !refusesGrant(pod, err) {
		delete(r.all, key)
		return there
	}
	if !there && len(r.all) >= mostRefusals {
		delete(r.all, r.oldest())
	}
	if r.all == nil {
		r.all = map[refusedContainer]refusal{}
	}
	reason := err.Error()
	if len(reason) > longestRefusal {
		reason = strings.ToValidUTF8(reason[:longestRefusal], "") + "…"
	}
	r.all[key] = refusal{reason, r.clock()}
	return !there || before.reason != reason
}

func (r *refusals) oldest() (key refusedContainer) {
	for k, v := range r.all {
		if last := r.all[key].last; last.IsZero() || v.last.Before(last) {
			key = k
		}
	}
	return key
}

// refusesGrant is true if another placement may help, and a scheduler has placed the pod.
func refusesGrant(pod *api.PodSandbox, err error) bool {
	annotations := pod.GetAnnotations()
	placed := annotations[gpuapi.AnnotationGrant] != "" || annotations[gpuapi.AnnotationHAMiAllocated] != ""
	return placed && (errors.Is(err, grant.ErrOverbooked) || errors.Is(err, grant.ErrUnknownGPU) || errors.Is(err, ledger.ErrCordoned))
}

// Refused returns the pods, one entry for each, in the order of their UIDs.
func (p *Plugin) Refused() (pods []gpuapi.RefusedPod) {
	r := &p.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.clock().Add(-refusalKept)
	for key, refused := range r.all {
		if refused.last.Before(oldest) {
			delete(r.all, key)
			continue
		}
		pods = append(pods, gpuapi.RefusedPod{UID: key.podUID, Container: key.name, Reason: refused.reason})
	}
	slices.SortFunc(pods, func(a, b gpuapi.RefusedPod) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Container, b.Container))
	})
	return slices.CompactFunc(pods, func(a, b gpuapi.RefusedPod) bool { return a.UID == b.UID })
}
