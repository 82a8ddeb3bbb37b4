// Package nodeview reads a node's grants and use from node.json, the ledger and the usage files. It takes no lock.
package nodeview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/oci"
)

// Read reads the node's files. Only an unreadable ledger is an error.
func Read(ctx context.Context, stateDir string) (view.Node, error) {
	store, err := ledger.OpenReadOnly(stateDir, ledger.WithRecovery(oci.RecoverClaim))
	if errors.Is(err, fs.ErrPermission) {
		return view.Node{}, fmt.Errorf("%w: run it as root", err)
	}
	if err != nil {
		return view.Node{}, fmt.Errorf("%w (set --state-dir to its directory)", err)
	}
	snapshot, err := store.Snapshot(ctx)
	if err != nil {
		return view.Node{}, err
	}
	var problems []string
	if snapshot.Unsettled {
		problems = append(problems, "the ledger is being changed, or gpuslice-agent was killed during a change: the data may be inconsistent")
	}
	file, err := node.Read(stateDir)
	if err != nil {
		problems = append(problems, "GPUs: "+err.Error())
	}
	cordoned, err := ledger.Cordoned(stateDir)
	if err != nil {
		problems = append(problems, err.Error())
	}
	n := compose(snapshot, file, cordoned, store.Dir)
	n.Problems = append(problems, n.Problems...)
	hold(n.Containers, feedback.HoldsNow(limiter.Now(), time.Now(), Peers(snapshot, snapshot.Turns(stateDir), 0)))
	return n, nil
}

func compose(snapshot *ledger.Snapshot, file node.File, cordoned []string, dir func(id string) string) view.Node {
	all, unread := containers(snapshot, dir)
	n := view.Node{
		Name: file.Name, DriverVersion: file.Node.DriverVersion, CUDAVersion: file.Node.CUDAVersion, GPUsReadAt: file.WrittenAt,
		GPUs: []view.GPU{}, Containers: all,
	}
	for _, fault := range file.Node.Faults {
		n.Problems = append(n.Problems, fault.Message)
	}
	n.Problems = append(n.Problems, unread...)
	used := map[string]uint64{}
	for i := range all {
		for _, s := range all[i].Shares {
			// A container can write any use: only its limit counts for the GPU.
			used[s.UUID] = add(used[s.UUID], min(s.UsedBytes, limitBytes(s.MemoryMiB)))
		}
	}
	slices.SortStableFunc(n.Containers, func(a, b view.Container) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name))
	})
	row := func(c view.GPU, gpu string) {
		device, _ := file.Device(c.UUID) // empty if not offered
		reserved := snapshot.GPUs[c.UUID]
		c.GrantableMiB, c.GrantedMemoryMiB = device.MemoryMiB, reserved.MemoryMiB
		c.GrantableCores, c.GrantedCores = device.CorePercent, reserved.CorePercent
		c.GrantableReplicas, c.GrantedContainers = device.Replicas, reserved.Replicas
		c.UsedBytes = used[c.UUID]
		c.Unhealthy = file.Unhealthy(c.UUID, gpu)
		c.Healthy = c.Unhealthy == ""
		c.ComputeSource = file.ComputeSource[c.UUID]
		c.Cordoned = ledger.IsCordoned(cordoned, c.UUID, gpu)
		n.GPUs = append(n.GPUs, c)
	}
	for _, c := range file.Node.GPUs {
		row(view.GPU{UUID: c.UUID, Index: c.Index, Model: c.Model, MemoryMiB: c.MemoryMiB}, c.UUID)
		for _, d := range c.MIG {
			row(view.GPU{UUID: d.UUID, Index: c.Index, MIGProfile: d.Profile, MIG: &view.MIG{GPU: c.UUID, GPUInstance: d.GPUInstance, ComputeInstance: d.ComputeInstance}, Model: c.Model + " MIG " + d.Profile, MemoryMiB: d.MemoryMiB}, c.UUID)
		}
	}
	return n
}

