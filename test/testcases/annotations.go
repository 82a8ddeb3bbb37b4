// Package testcases has the tables of what admission allows and denies, for the tests of the webhook,
// of install/admission's CEL expressions and on a real API server.
package testcases

// Users.
const (
	Scheduler = "system:serviceaccount:kube-system:gpuslice-scheduler"
	Tenant    = "alice"
	Admin     = "kubernetes-admin" // of the group system:masters
	Kubelet   = "system:node:node-1"
)

// The grant and HAMi's annotation of a pod of one container, "main".
const (
	Grant     = `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"GPU-11111111-1111-1111-1111-111111111111","memoryMiB":8000,"cores":30}]}}`
	Allocated = "GPU-11111111-1111-1111-1111-111111111111,NVIDIA,8000,30:;"
)

// Annotations is a write of a pod's annotations.
type Annotations struct {
	Name string
	// As is the user.
	As string
	// Resource, Subresource and Operation are as admission sees them: pods, pods/status (also a
	// patch of it, an UPDATE), pods/binding, bindings (the old path) …
	Resource, Subresource, Operation string
	// Before are the pod's annotations, nil of a pod that isn't there yet or has none; After are those that
	// are written. Of a Binding there is no Before: its annotations are added to the pod's.
	Before, After map[string]string
	// Labels and SchedulerName are the pod's.
	Labels        map[string]string
	SchedulerName string
	// Namespace is the pod's; empty: any.
	Namespace string
	// Denied: it is denied with a text that has Message.
	Denied  bool
	Message string
	// Dropped: a real API server ignores annotations in this write and returns success. Admission
	// denies it if called.
	Dropped bool
}

