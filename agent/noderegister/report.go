package noderegister

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// report takes note of how a look went. A failure is logged once a kind until a look
// succeeds: an API server may be away for hours.
func (p *Publisher) report(ctx context.Context, err error) {
	if err == nil {
		if p.failures > 0 {
			p.cfg.Log.Info("the API server is told of the node again", "node", p.cfg.NodeName, "failures", p.failures)
		}
		p.failures = 0
		clear(p.logged)
		return
	}
	if ctx.Err() != nil {
		return // we end
	}
	p.failures++
	kind, hint := explain(err)
	if p.logged[kind] {
		return
	}
	p.logged[kind] = true
	p.cfg.Log.Error("the API server is not told of the node; containers that run, and grants, don't need it", "node", p.cfg.NodeName, "error", err, "do", hint)
}

// explain says what kind of failure an error is, and what to do.
func explain(err error) (kind, hint string) {
	reason := apierrors.ReasonForError(err)
	switch {
	case reason == metav1.StatusReasonUnauthorized:
		return string(reason), "check the kubeconfig's credentials, or that the pod's service account exists"
	case reason == metav1.StatusReasonForbidden:
		return string(reason), "apply install/agent-rbac.yaml, and run the agent as its service account"
	case reason == metav1.StatusReasonNotFound:
		return string(reason), "give the agent the name that `kubectl get nodes` has for this node"
	case reason != metav1.StatusReasonUnknown:
		return string(reason), "nothing if it passes: it is tried again"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", "check the way to the API server: it is tried again"
	default:
		return "unreachable", "check the API server's address and the way to it: it is tried again"
	}
}
