package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Owners of claims: each reconciles its own only.
const (
	// OwnerNRI is the agent's NRI plugin.
	OwnerNRI = "nri"
	// OwnerRuntime is the OCI runtime wrapper.
	OwnerRuntime = "runtime"
)

// Claim is what a container holds of the node's GPUs.
type Claim struct {
	// ContainerID is the runtime's id of the container.
	ContainerID string `json:"containerID"`
	// Owner is who booked it and who reconciles it: OwnerNRI or OwnerRuntime.
	Owner string `json:"owner"`
	// PodUID, PodNamespace and PodName are empty for a container without a pod.
	PodUID       string `json:"podUID,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
	// Container is the container's name.
	Container string `json:"container"`
	// Shares are what is booked, one a GPU.
	Shares []grant.Share `json:"shares"`
	// Source and Slot are the grant's.
	Source grant.Source `json:"source,omitempty"`
	Slot   *int         `json:"slot,omitempty"`
	// CoreCeiling is the soft ceiling of compute time, in percent; 0: none.
	CoreCeiling int `json:"coreCeiling,omitempty"`
	// HighPriority says that others stand back while it is at work.
	HighPriority bool `json:"highPriority,omitempty"`
	// Mode is how the limits are enforced, for people to read.
	Mode string `json:"mode,omitempty"`
	// CreatedAt is when it was booked. The ledger sets it where it is zero.
	CreatedAt time.Time `json:"createdAt"`
}

// holder names the claim's container for a message.
func (c *Claim) holder() string {
	if c.PodName == "" {
		return fmt.Sprintf("container %q", c.Container)
	}
	return fmt.Sprintf("pod %s/%s container %q", c.PodNamespace, c.PodName, c.Container)
}

// validate checks the claim by itself.
func (c *Claim) validate() error {
	if err := ValidateContainerID(c.ContainerID); err != nil {
		return err
	}
	if c.Owner == "" {
		return grant.Errorf(grant.ErrMalformed, "claim without an owner")
	}
	if c.Container == "" {
		return grant.Errorf(grant.ErrMalformed, "claim without a container name")
	}
	return grant.ValidateShares(c.Shares)
}

// sameAs says whether both claims are for the same thing, whenever they were made.
func (c *Claim) sameAs(other *Claim) bool {
	return c.ContainerID == other.ContainerID && c.Owner == other.Owner &&
		c.PodUID == other.PodUID && c.Container == other.Container &&
		slices.Equal(c.Shares, other.Shares)
}

// isAttemptOf says whether both claims are attempts of one container of one pod.
func (c *Claim) isAttemptOf(other *Claim) bool {
	return c.PodUID != "" && c.PodUID == other.PodUID && c.Owner == other.Owner && c.Container == other.Container
}

// clone returns a copy that shares no memory with the claim.
func (c *Claim) clone() Claim {
	own := *c
	own.Shares = slices.Clone(c.Shares)
	if c.Slot != nil {
		slot := *c.Slot
		own.Slot = &slot
	}
	return own
}

// ValidateContainerID checks an id that is to become a directory's name: 1 to 128
// letters, digits, "_", "." and "-", not beginning with "." or "-".
func ValidateContainerID(id string) error {
	ok := 1 <= len(id) && len(id) <= 128 && id[0] != '.' && id[0] != '-'
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
	}
	if !ok {
		return grant.Errorf(grant.ErrMalformed, "container id %s: must be 1 to 128 of a-z A-Z 0-9 _ . - and begin with a letter, a digit or _", quote.Short(id))
	}
	return nil
}

// recordVersion is the version of grant.json.
const recordVersion = 1

// maxSequence is beyond what a node can reach, and far from where the counter
// would begin again.
const maxSequence = 1 << 62

// record is grant.json: a claim and what the ledger adds to it.
type record struct {
	Version int `json:"version"`
	// Sequence is the generation in which the claim was made. Of several
	// attempts of a container the one with the highest counts.
	Sequence uint64 `json:"sequence"`
	// Restored says that the claim was written down again for a container that
	// was already there; it replaces no other attempt.
	Restored bool `json:"restored,omitempty"`
	// Blocking is there in place of shares, which are not known. (A reader that
	// does not know the field finds a claim without shares, and grants nothing.)
	Blocking *blocking `json:"blocking,omitempty"`
	Claim
}

// stampTime sets the time of booking where it is not set.
func (r *record) stampTime() {
	if r.CreatedAt.IsZero() {
		r.CreatedAt = time.Now().UTC()
	}
}

// supersedes says whether r takes the place of old: a later attempt of the same
// container. Rule: the kubelet creates attempt N+1 when N has ended, but N's
// Stop event may come later and its Remove comes later for sure.
func (r *record) supersedes(old *record) bool {
	return !r.Restored && r.Sequence > old.Sequence && r.isAttemptOf(&old.Claim)
}

// decodeRecord reads grant.json of the directory named id.
func decodeRecord(data []byte, id string) (*record, error) {
	var r record
	if err := r.unmarshal(data); err != nil {
		return nil, fmt.Errorf("not valid JSON: %w", err)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("version %d is not known, only %d is", r.Version, recordVersion)
	}
	if r.Sequence > maxSequence {
		return nil, fmt.Errorf("sequence %d is above %d", r.Sequence, uint64(maxSequence))
	}
	if r.ContainerID != id {
		return nil, fmt.Errorf("is of container %s", quote.Short(r.ContainerID))
	}
	validate := r.validate
	if r.Blocking != nil {
		validate = r.validateBlocking
	}
	if err := validate(); err != nil {
		return nil, err
	}
	return &r, nil
}