func set(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// create, update, status and bind are the ways to write annotations.
func create(as string, after map[string]string) Annotations {
	return Annotations{As: as, Resource: "pods", Operation: "CREATE", After: after}
}

func update(as string, before, after map[string]string) Annotations {
	return Annotations{As: as, Resource: "pods", Operation: "UPDATE", Before: before, After: after}
}

func (a Annotations) by(subresource string) Annotations { a.Subresource = subresource; return a }

func (a Annotations) denied() Annotations {
	a.Denied, a.Message = true, "only the scheduler may set, change or remove annotation"
	return a
}

func (a Annotations) dropped() Annotations { a = a.denied(); a.Dropped = true; return a }

// untolerated is refused the toleration; tolerated is where it is not.
func (a Annotations) untolerated() Annotations {
	a.Denied, a.Message, a.Namespace = true, "would let containers start while the node's agent is down", "team-a"
	return a
}

func (a Annotations) tolerated() Annotations { a.Namespace = "kube-system"; return a }

func (a Annotations) labelled(pairs ...string) Annotations { a.Labels = set(pairs...); return a }

func (a Annotations) scheduler(name string) Annotations { a.SchedulerName = name; return a }

func bind(as string, after map[string]string) Annotations {
	return Annotations{As: as, Resource: "pods", Subresource: "binding", Operation: "CREATE", After: after}
}

// AllAnnotations is the table.
func AllAnnotations() []Annotations {
	granted := set("gpuslice.io/grant", Grant, "hami.io/vgpu-devices-allocated", Allocated, "hami.io/vgpu-node", "node-1", "app", "x")
	tolerant := set("gpuslice.io/tolerate-missing-plugins", "true")
	legacy := bind(Tenant, granted)
	legacy.Resource, legacy.Subresource = "bindings", ""
	cases := []Annotations{
		create(Tenant, nil).named("a pod without annotations"),
		create(Tenant, set("app", "x", "nvidia.com/use-gputype", "H200", "hami.io/gpu-scheduler-policy", "binpack", "gpuslice.io/core-ceiling", "80")).
			named("annotations that are the author's"),
		create(Tenant, set("gpuslice.io/granted", "x", "hami.io/vgpu-nodes", "x", "gpuslice.io/mig", "x", "x.gpuslice.io/grant", "x")).
			named("annotations that only look like the scheduler's"),
		// HAMi #3041: a pod that brings its grant along and names another scheduler.
		create(Tenant, set("hami.io/vgpu-node", "node-1", "hami.io/vgpu-devices-allocated", Allocated, "hami.io/vgpu-devices-to-allocate", Allocated,
			"hami.io/bind-phase", "allocating", "hami.io/bind-time", "1700000000")).scheduler("default-scheduler").denied().
			named("a pod with forged annotations for the default scheduler (HAMi 3041)"),
		create(Tenant, set("gpuslice.io/grant", Grant)).denied().named("a pod with a forged grant"),
		create(Tenant, set("gpuslice.io/grant", "")).denied().named("a pod with an empty grant"),
		create(Admin, set("gpuslice.io/grant", Grant)).denied().named("a pod with a grant, by an administrator"),
		create(Kubelet, set("gpuslice.io/grant", Grant)).denied().named("a pod with a grant, by a kubelet"),
		create(Tenant, set("gpuslice.io/grant", Grant)).labelled("hami.io/webhook", "ignore").denied().named("no label switches it off"),
		create(Tenant, set("gpuslice.io/mig-0", "x")).denied().named("a prefix of ours"),
		create(Tenant, set("tencent.com/predicate-gpu-idx-0", "0", "tencent.com/predicate-time", "1")).denied().named("gpu-manager's prefix"),
		create(Scheduler, granted).named("the scheduler may"),

		update(Tenant, granted, merge(granted, "app", "y")).named("an author's annotation beside a grant"),
		update(Tenant, granted, without(granted, "app")).named("an author's annotation goes"),
		update(Tenant, set("app", "x"), merge(granted)).denied().named("a grant on update"),
		update(Tenant, nil, granted).denied().named("a grant on update of a pod without annotations"),
		update(Tenant, granted, merge(granted, "gpuslice.io/grant", Grant+" ")).denied().named("a grant that is changed"),
		update(Tenant, granted, without(granted, "hami.io/vgpu-devices-allocated")).denied().named("a grant that is removed"),
		update(Tenant, granted, nil).denied().named("all annotations that are removed"),
		update(Admin, granted, nil).denied().named("all annotations that are removed by an administrator"),
		update(Scheduler, granted, set("app", "x")).named("the scheduler may remove them"),

		update(Tenant, granted, merge(granted, "gpuslice.io/resize", `{"main":{"memoryMiB":9000,"cores":40}}`)).named("a request to resize a pod"),
		update(Tenant, merge(granted, "gpuslice.io/resize", `{"main":{"cores":40}}`), granted).named("a request to resize that is taken back"),
		update(Tenant, granted, merge(granted, "gpuslice.io/resize-status", "{}")).denied().named("a forged answer to a request to resize"),
		update(Scheduler, merge(granted, "gpuslice.io/resize", `{"main":{"cores":40}}`), merge(granted, "gpuslice.io/resize-status", "{}")).by("status").
			named("the scheduler's answer to a request to resize"),

		update(Kubelet, granted, granted).by("status").named("the kubelet's status"),
		update(Tenant, nil, granted).by("status").denied().named("a grant by the status"),
		update(Kubelet, granted, without(granted, "gpuslice.io/grant")).by("status").denied().named("a grant that is removed by the status"),
		update(Scheduler, nil, granted).by("status").named("the scheduler's status"),
		update(Tenant, granted, granted).by("ephemeralcontainers").named("an ephemeral container"),
		update(Tenant, nil, granted).by("ephemeralcontainers").dropped().named("a grant by an ephemeral container"),
		update(Tenant, nil, granted).by("resize").dropped().named("a grant by a resize"),

		bind(Tenant, nil).named("a binding"),
		bind(Tenant, set("app", "x")).named("a binding with annotations that are not the scheduler's"),
		bind(Tenant, granted).denied().named("a grant by a binding"),
		legacy.denied().named("a grant by the old path of bindings"),
		bind(Scheduler, granted).named("the scheduler's binding"),

		create(Tenant, tolerant).untolerated().named("a pod that tolerates missing plugins"),
		create(Tenant, tolerant).tolerated().named("a pod of the system that tolerates missing plugins"),
		create(Admin, tolerant).untolerated().named("a pod that tolerates missing plugins, by an administrator"),
		create(Tenant, set("gpuslice.io/tolerate-missing-plugins-not", "true")).named("what only looks like the toleration"),
		update(Tenant, nil, tolerant).untolerated().named("a toleration on update"),
		update(Tenant, set("gpuslice.io/tolerate-missing-plugins", "false"), tolerant).untolerated().named("a toleration that is changed"),
		update(Tenant, tolerant, merge(tolerant, "app", "x")).named("an author's annotation beside a toleration"),
		update(Tenant, tolerant, nil).named("a toleration goes"),
		update(Tenant, nil, tolerant).by("status").untolerated().named("a toleration by the status"),
		bind(Tenant, tolerant).untolerated().named("a toleration by a binding"),
	}
	return cases
}

func (a Annotations) named(name string) Annotations { a.Name = name; return a }

func merge(m map[string]string, pairs ...string) map[string]string {
	merged := set(pairs...)
	for k, v := range m {
		if _, there := merged[k]; !there {
			merged[k] = v
		}
	}
	return merged
}

func without(m map[string]string, keys ...string) map[string]string {
	rest := merge(m)
	for _, k := range keys {
		delete(rest, k)
	}
	return rest
}
