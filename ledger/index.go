package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

type State string

const (
	StateActive   State = api.StateActive
	StateReleased State = api.StateReleased
	StateCorrupt  State = api.StateCorrupt
	StateBlocking State = api.StateBlocking
)

type Entry struct {
	Claim
	State State
	// Problem is why the record is unreadable, or why the entry blocks; nil if its shares are known.
	Problem error
	// Blocks are the GPUs that a blocking entry blocks; none means all of the node.
	Blocks []string
}

type Usage struct {
	MemoryMiB   int64
	CorePercent int
	Replicas    int
}

type entry struct {
	record
	state   State
	problem error
	stamp   stamp
}

func newEntry(r *record) *entry {
	if r.Blocking != nil {
		return &entry{record: *r, state: StateBlocking}
	}
	return &entry{record: *r, state: StateActive}
}

func (e *entry) public() Entry {
	out := Entry{Claim: e.Claim, State: e.state, Problem: e.problem}
	if e.state == StateBlocking {
		out.Problem, out.Blocks = e.Blocking.problem(), e.Blocking.GPUs
	}
	return out
}

func (e *entry) counts() bool { return e.state == StateActive || e.state == StateBlocking }

func (e *entry) unknown() bool {
	return e.state == StateBlocking || e.state == StateCorrupt && len(e.Shares) == 0
}

func (e *entry) mayHold(shares []grant.Share) bool {
	if e.state != StateBlocking || len(e.Blocking.GPUs) == 0 {
		return true
	}
	return slices.ContainsFunc(e.Blocking.GPUs, func(uuid string) bool { return grant.IndexOf(shares, uuid) >= 0 })
}

// index is the ledger's content in memory. It decides, without input or output, in a time that is independent
// of the number of containers.
type index struct {
	entries map[string]*entry
	members map[string]*entry // by container, of common claims
	gpus    map[string]Usage
	pods    map[string][]*entry
	unknown map[string]*entry
	// holders have turns on a GPU. changed are the GPUs with tables that must be written; dropped had turn files.
	holders map[string][]*entry
	changed map[string]bool
	dropped []*entry
}

func newIndex() *index {
	return &index{
		entries: map[string]*entry{},
		members: map[string]*entry{},
		gpus:    map[string]Usage{},
		pods:    map[string][]*entry{},
		unknown: map[string]*entry{},
		holders: map[string][]*entry{},
		changed: map[string]bool{},
	}
}

func (x *index) put(e *entry) {
	x.drop(e.ContainerID)
	x.entries[e.ContainerID] = e
	for _, m := range e.Members {
		x.members[m.ContainerID] = e
	}
	if e.PodUID != "" {
		x.pods[e.PodUID] = append(x.pods[e.PodUID], e)
	}
	x.count(e, 1)
}

func (x *index) drop(id string) {
	e, ok := x.entries[id]
	if !ok {
		return
	}
	x.count(e, -1)
	if e.TurnID != 0 {
		x.dropped = append(x.dropped, e)
	}
	delete(x.entries, id)
	for _, m := range e.Members {
		if x.members[m.ContainerID] == e {
			delete(x.members, m.ContainerID)
		}
	}
	if e.PodUID == "" {
		return
	}
	x.pods[e.PodUID] = slices.DeleteFunc(x.pods[e.PodUID], func(other *entry) bool { return other == e })
	if len(x.pods[e.PodUID]) == 0 {
		delete(x.pods, e.PodUID)
	}
}

func (x *index) release(e *entry) {
	x.count(e, -1)
	e.state = StateReleased
}

// count adds the entry to the sums, or subtracts it with sign -1.
func (x *index) count(e *entry, sign int) {
	if e.state == StateReleased {
		return
	}
	if e.unknown() {
		if sign > 0 {
			x.unknown[e.ContainerID] = e
		} else {
			delete(x.unknown, e.ContainerID)
		}
		return
	}
	addShares(x.gpus, e.Shares, sign)
	x.countTurns(e, sign)
}

func addShares(to map[string]Usage, shares []grant.Share, sign int) {
	for _, share := range shares {
		usage := to[share.UUID]
		usage.MemoryMiB += int64(sign) * share.MemoryMiB
		usage.CorePercent += sign * share.CorePercent
		usage.Replicas += sign
		if usage == (Usage{}) {
			delete(to, share.UUID)
		} else {
			to[share.UUID] = usage
		}
	}
}

func (x *index) unplaced() map[string]Usage {
	sum := map[string]Usage{}
	for _, e := range x.entries {
		if e.state != StateReleased && !e.placed() {
			addShares(sum, e.Shares, 1)
		}
	}
	return sum
}

func (x *index) countTurns(e *entry, sign int) {
	for _, gpu := range e.sharedGPUs() {
		x.changed[gpu] = true
		if sign > 0 {
			x.holders[gpu] = append(x.holders[gpu], e)
		} else {
			x.holders[gpu] = slices.DeleteFunc(x.holders[gpu], func(other *entry) bool { return other == e })
		}
	}
}

func (x *index) predecessors(claim *Claim) (found []*entry) {
	for _, e := range x.pods[claim.PodUID] {
		if e.state == StateActive && e.ContainerID != claim.ContainerID && claim.isAttemptOf(&e.Claim) {
			found = append(found, e)
		}
	}
	return found
}

