package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// ErrNotProbed is before the first probe.
var ErrNotProbed = errors.New("it is not known yet whether the driver has memory limits")

// probeBytes is a limit that a scratch group can have on every GPU.
const probeBytes = 64 << 20

// Probe sets a limit for a scratch control group below root on each GPU, reads it back and removes it. Only that proves that
// the driver has limits: its answers for "no limit" and "no limits possible" are the same.
func Probe(ctx context.Context, d Driver, root string, uuids []string) (err error) {
	if len(uuids) == 0 {
		return errors.New("there is no GPU to probe the driver's memory limits on")
	}
	group, err := os.MkdirTemp(root, "gpuslice.probe-")
	if err != nil {
		return fmt.Errorf("make a control group to probe the driver's memory limits: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(group)) }()
	for _, uuid := range uuids {
		if err := probe(ctx, d, filepath.Clean(group), uuid); err != nil {
			return fmt.Errorf("probe the driver's memory limits: %w", err)
		}
	}
	return nil
}

func probe(ctx context.Context, d Driver, group, uuid string) error {
	if _, err := Apply(ctx, d, group, []Limit{{uuid, probeBytes}}); err != nil {
		return err
	}
	if err := d.SetMemoryLimit(ctx, uuid, group, hardware.NoMemoryLimit); err != nil {
		return fmt.Errorf("remove the limit: %w", err)
	}
	// Without a limit, an error is a possible answer.
	if s, err := d.MemoryLimit(ctx, uuid, group); err == nil && s.Hard != hardware.NoMemoryLimit {
		return fmt.Errorf("the limit of %s is still %d bytes after its removal", uuid, s.Hard)
	}
	return nil
}
