package grant

import "strings"

// GPU is what one GPU may be booked for, after the node's scaling. A MIG device is a
// GPU too: with its own memory, all of its compute time, and one slot.
type GPU struct {
	// UUID names the GPU as NVML does.
	UUID string
	// MemoryMiB is the device memory that may be granted, in MiB.
	MemoryMiB int64
	// CorePercent is the compute time that may be granted: 100 for a whole GPU.
	CorePercent int
	// Slots is how many containers may have a share of the GPU. 0 means none.
	Slots int
	// Parent is the GPU that a MIG device is of, whose cordon is the device's, too; empty
	// of a GPU, and where nobody said it.
	Parent string `json:",omitempty"`
}

// IsMIG says whether a UUID is a MIG device's.
func IsMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// CheckGPUs says whether the node has every GPU of the shares, whether each GPU is
// large enough when it is empty, and whether they are of one kind: a program sees either
// GPUs or a MIG device, so that who was given both was limited on one of them by
// chance. What is left of a GPU is the ledger's to say.
func CheckGPUs(shares []Share, gpus map[string]GPU) error {
	for _, share := range shares {
		if IsMIG(share.UUID) != IsMIG(shares[0].UUID) {
			return Errorf(ErrMalformed, "GPUs and MIG devices (%s, %s) don't go together in one container: grant one or the other", shares[0].UUID, share.UUID)
		}
		gpu, ok := gpus[share.UUID]
		if !ok {
			return Errorf(ErrUnknownGPU, "GPU %s: this node has no such GPU to share: compare the grant with gpuslice status on the node", share.UUID)
		}
		if share.MemoryMiB > gpu.MemoryMiB {
			return Errorf(ErrOverbooked, "GPU %s: memory %d MiB asked, but the whole GPU may be booked for %d MiB: ask for less",
				share.UUID, share.MemoryMiB, gpu.MemoryMiB)
		}
		if share.CorePercent > gpu.CorePercent {
			return Errorf(ErrOverbooked, "GPU %s: cores %d asked, but the whole GPU may be booked for %d: ask for less",
				share.UUID, share.CorePercent, gpu.CorePercent)
		}
	}
	return nil
}
