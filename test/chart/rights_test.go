//go:build root

package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// rights are all that the chart grants, each with its reason. A right is "subject: verb group/resource", with
// its namespace in front and the names of objects at the end. The tests of agent/noderegister,
// monitor/audit/podevents and test/admission check that the code uses each right of the agent, the extender
// and the webhook. In test/e2e all run with these rights and no others.
var rights = map[string]string{
	"agent: get nodes":     "agent/noderegister reads its Node: what it has written, and schedulers have asked",
	"agent: patch nodes":   "and writes annotations and labels that describe the GPUs",
	"agent: list pods":     "agent/podwatch follows the pods of its node, for those that are resized",
	"agent: watch pods":    "the same",
	"agent: create events": "monitor/audit/podevents reports violations to users",
	"agent: patch events":  "and counts an event up that comes again",

	"scheduler: is system:kube-scheduler":                                     "it is one",
	"scheduler: is system:volume-scheduler":                                   "and places pods with volumes",
	"scheduler: kube-system: is extension-apiserver-authentication-reader":    "it checks that a client may read its metrics",
	"scheduler: get resourcequotas":                                           "client-go's informer",
	"scheduler: list resourcequotas":                                          "scheduler/quota counts what a ResourceQuota can't",
	"scheduler: watch resourcequotas":                                         "the same",
	"scheduler: get storage.k8s.io/volumeattachments":                         "system:kube-scheduler has it since Kubernetes 1.32",
	"scheduler: list storage.k8s.io/volumeattachments":                        "the same",
	"scheduler: watch storage.k8s.io/volumeattachments":                       "the same",
	"scheduler: list scheduling.k8s.io/podgroups":                             "how many pods of a group are placed together",
	"scheduler: watch scheduling.k8s.io/podgroups":                            "how many pods of a group are placed together",
	"scheduler: list scheduling.x-k8s.io/podgroups":                           "the same",
	"scheduler: watch scheduling.x-k8s.io/podgroups":                          "the same",
	"scheduler: list scheduling.volcano.sh/podgroups":                         "the same",
	"scheduler: watch scheduling.volcano.sh/podgroups":                        "the same",
	"scheduler: create pods/eviction":                                         "pods are evicted for others by quota, and pods that their node refuses are placed again",
	"scheduler: gpus: get coordination.k8s.io/leases [gpuslice-scheduler]":    "one of the replicas schedules",
	"scheduler: gpus: update coordination.k8s.io/leases [gpuslice-scheduler]": "the same",

	"webhook: gpus: get secrets [gpuslice-webhook-certificate]":                              "its certificate, which the replicas share",
	"webhook: gpus: update secrets [gpuslice-webhook-certificate]":                           "which they renew",
	"webhook: get admissionregistration.k8s.io/mutatingwebhookconfigurations [gpuslice]":     "the API server gets the certificate's authority from it",
	"webhook: patch admissionregistration.k8s.io/mutatingwebhookconfigurations [gpuslice]":   "the same",
	"webhook: get admissionregistration.k8s.io/validatingwebhookconfigurations [gpuslice]":   "the same",
	"webhook: patch admissionregistration.k8s.io/validatingwebhookconfigurations [gpuslice]": "the same",
}

// ofKeys are the rights of the Job that creates the grant keys.
var ofKeys = map[string]string{
	"grant-keys: gpus: create secrets":                                 "the private key; RBAC has no names for what does not exist yet",
	"grant-keys: gpus: create configmaps":                              "the public key",
	"grant-keys: gpus: get secrets [gpuslice-grant-private-keys]":      "an existing key stays",
	"grant-keys: gpus: get configmaps [gpuslice-grant-public-keys]":    "the same",
	"grant-keys: gpus: update configmaps [gpuslice-grant-public-keys]": "public keys of a private key that is lost are replaced",
}

// ofDiscovery are the rights of the discovery. The admission policy restricts them to one label of its own Node.
var ofDiscovery = map[string]string{
	"discovery: get nodes":   "whether the Node has the label, and an operator's value of it",
	"discovery: patch nodes": "the label",
}

