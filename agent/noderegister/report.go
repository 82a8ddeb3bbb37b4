package noderegister

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// report logs each kind of failure once until the next success: an API server can be unreachable for
// hours.
func (p *Publisher) report(ctx context.Context, err error) {
	if err == nil {
		if p.failures > 0 {
			p.cfg.Log.Info("node annotations can be updated again", "node", p.cfg.NodeName, "failures", p.failures)
		}
		p.failures = 0
		clear(p.logged)
		return
	}
	if ctx.Err() != nil {
		return
	}
	p.failures++
	kind, hint := explain(err)
	if p.logged[kind] {
		return
	}
	p.logged[kind] = true
	p.cfg.Log.Error("updating the node annotations failed; containers and grants do not depend on them", "node", p.cfg.NodeName, "error", err, "do", hint)
}

func explain(err error) (kind, hint string) {
	reason := apierrors.ReasonForError(err)
	switch {
	case reason == metav1.StatusReasonUnauthorized:
		return string(reason), "check the kubeconfig's credentials, or that the pod's service account exists"
	case reason == metav1.StatusReasonForbidden:
		return string(reason), "apply install/agent-rbac.yaml, and run the agent as its service account"
	case reason == metav1.StatusReasonNotFound:
		return string(reason), "set --node-name to this node's name in `kubectl get nodes`"
	case reason != metav1.StatusReasonUnknown:
		return string(reason), "retrying; no action needed if this does not persist"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", "retrying; check the connection to the API server"
	default:
		return "unreachable", "retrying; check the address of the API server and the connection to it"
	}
}