func (x *index) superseded() (found []*entry) {
	for _, attempts := range x.pods {
		for _, old := range attempts {
			if old.state == StateActive && slices.ContainsFunc(attempts, func(e *entry) bool { return e.supersedes(&old.record) }) {
				found = append(found, old)
			}
		}
	}
	return found
}

func (x *index) admit(claim *Claim, gpus map[string]grant.GPU) error {
	return cmp.Or(x.checkKnown(claim.Shares), x.checkPosition(claim), x.checkName(claim), x.checkResourceClaims(claim), x.checkCapacity(claim, gpus, x.predecessors(claim)))
}

// checkKnown refuses if an entry with unknown shares can hold the same GPUs. The refused pod's tenant reads
// the error, so it names no other pod.
func (x *index) checkKnown(shares []grant.Share) error {
	if len(x.unknown) == 0 {
		return nil
	}
	var corrupt, blocking []string
	for id, e := range x.unknown {
		switch {
		case e.state == StateCorrupt:
			corrupt = append(corrupt, id)
		case e.mayHold(shares):
			blocking = append(blocking, id)
		}
	}
	if len(corrupt) > 0 {
		sort.Strings(corrupt)
		return grant.Errorf(ErrCorrupt, "the ledger has %d unreadable entries, %s: %w; restart gpuslice-agent, which fixes them, or, if the container is gone, unmount its file system and remove its directory (umount -l DIR/vgpu; rm -r DIR)",
			len(corrupt), few(corrupt), x.unknown[corrupt[0]].problem)
	}
	if len(blocking) > 0 {
		sort.Strings(blocking)
		return grant.Errorf(ErrBlocked, "the grants of %d containers on the node are not known, %s: gpuslice status on the node shows the reasons; wait until gpuslice-agent can read their grants, or remove the containers",
			len(blocking), few(blocking))
	}
	return nil
}

func few(ids []string) string {
	const most = 3
	return strings.Join(ids[:min(len(ids), most)], ", ")
}

func (x *index) snapshot() *Snapshot {
	s := &Snapshot{GPUs: maps.Clone(x.gpus)}
	for _, e := range x.entries {
		s.Entries = append(s.Entries, e.public())
	}
	sort.Slice(s.Entries, func(i, j int) bool { return s.Entries[i].ContainerID < s.Entries[j].ContainerID })
	return s
}

// checkPosition refuses a HAMi position that another container of the pod has or had: for example, of an ephemeral
// container.
func (x *index) checkPosition(claim *Claim) error {
	if claim.Position == nil || claim.PodUID == "" {
		return nil
	}
	for _, e := range x.pods[claim.PodUID] {
		if e.Position != nil && *e.Position == *claim.Position && e.Container != claim.Container {
			return grant.Errorf(ErrPositionTaken, "position %d of the pod's grant belongs to container %q: write the grant by name into %s",
				*claim.Position, e.Container, api.AnnotationGrant)
		}
	}
	return nil
}

// checkName refuses a second command of the host with a name.
func (x *index) checkName(claim *Claim) error {
	if !claim.Process {
		return nil
	}
	for _, e := range x.entries {
		if e.state == StateActive && e.Process && e.Container == claim.Container {
			return grant.Errorf(ErrNameTaken, "another command with this name has a share: wait until all processes of it have ended, or use another name")
		}
	}
	return nil
}

// checkResourceClaims refuses a request of a ResourceClaim that another claim has: its containers have other requests too.
func (x *index) checkResourceClaims(claim *Claim) error {
	for _, e := range x.holdersOf(claim.ResourceClaims) {
		if e.ContainerID != claim.ContainerID && !claim.isAttemptOf(&e.Claim) {
			return grant.Errorf(ErrResourceClaimInUse, "its ResourceClaim is in use by a container with other requests or ResourceClaims: containers have a share in common only with the same ones; "+
				"give all of them the same (resources.claims), or each one its own (a ResourceClaimTemplate), or wait until the other container ends")
		}
	}
	return nil
}

// holdersOf returns the entries that count and have one of these requests of ResourceClaims.
func (x *index) holdersOf(resourceClaims []string) (found []*entry) {
	if len(resourceClaims) == 0 {
		return nil
	}
	for _, e := range x.entries {
		if e.counts() && slices.ContainsFunc(resourceClaims, e.has) {
			found = append(found, e)
		}
	}
	return found
}

func (x *index) checkCapacity(claim *Claim, gpus map[string]grant.GPU, own []*entry) error {
	for _, share := range claim.Shares {
		gpu, used := gpus[share.UUID], x.gpus[share.UUID]
		for _, e := range own {
			if i := grant.IndexOf(e.Shares, share.UUID); i >= 0 {
				used.MemoryMiB -= e.Shares[i].MemoryMiB
				used.CorePercent -= e.Shares[i].CorePercent
				used.Replicas--
			}
		}
		lack := lacking(share, gpu, used)
		if lack == "" && used.Replicas >= gpu.Replicas {
			lack = fmt.Sprintf("no replica free, %d of %d taken", used.Replicas, gpu.Replicas)
		}
		if lack == "" {
			continue
		}
		return grant.Errorf(grant.ErrOverbooked, "GPU %s: %s; containers that hold it: %d (gpuslice status on the node lists them); wait until one of them ends, or request less",
			share.UUID, lack, used.Replicas)
	}
	return nil
}
