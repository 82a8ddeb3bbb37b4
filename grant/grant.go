// Package grant reads and writes grants: which shares of which GPUs each container of a pod gets. [FromPod] returns
// one container's grant, from gpuslice.io/grant or HAMi's positional annotation, and verifies its signature.
// [CheckGPUs] compares it with the node's GPUs.
package grant

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// Share is one container's part of one GPU.
type Share struct {
	// UUID is NVML's name of the GPU: "GPU-…" or "MIG-…".
	UUID string `json:"uuid"`
	// MemoryMiB is the hard limit of device memory.
	MemoryMiB int64 `json:"memoryMiB"`
	// CorePercent is the share of the compute time, 1 to 100. 0: none is reserved, and there is no limit.
	CorePercent int `json:"cores"`
}

// Source is where a grant comes from.
type Source string

const (
	// SourceNamed is gpuslice.io/grant, keyed by container name.
	SourceNamed Source = "gpuslice"
	// SourceHAMi is HAMi's positional annotation.
	SourceHAMi Source = "hami"
	// SourceVolcano is Volcano's, by position among the containers that request vGPUs.
	SourceVolcano Source = "volcano"
	// SourceReplicas is the equal share of the replicas that the kubelet chose (FromReplicas).
	SourceReplicas Source = "replicas"
	// SourceMIG are the MIG devices that the kubelet chose (FromMIG).
	SourceMIG Source = "mig"
	// SourceResourceClaim are the ResourceClaims that the DRA driver prepared (package dra/prepared).
	SourceResourceClaim Source = "resourceclaim"
)

// Grant is all that one container gets. The shares are in the order of the GPUs in the container.
type Grant struct {
	Container string  `json:"container"`
	Shares    []Share `json:"shares"`
	Source    Source  `json:"source,omitempty"`
	// Position is the place in HAMi's annotation, from 0; nil for a grant by name.
	Position *int `json:"position,omitempty"`
	// ResourceClaims are the requests of Kubernetes' ResourceClaims that the grant is of, "<UID>.<request>".
	ResourceClaims []string `json:"resourceClaims,omitempty"`
}

// GPU is what can be granted of a GPU, or of a MIG device, which has one replica.
type GPU struct {
	UUID        string
	MemoryMiB   int64
	CorePercent int
	// Replicas is the number of containers that can share the GPU.
	Replicas int
	// Parent is the GPU of a MIG device, which shares its cordon; "": unknown, or no MIG device.
	Parent string `json:",omitempty"`
}

// GPUOf returns what can be granted of a device of the node.
func GPUOf(d api.NodeDevice) GPU {
	gpu := GPU{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent, Replicas: d.Replicas}
	if d.GPU != d.UUID {
		gpu.Parent = d.GPU
	}
	return gpu
}

func IsMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// CheckGPUs checks that the node has the GPUs, that they are large enough if empty, and that GPUs and MIG
// devices are not mixed: a program sees only one kind.
func CheckGPUs(shares []Share, gpus map[string]GPU) error {
	for _, share := range shares {
		if IsMIG(share.UUID) != IsMIG(shares[0].UUID) {
			return Errorf(ErrMalformed, "GPUs and MIG devices (%s, %s) can't be in one container: grant only one kind", shares[0].UUID, share.UUID)
		}
		gpu, ok := gpus[share.UUID]
		if !ok {
			return Errorf(ErrUnknownGPU, "GPU %s: this node has no such GPU to share: compare the grant with gpuslice status on the node", share.UUID)
		}
		if share.MemoryMiB > gpu.MemoryMiB {
			return Errorf(ErrOverbooked, "GPU %s: memory %d MiB requested, but the whole GPU has %d MiB to grant: request less",
				share.UUID, share.MemoryMiB, gpu.MemoryMiB)
		}
		if share.CorePercent > gpu.CorePercent {
			return Errorf(ErrOverbooked, "GPU %s: cores %d requested, but the whole GPU has %d to grant: request less",
				share.UUID, share.CorePercent, gpu.CorePercent)
		}
	}
	return nil
}

// Kinds of errors, for errors.Is. The texts of the errors have the details.
var (
	// ErrMalformed: an annotation, a share or an ID has a wrong form.
	ErrMalformed = errors.New("malformed grant")
	// ErrUnknownGPU: this node does not have the GPU.
	ErrUnknownGPU = errors.New("unknown GPU")
	ErrWrongNode  = errors.New("grant for another node")
	// ErrSignature: a required signature is missing or invalid.
	ErrSignature = errors.New("grant not signed")
	// ErrAmbiguous: a positional grant matches several containers.
	ErrAmbiguous = errors.New("ambiguous grant")
	// ErrOverbooked: the GPU has not enough free memory, compute time or replicas.
	ErrOverbooked = errors.New("not enough free GPU capacity")
	// ErrIsolation: the container would have less isolation than its pod requests.
	ErrIsolation = errors.New("not the requested isolation")
)

type refusal struct {
	kind error
	err  error
}

func (r *refusal) Error() string   { return r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{r.kind, r.err} }

// Errorf makes an error of a kind. The format can have %w.
func Errorf(kind error, format string, args ...any) error {
	return &refusal{kind: kind, err: fmt.Errorf(format, args...)}
}
