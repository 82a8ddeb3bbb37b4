package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

// Member is one of the containers that have a claim in common: those with the same requests of ResourceClaims.
type Member struct {
	ContainerID  string `json:"containerID"`
	PodUID       string `json:"podUID,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
	Container    string `json:"container"`
	Mode         string `json:"mode,omitempty"`
}

const commonPrefix = "resourceclaim-"

// CommonID is the container ID of the claim that all containers with these requests of ResourceClaims have in common.
func CommonID(resourceClaims []string) string {
	sorted := slices.Sorted(slices.Values(resourceClaims))
	sum := sha256.Sum256([]byte(strings.Join(sorted, "\n")))
	return commonPrefix + hex.EncodeToString(sum[:16])
}

// Common makes the claim of one container the one that it has in common with others.
func (c Claim) Common() Claim {
	member := Member{ContainerID: c.ContainerID, PodUID: c.PodUID, PodNamespace: c.PodNamespace, PodName: c.PodName, Container: c.Container, Mode: c.Mode}
	c.ContainerID = CommonID(c.ResourceClaims)
	c.setMembers([]Member{member})
	return c
}

// IsCommon returns whether the claim is one that containers have in common.
func (c *Claim) IsCommon() bool { return strings.HasPrefix(c.ContainerID, commonPrefix) }

// Has returns whether the claim is a container's.
func (c *Claim) Has(containerID string) bool {
	return c.ContainerID == containerID || c.member(containerID) >= 0
}

func (c *Claim) member(containerID string) int {
	return slices.IndexFunc(c.Members, func(m Member) bool { return m.ContainerID == containerID })
}

// setMembers also makes the first one the container of the claim, for information. Without members the last one stays.
func (c *Claim) setMembers(members []Member) {
	c.Members = members
	if len(members) > 0 {
		m := members[0]
		c.PodUID, c.PodNamespace, c.PodName, c.Container, c.Mode = m.PodUID, m.PodNamespace, m.PodName, m.Container, m.Mode
	}
}

func (c *Claim) validateMembers() error {
	if c.IsCommon() && (len(c.ResourceClaims) == 0 || c.ContainerID != CommonID(c.ResourceClaims)) {
		return grant.Errorf(grant.ErrMalformed, "container id %s: is not that of its ResourceClaims", c.ContainerID)
	}
	if !c.IsCommon() && len(c.Members) > 0 {
		return grant.Errorf(grant.ErrMalformed, "a claim without ResourceClaims has %d containers", len(c.Members))
	}
	for i, m := range c.Members {
		if err := ValidateContainerID(m.ContainerID); err != nil {
			return err
		}
		if m.Container == "" || c.member(m.ContainerID) != i {
			return grant.Errorf(grant.ErrMalformed, "container id %s: it has no name, or is there twice", m.ContainerID)
		}
	}
	return nil
}

// isAttemptOf returns whether the container is another attempt of the other one: of the same name in the same pod.
func (m Member) isAttemptOf(other Member) bool {
	return m.PodUID != "" && m.PodUID == other.PodUID && m.Container == other.Container && m.ContainerID != other.ContainerID
}

// without returns the members of the entry but those of which the claim's new containers are another attempt.
func (e *entry) without(attempts *Claim) []Member {
	return slices.DeleteFunc(slices.Clone(e.Members), func(old Member) bool {
		return slices.ContainsFunc(attempts.Members, func(m Member) bool { return e.member(m.ContainerID) < 0 && m.isAttemptOf(old) })
	})
}

// checkJoin refuses new containers of an active claim on cordoned GPUs. A claim that exists already stays.
func (l *Ledger) checkJoin(e *entry, claim *Claim, gpus map[string]grant.GPU) error {
	if !claim.IsCommon() {
		return nil
	}
	return l.checkCordons(claim, gpus)
}

// join adds the claim's container to those of the entry that stay. It takes no more of the GPU. Ceiling and priority stay
// those of the first container.
func (l *Ledger) join(ctx context.Context, e *entry, claim *Claim, stay []Member) error {
	if err := checkSame(claim, &e.Claim); err != nil {
		return err
	}
	members := slices.Clone(stay)
	for _, m := range claim.Members {
		if e.member(m.ContainerID) < 0 {
			members = append(members, m)
		}
	}
	if slices.Equal(members, e.Members) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("abandon the claim: %w", context.Cause(ctx))
	}
	return l.change(func(uint64) error { return l.remember(e, members) })
}

// remember writes the members of an active entry.
func (l *Ledger) remember(e *entry, members []Member) error {
	next := e.record
	next.Claim = e.Claim.clone()
	next.setMembers(members)
	if err := l.replaceRecord(&next); err != nil {
		return err
	}
	l.put(&next)
	return nil
}

// leaves returns the other containers of an active entry, and whether there are any: then the claim does not end with the
// container.
func (e *entry) leaves(containerID string) (others []Member, stays bool) {
	if e.ContainerID == containerID || e.state != StateActive {
		return nil, false
	}
	others = slices.DeleteFunc(slices.Clone(e.Members), func(m Member) bool { return m.ContainerID == containerID })
	return others, len(others) > 0
}

// find returns the entry of a container, or nil.
func (x *index) find(containerID string) *entry {
	if e := x.entries[containerID]; e != nil {
		return e
	}
	return x.members[containerID]
}

func (l *Ledger) unblocked(claim *Claim) error {
	return l.change(func(uint64) error { return l.unblock(claim) })
}

// unblock discards what Block added for the containers of a claim.
func (l *Ledger) unblock(claim *Claim) error {
	var errs []error
	for _, m := range claim.Members {
		if e := l.index.entries[m.ContainerID]; e != nil && e.state == StateBlocking {
			errs = append(errs, l.discard(m.ContainerID))
		}
	}
	return errors.Join(errs...)
}
