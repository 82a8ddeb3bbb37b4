package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// cordonName is the file with the cordoned UUIDs. It is for containers without a scheduler, which reads the
// Node's annotation hami.io/device-cordon.
const cordonName = "cordoned"

// Cordon refuses new containers on the GPUs and on their MIG devices, until Uncordon. Claims stay.
func (l *Ledger) Cordon(ctx context.Context, uuids ...string) error {
	return l.recordon(ctx, func(now []string) []string { return append(now, uuids...) }, uuids)
}

// Uncordon allows new containers on the GPUs again.
func (l *Ledger) Uncordon(ctx context.Context, uuids ...string) error {
	return l.recordon(ctx, func(now []string) []string {
		return slices.DeleteFunc(now, func(uuid string) bool { return slices.Contains(uuids, uuid) })
	}, uuids)
}

func (l *Ledger) recordon(ctx context.Context, change func([]string) []string, uuids []string) error {
	for _, uuid := range uuids {
		if err := grant.ValidateUUID(uuid); err != nil {
			return fmt.Errorf("GPU %s: %w", quote.Short(uuid), err)
		}
	}
	return l.locked(ctx, func() error {
		now, err := Cordoned(l.dir)
		if err != nil {
			return err
		}
		next := change(slices.Clone(now))
		slices.Sort(next)
		next = slices.Compact(next)
		path := filepath.Join(l.dir, cordonName)
		if len(next) == 0 {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the cordons: %w", err)
			}
			return nil
		}
		return atomicfile.Write(path, []byte(strings.Join(next, "\n")+"\n"), 0o644)
	})
}

// Cordoned returns the cordoned GPUs of the ledger in dir, sorted. It takes no lock.
func Cordoned(dir string) ([]string, error) {
	path := filepath.Join(dir, cordonName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the cordons: %w", err)
	}
	uuids := strings.Fields(string(data))
	for _, uuid := range uuids {
		if err := grant.ValidateUUID(uuid); err != nil {
			return nil, fmt.Errorf("read the cordons %s: %s: %w: fix or remove the file", path, quote.Short(uuid), err)
		}
	}
	slices.Sort(uuids)
	return uuids, nil
}

// IsCordoned returns whether a GPU, or the GPU of a MIG device, is cordoned.
func IsCordoned(cordoned []string, uuid, parent string) bool {
	return slices.Contains(cordoned, uuid) || parent != "" && slices.Contains(cordoned, parent)
}

// checkCordons refuses new containers on cordoned GPUs, except another attempt of a container that had the
// GPU.
func (l *Ledger) checkCordons(claim *Claim, gpus map[string]grant.GPU) error {
	cordoned, err := Cordoned(l.dir)
	if err != nil {
		return err
	}
	for _, s := range claim.Shares {
		parent := gpus[s.UUID].Parent
		if !IsCordoned(cordoned, s.UUID, parent) || l.index.hadGPU(claim, s.UUID) {
			continue
		}
		uuid, of := s.UUID, ""
		if !slices.Contains(cordoned, uuid) {
			uuid, of = parent, " (of MIG device "+s.UUID+")"
		}
		return grant.Errorf(ErrCordoned, "GPU %s%s is cordoned on this node: request another GPU, or run gpuslice uncordon %s", uuid, of, uuid)
	}
	return nil
}

func (x *index) hadGPU(claim *Claim, uuid string) bool {
	if e := x.entries[claim.ContainerID]; claim.IsCommon() {
		return e != nil && grant.IndexOf(e.Shares, uuid) >= 0 && slices.ContainsFunc(e.Members, func(old Member) bool {
			return slices.ContainsFunc(claim.Members, func(m Member) bool { return m.ContainerID == old.ContainerID || m.isAttemptOf(old) })
		})
	}
	return claim.PodUID != "" && slices.ContainsFunc(x.pods[claim.PodUID], func(e *entry) bool {
		return claim.isAttemptOf(&e.Claim) && grant.IndexOf(e.Shares, uuid) >= 0
	})
}
