package testcases

// Pod is a new pod.
type Pod struct {
	Name string
	// Manifest is the pod in YAML, as an author writes it, without a name.
	Manifest string
	// Patch is what the mutating webhook makes of it, a JSON patch; empty: nothing. It is of
	// the manifest as it stands here: a real API server has set defaults before.
	Patch string
	// Denied is a part of the reason why it is refused; empty: it is admitted.
	Denied string
	// Scheduler is the scheduler of the admitted pod; empty: as in the manifest.
	Scheduler string
}

// RuntimeClass has to be there on a real API server.
const RuntimeClass = "nvidia"

const (
	ours     = "gpuslice-scheduler"
	toOurs   = `{"op":"add","path":"/spec/schedulerName","value":"gpuslice-scheduler"}`
	requires = `{"op":"add","path":"/metadata/annotations","value":{"required-plugins.noderesource.dev":"[\"gpuslice\"]"}}`
)

// one is a pod of one container, "main", with these limits.
func one(limits string) string {
	return "spec:\n  containers:\n  - name: main\n    image: example.com/main:1\n    resources:\n      limits: {" + limits + "}\n"
}

// AllPods is the table, for the default rules.
func AllPods() []Pod {
	return []Pod{
		{Name: "asks for nothing", Manifest: one("cpu: 1")},
		{Name: "asks for nothing, of a foreign scheduler and on a node", Manifest: "spec:\n  schedulerName: other\n  nodeName: node-1\n  containers:\n  - name: main\n    image: example.com/main:1\n"},
		{Name: "a GPU", Manifest: one("nvidia.com/gpu: 1"), Scheduler: ours, Patch: "[" + toOurs + "," + requires + "]"},
		{Name: "all of HAMi's resources", Scheduler: ours,
			Manifest: one("nvidia.com/gpu: 2, nvidia.com/gpumem: 8000, nvidia.com/gpucores: 30, nvidia.com/priority: 0"),
			Patch:    "[" + toOurs + `,{"op":"add","path":"/spec/containers/0/env","value":[{"name":"CUDA_TASK_PRIORITY","value":"0"}]},` + requires + "]"},
		{Name: "only memory", Manifest: one("nvidia.com/gpumem: 8000"), Scheduler: ours,
			Patch: "[" + toOurs + `,{"op":"add","path":"/spec/containers/0/resources/limits/nvidia.com~1gpu","value":"1"},` +
				`{"op":"add","path":"/spec/containers/0/resources/requests","value":{"nvidia.com/gpu":"1"}},` + requires + "]"},
		{Name: "only cores", Manifest: one("nvidia.com/gpucores: 30"), Scheduler: ours,
			Patch: "[" + toOurs + `,{"op":"add","path":"/spec/containers/0/resources/limits/nvidia.com~1gpu","value":"1"},` +
				`{"op":"add","path":"/spec/containers/0/resources/requests","value":{"nvidia.com/gpu":"1"}},` + requires + "]"},
		{Name: "gpu-manager's", Manifest: one("tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 16"), Scheduler: ours, Patch: "[" + toOurs + "," + requires + "]"},
		{Name: "an init container, a sidecar and one more", Scheduler: ours, Manifest: `
metadata:
  annotations: {app: x}
spec:
  initContainers:
  - {name: first, image: example.com/a:1, resources: {limits: {nvidia.com/gpumem: 100}}}
  - {name: side, image: example.com/a:1, restartPolicy: Always, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/priority: 1}}, env: [{name: A, value: b}]}
  containers:
  - {name: plain, image: example.com/a:1}
  - {name: main, image: example.com/a:1, resources: {limits: {cpu: 1, nvidia.com/gpumem-percentage: 50}, requests: {cpu: 1, nvidia.com/gpumem-percentage: 50}}}
`, Patch: `[` + toOurs + `,
  {"op":"add","path":"/spec/initContainers/0/resources/limits/nvidia.com~1gpu","value":"1"},
  {"op":"add","path":"/spec/initContainers/0/resources/requests","value":{"nvidia.com/gpu":"1"}},
  {"op":"add","path":"/spec/initContainers/1/env/-","value":{"name":"CUDA_TASK_PRIORITY","value":"1"}},
  {"op":"add","path":"/spec/containers/1/resources/limits/nvidia.com~1gpu","value":"1"},
  {"op":"add","path":"/spec/containers/1/resources/requests/nvidia.com~1gpu","value":"1"},
  {"op":"add","path":"/metadata/annotations/required-plugins.noderesource.dev","value":"[\"gpuslice\"]"}]`},
		{Name: "everything is there already", Scheduler: ours, Manifest: `
metadata:
  annotations: {required-plugins.noderesource.dev: "[other, gpuslice]"}
spec:
  schedulerName: gpuslice-scheduler
  containers:
  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/priority: 0}}, env: [{name: CUDA_TASK_PRIORITY, value: "1"}]}
`},
		{Name: "names the default scheduler", Scheduler: ours, Manifest: "spec:\n  schedulerName: default-scheduler\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch: "[" + toOurs + "," + requires + "]"},
		{Name: "a runtime class of its own", Scheduler: ours, Manifest: "spec:\n  runtimeClassName: " + RuntimeClass + "\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch: "[" + toOurs + "," + requires + "]"},
		{Name: "requires other plugins for its containers", Scheduler: ours, Manifest: `
metadata:
  annotations:
    required-plugins.noderesource.dev/container.main: "[other]"
    required-plugins.noderesource.dev/container.plain: "[other]"
    required-plugins.noderesource.dev/pod: ""
spec:
  containers:
  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}
  - {name: second, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}
  - {name: plain, image: example.com/a:1}
`, Patch: "[" + toOurs + `,
  {"op":"add","path":"/metadata/annotations/required-plugins.noderesource.dev~1container.main","value":"[\"other\",\"gpuslice\"]"},
  {"op":"add","path":"/metadata/annotations/required-plugins.noderesource.dev~1pod","value":"[\"gpuslice\"]"}]`},

		{Name: "a foreign scheduler", Denied: `its scheduler "volcano" does not assign GPUs`,
			Manifest: "spec:\n  schedulerName: volcano\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + requires + "]"},
		{Name: "a node's name", Denied: `spec.nodeName "node-1" bypasses the scheduler`,
			Manifest: "spec:\n  nodeName: node-1\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "a privileged container", Denied: `container "main" is privileged`,
			Manifest: "spec:\n  containers:\n  - {name: main, image: example.com/a:1, securityContext: {privileged: true}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "CAP_SYS_ADMIN", Denied: `container "main" has the capability SYS_ADMIN`,
			Manifest: "spec:\n  containers:\n  - {name: main, image: example.com/a:1, securityContext: {capabilities: {add: [NET_ADMIN, SYS_ADMIN]}}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "every capability", Denied: `container "main" has the capability SYS_ADMIN`,
			Manifest: "spec:\n  containers:\n  - {name: main, image: example.com/a:1, securityContext: {capabilities: {add: [all]}}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "another capability", Scheduler: ours,
			Manifest: "spec:\n  containers:\n  - {name: main, image: example.com/a:1, securityContext: {capabilities: {add: [NET_ADMIN], drop: [ALL]}}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "hostPID", Denied: "spec.hostPID shows the pod the processes of other containers",
			Manifest: "spec:\n  hostPID: true\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "CAP_SYS_ADMIN and hostPID without GPUs",
			Manifest: "spec:\n  hostPID: true\n  containers:\n  - {name: main, image: example.com/a:1, securityContext: {capabilities: {add: [SYS_ADMIN]}}}\n"},
		{Name: "a privileged container beside one with a GPU", Scheduler: ours,
			Manifest: "spec:\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n  - {name: root, image: example.com/a:1, securityContext: {privileged: true}}\n",
			Patch:    "[" + toOurs + "," + requires + "]"},
		{Name: "required plugins that are no list", Denied: "must be a list of NRI plugins", Manifest: `
metadata:
  annotations: {required-plugins.noderesource.dev: "{a: b}"}
spec:
  containers:
  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}
`, Patch: "[" + toOurs + "]"},
		{Name: "gpu-manager's 150 cores", Manifest: one("tencent.com/vcuda-core: 150"), Denied: `container "main": tencent.com/vcuda-core: 150: cores above 100 must be a multiple of 100`},
		{Name: "a part of a GPU without memory", Manifest: one("tencent.com/vcuda-core: 30"), Denied: "a part of a GPU needs memory"},
		{Name: "both profiles", Manifest: one("nvidia.com/gpu: 1, tencent.com/vcuda-core: 100"), Denied: "use only one of them"},
		{Name: "more cores than a GPU has", Manifest: one("nvidia.com/gpu: 1, nvidia.com/gpucores: 101"), Denied: "nvidia.com/gpucores: 101"},
		{Name: "memory and a part of it", Manifest: one("nvidia.com/gpu: 1, nvidia.com/gpumem: 1, nvidia.com/gpumem-percentage: 1"), Denied: "use only one of them"},
		{Name: "memory that no number holds", Manifest: one("nvidia.com/gpu: 1, nvidia.com/gpumem: 1e30"), Denied: "nvidia.com/gpumem"},
		{Name: "a rule that can't be read", Denied: "nvidia.com/numa-bind", Manifest: `
metadata:
  annotations: {nvidia.com/numa-bind: perhaps}
spec:
  containers:
  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}
`},
	}
}
