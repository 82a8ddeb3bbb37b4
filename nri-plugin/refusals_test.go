package nriplugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

func TestRefusals(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &Plugin{}
	p.refusals.now = func() time.Time { return now }
	pod := func(uid string) *api.PodSandbox {
		return &api.PodSandbox{Uid: uid, Annotations: map[string]string{gpuapi.AnnotationGrant: "{}"}}
	}
	main := &api.Container{Name: "main"}
	full := grant.Errorf(grant.ErrOverbooked, "the GPU is full")
	require.True(t, p.refusals.note(pod("b"), main, full))
	require.False(t, p.refusals.note(pod("b"), main, full), "the same again")
	require.True(t, p.refusals.note(pod("a"), main, grant.Errorf(ledger.ErrCordoned, "cordoned")))
	require.True(t, p.refusals.note(pod("a"), &api.Container{Name: "other"}, grant.Errorf(grant.ErrUnknownGPU, "no such GPU")))
	require.Equal(t, []string{"a main", "b main"}, refused(p))

	// Another placement does not help, and no scheduler has placed it.
	require.False(t, p.refusals.note(pod("c"), main, grant.Errorf(grant.ErrMalformed, "malformed")))
	require.False(t, p.refusals.note(&api.PodSandbox{Uid: "d"}, main, full))
	// It has room after all.
	require.True(t, p.refusals.note(pod("b"), main, nil))
	require.Equal(t, []string{"a main"}, refused(p))
	// The kubelet does not try again: the pod is gone.
	now = now.Add(refusalKept + time.Second)
	require.Empty(t, refused(p))

	for i := range 2 * mostRefusals {
		now = now.Add(time.Second)
		p.refusals.note(pod(fmt.Sprintf("%03d", i)), main, grant.Errorf(grant.ErrOverbooked, "%s", strings.Repeat("é", 1000)))
	}
	require.Len(t, refused(p), mostRefusals)
	require.Equal(t, fmt.Sprintf("%03d main", mostRefusals), refused(p)[0], "the newest")
	require.LessOrEqual(t, len(p.Refused()[0].Reason), longestRefusal+len("…"))
}

func refused(p *Plugin) (all []string) {
	for _, r := range p.Refused() {
		all = append(all, r.UID+" "+r.Container)
	}
	return all
}