func add(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

func limitBytes(mib int64) uint64 { return uint64(min(max(mib, 0), math.MaxInt64>>20)) << 20 }

type reading struct {
	limiter.Reader
	uuids  []string
	shares []view.Share
	// now and monotonic are the same moment.
	now       time.Time
	monotonic uint64
}

// containers also returns what could not be read of them.
func containers(snapshot *ledger.Snapshot, dir func(id string) string) (all []view.Container, problems []string) {
	shares := 0
	for i := range snapshot.Entries {
		shares += len(snapshot.Entries[i].Shares)
	}
	r := reading{now: time.Now(), monotonic: limiter.Now(), shares: make([]view.Share, 0, shares)}
	all = make([]view.Container, 0, len(snapshot.Entries))
	for i := range snapshot.Entries {
		e := &snapshot.Entries[i]
		c, problem := r.container(e, dir(e.ContainerID))
		all = append(all, c)
		if problem != "" {
			problems = append(problems, problem)
		}
	}
	return all, problems
}

// enforcement is the weakest one of the containers that have the claim; one that is not known is weaker than all.
func enforcement(e *ledger.Entry) string {
	weakest := e.Mode
	for _, m := range e.Members {
		if strength(m.Mode) < strength(weakest) {
			weakest = m.Mode
		}
	}
	return weakest
}

func strength(mode string) int { return slices.Index(oci.Enforcements, oci.Enforcement(mode)) }

func (r *reading) container(e *ledger.Entry, dir string) (c view.Container, problem string) {
	c = view.Container{
		ContainerID: e.ContainerID, PodUID: e.PodUID, Name: e.Container, Owner: e.Owner,
		State: string(e.State), Enforcement: enforcement(e), CreatedAt: e.CreatedAt, Blocks: e.Blocks,
	}
	if e.PodName != "" {
		c.Pod = e.PodNamespace + "/" + e.PodName
	}
	c.ResourceClaims = e.ResourceClaims
	for _, m := range e.Members {
		c.Members = append(c.Members, view.Member{ContainerID: m.ContainerID, Pod: m.PodNamespace + "/" + m.PodName, Name: m.Container})
	}
	r.uuids = r.uuids[:0]
	for _, s := range e.Shares {
		r.uuids = append(r.uuids, s.UUID)
	}
	expected := r.uuids
	if e.State == ledger.StateCorrupt || len(expected) == 0 {
		expected = nil // unknown
	}
	usage, err := r.Usage(limiter.UsagePath(dir), expected)
	// The file may be removed by now, and a blocking entry has none.
	if err != nil && e.State != ledger.StateReleased && e.State != ledger.StateBlocking && exists(dir) {
		c.UsageProblem, c.UsageUnknown = err.Error(), errors.Is(err, limiter.ErrUsageVersion)
	}
	problem = problemOf(e, c.UsageProblem, dir)
	// Another part of the agent reports unreadable files.
	residue, _ := r.Residue(limiter.LimitsPath(dir))
	first := len(r.shares)
	for i, s := range e.Shares {
		share := view.Share{UUID: s.UUID, MemoryMiB: s.MemoryMiB, CorePercent: s.CorePercent}
		// By index: the container can change the UUIDs of its file.
		if i < len(usage.Devices) {
			r.used(&share, &usage.Devices[i])
		}
		if i < len(residue) {
			share.ResidueBytes = residue[i]
		}
		r.shares = append(r.shares, share)
	}
	c.Shares = r.shares[first:len(r.shares):len(r.shares)]
	return c, problem
}

func (r *reading) used(share *view.Share, d *limiter.DeviceUsage) {
	share.UsedBytes, share.ContextBytes, share.Processes = d.UsedBytes, d.ContextBytes, d.Processes
	share.RefusedAllocations = d.RefusedAllocations
	share.ComputeNanoseconds, share.ThrottledNanoseconds, share.Launches = d.Cores.BusyNanoseconds, d.Cores.ThrottledNanoseconds, d.Cores.Launches
	if last := d.Cores.LastLaunchNanoseconds; last != 0 && last <= r.monotonic {
		share.LastLaunch = r.now.Add(-time.Duration(r.monotonic - last)).UTC()
	}
}

func problemOf(e *ledger.Entry, usage, dir string) string {
	var found []string
	if e.Problem != nil {
		found = append(found, e.Problem.Error())
	}
	if usage != "" {
		found = append(found, usage)
	}
	if e.Owner != ledger.OwnerNRI { // the NRI plugin's claims have no such record
		if _, err := orphans.Read(dir); errors.Is(err, orphans.ErrDamaged) {
			found = append(found, err.Error()+": its share is released when no process uses the directory")
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "container " + e.ContainerID + ": " + strings.ReplaceAll(strings.Join(found, "; "), "\n", "; ")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
