package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/test/testcases"
)

// TestRights: what the webhook does with the API server is what webhook.yaml lets it, and that is no more.
func TestRights(t *testing.T) {
	listener := listen(t)
	s := newServer(t, listener.Addr(), "configurations.yaml", "webhook.yaml")
	s.client.ClearActions()
	webhookServer(t, s.client, listener)
	forged := annotationWrite(testcases.Annotations{As: testcases.Tenant, Resource: "pods", Operation: "CREATE", After: map[string]string{"hami.io/gpu-scheduler-policy": "binpack"}})
	eventually(t, "the webhook is trusted", func() error { return s.admit(forged, s.validating) })

	type right struct{ verb, group, resource, name string }
	used := map[right]bool{}
	for _, action := range s.client.Actions() {
		r := right{verb: action.GetVerb(), group: action.GetResource().Group, resource: action.GetResource().Resource}
		switch a := action.(type) {
		case clienttesting.GetAction: // and a PatchAction
			r.name = a.GetName()
		case clienttesting.UpdateAction:
			r.name = a.GetObject().(*corev1.Secret).Name
		}
		if r.verb != "list" && r.verb != "watch" { // the admission plugins' informers
			used[r] = true
		}
	}
	granted := map[right]bool{}
	for _, object := range load(t, "webhook.yaml") {
		var rules []rbacv1.PolicyRule
		switch o := object.(type) {
		case *rbacv1.Role:
			rules = o.Rules
		case *rbacv1.ClusterRole:
			rules = o.Rules
		}
		for _, rule := range rules {
			require.NotEmpty(t, rule.ResourceNames, "a right to objects that aren't ours")
			for _, verb := range rule.Verbs {
				for _, resource := range rule.Resources {
					granted[right{verb, rule.APIGroups[0], resource, rule.ResourceNames[0]}] = true
				}
			}
		}
	}
	require.NotEmpty(t, granted)
	require.Equal(t, granted, used)
}

// TestEveryNamespaceIsCovered: the webhooks and the policy are for every namespace.
func TestEveryNamespaceIsCovered(t *testing.T) {
	s := newServer(t, nil, "configurations.yaml", "policy.yaml")
	forged := annotationWrite(testcases.Annotations{As: testcases.Admin, Resource: "pods", Operation: "CREATE", After: map[string]string{"gpuslice.io/grant": "x"}})
	inForce(t, s, forged)
	for _, namespace := range []string{"team-a", "kube-system"} {
		forged.namespace = namespace
		require.ErrorContains(t, s.admit(forged, s.policy), "only the scheduler")
		require.ErrorContains(t, s.admit(forged, s.validating), "failed calling webhook")
	}
}