// ofDRA are the rights that exist only with DRA. The admission policy restricts them to the ResourceSlices of the agent's own Node.
var ofDRA = map[string]string{
	"agent: get resource.k8s.io/resourceslices":    "package dra: client-go's informer",
	"agent: list resource.k8s.io/resourceslices":   "the ResourceSlices of its node",
	"agent: watch resource.k8s.io/resourceslices":  "a kubelet that starts removes them",
	"agent: create resource.k8s.io/resourceslices": "its GPUs",
	"agent: update resource.k8s.io/resourceslices": "their health",
	"agent: delete resource.k8s.io/resourceslices": "GPUs that are gone",
	"agent: get resource.k8s.io/resourceclaims":    "what kube-scheduler allocated",

	"agent: patch resource.k8s.io/resourceclaims/status":                                   "what its devices are: status.devices",
	"agent: associated-node:patch resource.k8s.io/resourceclaims/driver [gpu.gpuslice.io]": "the API server's rule for it: of its driver, and on its Node",
}

// ofClaims are the rights of the webhook that exist only with dra.claimNamespaces.
func ofClaims(namespaces ...string) map[string]string {
	all := map[string]string{"webhook: list resource.k8s.io/resourceslices": "scheduler/resourceclaims: the sizes of GPUs, for percentages"}
	for _, namespace := range namespaces {
		for right, why := range map[string]string{
			"get resource.k8s.io/resourceclaimtemplates":    "whether there is one for an equal request, with the same content",
			"create resource.k8s.io/resourceclaimtemplates": "one for a new pod",
			"list resource.k8s.io/resourceclaimtemplates":   "those of earlier days",
			"delete resource.k8s.io/resourceclaimtemplates": "and that no pod uses",
			"list pods": "which pods use them",
		} {
			all["webhook: "+namespace+right] = why
		}
	}
	return all
}

// ofQuota are the rights that exist only with gpu-manager's quota.
var ofQuota = map[string]string{
	"scheduler: kube-system: get configmaps [gpuquota]":   "the quota",
	"scheduler: kube-system: list configmaps [gpuquota]":  "the same",
	"scheduler: kube-system: watch configmaps [gpuquota]": "the same",
}

// ofExtender are those of a scheduler that is asked by the cluster's own.
var ofExtender = map[string]string{
	"scheduler: list nodes":                        "the GPUs, in annotations",
	"scheduler: watch nodes":                       "the same",
	"scheduler: list resourcequotas":               "scheduler/quota",
	"scheduler: watch resourcequotas":              "the same",
	"scheduler: list policy/poddisruptionbudgets":  "the pods that are evicted last",
	"scheduler: watch policy/poddisruptionbudgets": "the same",
	"scheduler: get pods":                          "a pod is read again after a bind without an answer",
	"scheduler: list pods":                         "the GPUs of each pod",
	"scheduler: watch pods":                        "the same",
	"scheduler: create events":                     "what became of a request to resize a pod",
	"scheduler: patch events":                      "the same",
	"scheduler: kube-system: get coordination.k8s.io/leases [kube-scheduler]": "GPUs are granted beside the kube-scheduler that leads",
	"scheduler: create pods/binding":                                          "the bind, with the grant in its annotations",
	"scheduler: patch pods/status":                                            "a pod is changed after a bind without an answer, so that the bind fails",
	"scheduler: list scheduling.k8s.io/podgroups":                             "how many pods of a group are placed together",
	"scheduler: watch scheduling.k8s.io/podgroups":                            "how many pods of a group are placed together",
	"scheduler: list scheduling.x-k8s.io/podgroups":                           "the same",
	"scheduler: watch scheduling.x-k8s.io/podgroups":                          "the same",
	"scheduler: list scheduling.volcano.sh/podgroups":                         "the same",
	"scheduler: watch scheduling.volcano.sh/podgroups":                        "the same",
	"scheduler: create pods/eviction":                                         "pods are evicted for memory and cores, which kube-scheduler does not count; pods that their node refuses are placed again",
}

