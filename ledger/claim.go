package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/limiter"
)

// Owners of claims. Each owner reconciles only its own claims.
const (
	OwnerNRI     = api.OwnerNRI
	OwnerRuntime = api.OwnerRuntime
)

// Claim is a container's reservation of shares, or that of several containers with the same requests of ResourceClaims.
type Claim struct {
	ContainerID string `json:"containerID"`
	Owner       string `json:"owner"`
	// The pod's fields are empty for a container without a pod.
	PodUID       string        `json:"podUID,omitempty"`
	PodNamespace string        `json:"podNamespace,omitempty"`
	PodName      string        `json:"podName,omitempty"`
	Container    string        `json:"container"`
	Shares       []grant.Share `json:"shares"`
	Source       grant.Source  `json:"source,omitempty"`
	Position     *int          `json:"position,omitempty"`
	// ResourceClaims are the requests of Kubernetes' ResourceClaims that it has, "<UID>.<request>": one claim has each.
	ResourceClaims []string `json:"resourceClaims,omitempty"`
	// Members are the containers of a common claim (Common). The fields above are the first one's.
	Members []Member `json:"members,omitempty"`
	// CoreCeiling is the soft ceiling of compute time, in percent; 0: none.
	CoreCeiling  int  `json:"coreCeiling,omitempty"`
	HighPriority bool `json:"highPriority,omitempty"`
	// CorePolicy is when its shares of compute time are enforced.
	CorePolicy limiter.Policy `json:"corePolicy,omitempty"`
	// TurnID names the container's turn files; 0: it has none.
	TurnID limiter.TurnID `json:"turnID,omitzero"`
	// Mode is the enforcement, for information.
	Mode string `json:"mode,omitempty"`
	// Process: a command of the host, not a container. No other one has its name.
	Process bool `json:"process,omitempty"`
	// CreatedAt is the time of the reservation. The ledger sets it if it is zero.
	CreatedAt time.Time `json:"createdAt"`
}

func (c *Claim) holder() string {
	if c.PodName == "" {
		return fmt.Sprintf("container %q", c.Container)
	}
	return fmt.Sprintf("pod %s/%s container %q", c.PodNamespace, c.PodName, c.Container)
}

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
	return cmp.Or(c.validateMembers(), grant.ValidateShares(c.Shares))
}

// placed returns whether gpuslice's scheduler or HAMi's chose the GPUs, and counts the claim itself.
func (c *Claim) placed() bool {
	return c.Owner == OwnerNRI && c.Source != grant.SourceReplicas && c.Source != grant.SourceMIG && c.Source != grant.SourceResourceClaim
}

// SoftPercent is the soft ceiling of a share; 0: none.
func (c *Claim) SoftPercent(share grant.Share) int {
	if share.CorePercent == 0 || c.CoreCeiling <= share.CorePercent {
		return 0
	}
	return c.CoreCeiling
}

// Priority is the priority of the container's work.
func (c *Claim) Priority() limiter.Priority {
	if c.HighPriority {
		return limiter.PriorityHigh
	}
	return limiter.PriorityLow
}

// TurnGPUs are the GPUs on which the container has turns: all but MIG devices, which it does not share.
func (c *Claim) TurnGPUs() []string {
	if c.TurnID == 0 {
		return nil
	}
	return c.sharedGPUs()
}

func (c *Claim) sharedGPUs() (gpus []string) {
	for _, share := range c.Shares {
		if !grant.IsMIG(share.UUID) {
			gpus = append(gpus, share.UUID)
		}
	}
	return gpus
}

// tableID is the turn ID in the tables. A container with a limiter from before there were turns has no turn file, so its
// peers regard it as one that always wants the GPU.
func (c *Claim) tableID() limiter.TurnID {
	if c.TurnID == 0 {
		return limiter.TurnIDOf(c.ContainerID, "")
	}
	return c.TurnID
}

func (c *Claim) sameAs(other *Claim) bool {
	return c.ContainerID == other.ContainerID && c.Owner == other.Owner &&
		(c.IsCommon() || c.PodUID == other.PodUID && c.Container == other.Container) &&
		slices.Equal(c.Shares, other.Shares)
}

func (c *Claim) isAttemptOf(other *Claim) bool {
	return c.PodUID != "" && c.PodUID == other.PodUID && c.Owner == other.Owner && c.Container == other.Container && !c.IsCommon() && !other.IsCommon()
}

func (c *Claim) has(resourceClaim string) bool {
	return slices.Contains(c.ResourceClaims, resourceClaim)
}

func (c *Claim) clone() Claim {
	own := *c
	own.Shares = slices.Clone(c.Shares)
	own.ResourceClaims = slices.Clone(c.ResourceClaims)
	own.Members = slices.Clone(c.Members)
	if c.Position != nil {
		own.Position = new(*c.Position)
	}
	return own
}

// ValidateContainerID checks an ID that becomes a directory's name: 1 to 128 letters, digits, "_", "." and
// "-", not beginning with "." or "-".
func ValidateContainerID(id string) error {
	const characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	if id == "" || len(id) > 128 || id[0] == '.' || id[0] == '-' || strings.Trim(id, characters) != "" {
		return grant.Errorf(grant.ErrMalformed, "container id %s: must be 1 to 128 of a-z A-Z 0-9 _ . - and begin with a letter, a digit or _", quote.Short(id))
	}
	return nil
}

const recordVersion = 1

const maxSequence = 1 << 62

type record struct {
	Version int `json:"version"`
	// Sequence is the generation of the claim. Of several attempts of a container, the highest counts.
	Sequence uint64 `json:"sequence"`
	// Restored: the claim was added for a running container; it replaces no other attempt.
	Restored bool      `json:"restored,omitempty"`
	Blocking *blocking `json:"blocking,omitempty"`
	Claim
}

func (r *record) stampTime() {
	if r.CreatedAt.IsZero() {
		r.CreatedAt = time.Now().UTC()
	}
}

// supersedes returns whether r is a later attempt of old's container. The kubelet creates attempt N+1 when N
// has ended, but the events of N's end can come later.
func (r *record) supersedes(old *record) bool {
	return !r.Restored && r.Sequence > old.Sequence && r.isAttemptOf(&old.Claim)
}

func decodeRecord(data []byte, id string) (*record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
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

func (r *record) encode() ([]byte, error) {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("encode %s: %w", recordName, err)
	}
	return data.Bytes(), nil
}
