package api

// NodeGPUsVersion changes with the meaning of a field of NodeGPUs, not with a new field.
const NodeGPUsVersion = 1

// NodeGPUs is the value of AnnotationNodeGPUs. Unknown fields are ignored.
type NodeGPUs struct {
	Version int       `json:"version"`
	GPUs    []NodeGPU `json:"gpus"`
	// Links are the scores of the connections between GPUs (HAMiScore), symmetric, by index of GPUs; absent: unknown.
	Links [][]int `json:"links,omitempty"`
}

// NodeGPU is a GPU that a node offers. Pointers are required fields, except NUMA.
type NodeGPU struct {
	UUID  string `json:"uuid"`
	Model string `json:"model"` // as in HAMiGPU
	Index int    `json:"index"`
	NUMA  *int   `json:"numa,omitempty"` // absent: unknown
	// MemoryMiB, Cores and Replicas are the grantable amounts.
	MemoryMiB *int64 `json:"memoryMiB"`
	Cores     *int   `json:"cores"`
	Replicas  *int   `json:"replicas"`
	Mode      string `json:"mode"`
	Healthy   *bool  `json:"healthy"`
	// Isolation is that of a share of the GPU; absent: the agent does not check what pods request.
	Isolation string `json:"isolation,omitempty"`
	// Others is what containers have that no scheduler placed: docker's, podman's, CDI slices.
	Others *NodeUse `json:"others,omitempty"`
}

// NodeUse is a part of a NodeGPU's grantable amounts.
type NodeUse struct {
	MemoryMiB int64 `json:"memoryMiB"`
	Cores     int   `json:"cores"`
	Replicas  int   `json:"replicas"`
}

// RefusedPod is an entry of AnnotationNodeRefused.
type RefusedPod struct {
	UID       string `json:"uid"`
	Container string `json:"container"`
	Reason    string `json:"reason"`
}

const (
	ModeShared = "hami-core"
	ModeMIG    = "mig"
	ModeMPS    = "mps"
)

// HAMiGPU is a GPU in AnnotationHAMiRegister. HAMi omits zero values: a GPU without "health" is unhealthy. It reads
// numbers as int32.
type HAMiGPU struct {
	ID     string `json:"id,omitempty"`
	Index  int    `json:"index,omitempty"`
	Count  int    `json:"count,omitempty"`
	Memory int64  `json:"devmem,omitempty"` // MiB
	Core   int    `json:"devcore,omitempty"`
	Type   string `json:"type,omitempty"` // the model, with the prefix "NVIDIA"
	NUMA   int    `json:"numa,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Health bool   `json:"health,omitempty"`
}

// HAMiScore is a GPU in AnnotationHAMiScore: the scores of its connections, by UUID.
type HAMiScore struct {
	UUID   string         `json:"uuid"`
	Scores map[string]int `json:"score"`
}
