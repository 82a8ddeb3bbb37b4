package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/oci"
)

// rereadInterval is only a bound: the GPUs are read again after each change of a MIG device, and by the cache itself.
const rereadInterval = time.Hour

// hasMIG: MIG devices are made on request, or an earlier agent left a journal.
func (o *options) hasMIG() bool {
	_, err := os.Stat(filepath.Join(o.StateDir, api.MIGDirName))
	return o.dra() && (o.MIGOnRequest || err == nil)
}

// partitioner makes MIG devices on request. It is nil where that is off, and no earlier agent left a journal.
func (o *options) partitioner(store *ledger.Ledger, inventory *nvidia.Cache, first *background, log *slog.Logger) (*partition.Partitioner, error) {
	if !o.hasMIG() {
		return nil, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("--mig-on-request: %w", err)
	}
	claims, err := prepared.Open(o.StateDir)
	if err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	p, err := partition.Open(partition.Config{
		Dir: filepath.Join(o.StateDir, api.MIGDirName), Boot: string(bytes.TrimSpace(boot)), GPUs: inventory, Log: log,
		Held: func(ctx context.Context, uuid string) (bool, error) {
			if has, err := claims.Has(uuid); err != nil || has { // of an older agent, which offered it as a static one
				return has, err
			}
			snapshot, err := store.Snapshot(ctx)
			if err != nil {
				return false, err
			}
			return slices.ContainsFunc(snapshot.Claims(), func(c ledger.Claim) bool { return grant.IndexOf(c.Shares, uuid) >= 0 }), nil
		},
		Changed: func() { periodic.Wake(changed) },
	})
	if err != nil {
		return nil, fmt.Errorf("--mig-on-request: %w", err)
	}
	*first = append(*first, func(ctx context.Context) {
		periodic.Every(ctx, rereadInterval, changed, func() { _ = inventory.Refresh(ctx) }) // the snapshot has its error
	})
	return p, nil
}

// onRequest returns the journal's records, and those that a reading of the GPUs can still list.
func (p *publisher) onRequest(taken time.Time) []partition.Record {
	if p.mig == nil {
		return nil
	}
	return p.mig.Since(taken)
}

// isMade reports whether a MIG device is a record's. While it is being made the record has no UUID yet.
func isMade(mig hardware.MIGDevice, gpu hardware.GPU, r partition.Record) bool {
	if r.GPU != gpu.UUID || r.UUID != "" {
		return r.GPU == gpu.UUID && r.UUID == mig.UUID
	}
	return r.State != partition.Intended && r.Instance == mig.GPUInstance ||
		slices.ContainsFunc(gpu.Instances, func(i hardware.GPUInstance) bool {
			return i.ID == mig.GPUInstance && i.Profile == r.Profile && i.Place == r.At
		})
}

// places adds the places of MIG devices to a node, and marks the MIG devices that were made at some.
func (d *draOffer) places(n *devices.Node, now *offer, made []partition.Record) {
	for i := range n.Devices {
		mig, gpu, known := now.GPUs.Node.MIGDevice(n.Devices[i].Capacity.UUID)
		n.Devices[i].OnRequest = known && slices.ContainsFunc(made, func(r partition.Record) bool { return isMade(mig, gpu, r) })
	}
	for _, gpu := range now.GPUs.Node.GPUs {
		if !gpu.MIGEnabled || now.excludes(gpu.UUID, -1) {
			continue
		}
		of := devices.Device{
			Capacity: grant.GPU{UUID: gpu.UUID}, GPU: gpu, PCIeRoot: d.pcieRoot(hardware.SysfsBusID(gpu.PCIBusID)),
			Problem: now.problemOf(gpu.UUID), Cordoned: ledger.IsCordoned(now.Cordoned, gpu.UUID, gpu.UUID),
		}
		mine := func(i hardware.GPUInstance) bool {
			return slices.ContainsFunc(made, func(r partition.Record) bool { return r.GPU == gpu.UUID && r.Profile == i.Profile && r.At == i.Place })
		}
		for _, place := range devices.PlacesOf(of, mine) {
			offered := d.migOnRequest
			for _, r := range made {
				if r.GPU != gpu.UUID || !r.At.Overlaps(place.At) {
					continue
				}
				place.Occupied = place.Occupied || r.Claim == ""
				if r.Profile == place.Kind.ID && r.At == place.At && !r.Ending() {
					place.UUID = r.UUID
					// For the ResourceClaim that has it, and for no other.
					place.Occupied = place.Occupied || !d.migOnRequest
					offered = true
				}
			}
			if !offered {
				continue
			}
			n.Places = append(n.Places, place)
		}
	}
}

// problemOf is why a GPU is unhealthy; "": it is healthy.
func (o *offer) problemOf(gpu string) string {
	if o.Stale != nil {
		return o.Stale.Error()
	}
	if h := o.GPUs.Health[gpu]; !h.Healthy {
		return h.Reason
	}
	return ""
}

// madeDevices resolves MIG devices that were made on request: no CDI spec has them. Of the specs they have the driver's files, and the device
// nodes are read.
type madeDevices struct {
	*oci.Registry
	node func() nvidia.Node
	proc fs.FS
	made func() []partition.Record
}

// capsMajor is the major number of the nodes in /dev/nvidia-caps, which is the kernel's choice.
func capsMajor(proc fs.FS) (int64, error) {
	data, err := fs.ReadFile(proc, "devices")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "nvidia-caps" {
			return strconv.ParseInt(f[0], 10, 32)
		}
	}
	return 0, errors.New("/proc/devices has no nvidia-caps")
}

// nodes are the device nodes of MIG devices, by number: the agent's /dev does not have those of new instances.
func (m madeDevices) nodes(uuids []string) (*cdispec.ContainerEdits, error) {
	major, err := capsMajor(m.proc)
	if err != nil {
		return nil, err
	}
	edits := &cdispec.ContainerEdits{}
	add := func(path string, major, minor int64) {
		if !slices.ContainsFunc(edits.DeviceNodes, func(d *cdispec.DeviceNode) bool { return d.Path == path }) {
			edits.DeviceNodes = append(edits.DeviceNodes, &cdispec.DeviceNode{Path: path, HostPath: path, Type: "c", Major: major, Minor: minor, Permissions: "rw"})
		}
	}
	node := m.node()
	for _, uuid := range uuids {
		d, c, known := node.MIGDevice(uuid)
		if !known {
			return nil, fmt.Errorf("MIG device %s is not on this node", uuid)
		}
		minors, err := capabilityMinors(m.proc, c, d)
		if err != nil {
			return nil, err
		}
		add(c.DevicePath(), nvidiaMajor, int64(c.Minor))
		for _, minor := range minors {
			add(capabilityPath(minor), major, int64(minor))
		}
	}
	return edits, nil
}

func (m madeDevices) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	made := m.made()
	var ours, others []string
	for _, uuid := range uuids {
		if slices.ContainsFunc(made, func(r partition.Record) bool { return r.UUID == uuid }) {
			ours = append(ours, uuid)
		} else {
			others = append(others, uuid)
		}
	}
	if len(ours) == 0 {
		return m.Registry.DeviceEdits(uuids)
	}
	common, err := m.Common()
	if err != nil {
		return nil, err
	}
	edits, err := m.nodes(ours)
	if err != nil {
		return nil, err
	}
	edits = oci.Merge(common, edits)
	if len(others) > 0 {
		more, err := m.Registry.DeviceEdits(others)
		if err != nil {
			return nil, err
		}
		edits = oci.Merge(edits, more)
	}
	return edits, nil
}