// granted are the rights that the objects give to service accounts.
func granted(t *testing.T, found []runtime.Object) map[string]bool {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, o := range found {
		switch o := o.(type) {
		case *rbacv1.Role:
			rules["Role/"+o.Namespace+"/"+o.Name] = o.Rules
		case *rbacv1.ClusterRole:
			rules["ClusterRole//"+o.Name] = o.Rules
		}
	}
	all := map[string]bool{}
	add := func(ref rbacv1.RoleRef, namespace string, subjects []rbacv1.Subject) {
		require.Len(t, subjects, 1)
		require.Equal(t, "ServiceAccount", subjects[0].Kind)
		require.Equal(t, "gpus", subjects[0].Namespace)
		who := strings.TrimPrefix(subjects[0].Name, "gpuslice-") + ": "
		if namespace != "" {
			who += namespace + ": "
		}
		in := ""
		if ref.Kind == "Role" {
			in = namespace
		}
		ours, known := rules[ref.Kind+"/"+in+"/"+ref.Name]
		if !known {
			require.False(t, strings.HasPrefix(ref.Name, "gpuslice"), "%s %s is not there", ref.Kind, ref.Name)
			all[who+"is "+ref.Name] = true
			return
		}
		for _, rule := range ours {
			require.Empty(t, rule.NonResourceURLs)
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						right := who + verb + " " + strings.TrimPrefix(group+"/"+resource, "/")
						if len(rule.ResourceNames) > 0 {
							right += " " + fmt.Sprint(rule.ResourceNames)
						}
						require.NotContains(t, right, "*")
						all[right] = true
					}
				}
			}
		}
	}
	for _, o := range found {
		switch o := o.(type) {
		case *rbacv1.RoleBinding:
			add(o.RoleRef, o.Namespace, o.Subjects)
		case *rbacv1.ClusterRoleBinding:
			add(o.RoleRef, "", o.Subjects)
		}
	}
	return all
}

// Every right is needed and has a reason.
func TestRights(t *testing.T) {
	want := func(tables ...map[string]string) []string {
		all := map[string]string{}
		for _, table := range tables {
			maps.Copy(all, table)
		}
		return slices.Sorted(maps.Keys(all))
	}
	only := func(who string) map[string]string {
		some := maps.Clone(rights)
		maps.DeleteFunc(some, func(right, _ string) bool { return !strings.HasPrefix(right, who+": ") })
		return some
	}
	for name, tc := range map[string]struct{ values, want []string }{
		"default":           {nil, want(rights, ofKeys)},
		"quota":             {[]string{`scheduler.settings={"gpuQuota":"kube-system/gpuquota"}`}, want(rights, ofKeys, ofQuota)},
		"extender":          {[]string{`scheduler.mode="extender"`}, want(only("agent"), only("webhook"), ofKeys, ofExtender)},
		"agent":             {[]string{`scheduler.enabled=false`, `webhook.enabled=false`}, want(only("agent"), ofKeys)},
		"keys":              {variants["keys"], want(rights)},
		"dra":               {variants["dra"], want(rights, ofKeys, ofDRA)},
		"claims":            {variants["claims"], want(rights, ofKeys, ofDRA, ofClaims("team-a: ", "team-b: "))},
		"claims everywhere": {[]string{`dra={"enabled":true,"claimNamespaces":["a","*"]}`}, want(rights, ofKeys, ofDRA, ofClaims(""))},
		"discovery":         {variants["discovery"], want(rights, ofKeys, ofDiscovery)},
		// A user that keeps the certificate needs no right to the webhook's.
		"certificate": {[]string{`webhook.certificate={"existingSecret":"tls","caBundle":"Y2E="}`}, want(only("agent"), only("scheduler"), ofKeys)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, slices.Sorted(maps.Keys(granted(t, objects(t, render(t, "gpus", tc.values...))))))
		})
	}
}

// The roles for users are bound to no user, don't cover Secrets, and allow what the CLI writes.
func TestRightsOfPeople(t *testing.T) {
	found := map[string][]string{}
	for _, o := range objects(t, renderOnly(t, "people.yaml")) {
		role := o.(*rbacv1.ClusterRole)
		for _, rule := range role.Rules {
			require.Contains(t, [][]string{{""}, {"resource.k8s.io"}}, rule.APIGroups)
			for _, resource := range rule.Resources {
				found[role.Name] = append(found[role.Name], resource+" "+strings.Join(rule.Verbs, ","))
			}
		}
		slices.Sort(found[role.Name])
	}
	require.Equal(t, map[string][]string{
		"gpuslice-view":    {"deviceclasses list", "nodes get,list", "pods get,list", "resourceclaims get,list", "resourceslices list"},
		"gpuslice-edit":    {"pods get,list,patch"},
		"gpuslice-operate": {"nodes get,list,patch", "pods get,list", "pods/eviction create"},
		"gpuslice-ask":     {"pods get,list", "pods/proxy get"},
	}, found)
}
