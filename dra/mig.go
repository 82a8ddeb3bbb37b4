package dra

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/internal/periodic"
)

// listedPause is the time between two looks for a MIG device that was made: the GPUs are read again after that.
const listedPause = 20 * time.Millisecond

// makeMIG makes the MIG devices of the places that a ResourceClaim has, and returns the node with them.
func (d *Driver) makeMIG(ctx context.Context, claim *resourceapi.ResourceClaim, node devices.Node) (devices.Node, error) {
	allocated := node.Allocated(claim)
	if d.MIG == nil || len(allocated) == 0 {
		return node, nil
	}
	uuids := map[string]string{} // by name
	for _, p := range allocated {
		uuid, err := d.MIG.Make(ctx, string(claim.UID), partition.Place{GPU: p.GPU.UUID, Profile: p.Kind.ID, At: p.At})
		if err != nil {
			return node, err
		}
		uuids[p.Name()] = uuid
	}
	for range retryPause / listedPause {
		if node, _ = d.Node(); lists(node, uuids) || !periodic.Sleep(ctx, listedPause) {
			break
		}
	}
	node.Places = slices.Clone(node.Places)
	for i, p := range node.Places {
		if uuid, made := uuids[p.Name()]; made {
			node.Places[i].UUID = uuid
		}
	}
	return node, nil
}

func lists(node devices.Node, uuids map[string]string) bool {
	for _, uuid := range uuids {
		if !slices.ContainsFunc(node.Devices, func(d devices.Device) bool { return d.Capacity.UUID == uuid }) {
			return false
		}
	}
	return true
}

func (d *Driver) useMIG(uid string) error {
	if d.MIG == nil {
		return nil
	}
	return d.MIG.Use(uid)
}

// dropMIG destroys what was made for a ResourceClaim that is not prepared after all.
func (d *Driver) dropMIG(uid string) error {
	if d.MIG == nil || d.isPrepared(uid) {
		return nil
	}
	return d.MIG.Release(context.Background(), uid)
}

// isPrepared: an unreadable record counts as one, because containers can have it.
func (d *Driver) isPrepared(uid string) bool {
	_, err := d.Prepared.Read(uid)
	return err == nil || prepared.ValidUID(uid) && !errors.Is(err, fs.ErrNotExist)
}
