package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// Resize changes the amounts of an active claim while the container runs. The shares must name the same GPUs
// in the same order. It refuses what does not fit (ErrOverbooked, ErrUnknownGPU), other GPUs or a part of a
// MIG device (ErrMalformed), and a container without a claim (ErrNoClaim). Smaller amounts are always
// accepted.
//
// apply writes the limits, must be idempotent, and is called without the ledger's lock, because the container
// can delay access to these files. Resize reserves the higher of both amounts, calls apply, then reserves the
// new ones: the limits never exceed the reservation, also after a kill. If apply fails, it is called with the
// old amounts; if that fails too, the higher amounts stay reserved.
func (l *Ledger) Resize(ctx context.Context, id string, shares []grant.Share, gpus map[string]grant.GPU, apply func(dir string, claim Claim) error) (before []grant.Share, err error) {
	if err = grant.ValidateShares(shares); err == nil {
		err = l.whileAlone(ctx, id, func() error {
			before, err = l.resize(ctx, id, shares, gpus, apply)
			return err
		})
	}
	if err != nil {
		return before, fmt.Errorf("resize container %s: %w", quote.Short(id), err)
	}
	return before, nil
}

// Reapply calls apply as Resize does, with the active claim in the ledger.
func (l *Ledger) Reapply(ctx context.Context, id string, apply func(dir string, claim Claim) error) error {
	err := l.whileAlone(ctx, id, func() error {
		var reserved Claim
		err := l.locked(ctx, func() error {
			e, err := l.active(id)
			if err == nil {
				reserved = e.Claim.clone()
			}
			return err
		})
		if err != nil {
			return err
		}
		return apply(l.Dir(id), reserved)
	})
	if err != nil && !errors.Is(err, ErrNoClaim) {
		return fmt.Errorf("set the limits of container %s to what is reserved: %w", quote.Short(id), err)
	}
	return nil
}

// resizeWait bounds the wait for another resize of the container, and the end of a canceled one.
const resizeWait = 5 * time.Second

// whileAlone calls fn with the lock of the container's directory, which is taken before the ledger's.
func (l *Ledger) whileAlone(ctx context.Context, id string, fn func() error) error {
	if err := ValidateContainerID(id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, resizeWait)
	defer cancel()
	for {
		dir, err := rawfile.Open(l.Dir(id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return errNoClaim()
		}
		if err == nil {
			err = rawfile.Lock(ctx, dir)
			if err == nil && !isAt(dir, l.Dir(id), unix.AT_SYMLINK_NOFOLLOW) {
				unix.Close(dir)
				continue // the directory was replaced
			}
			defer unix.Close(dir)
		}
		if err != nil {
			return fmt.Errorf("wait for another resize of it: lock %s: %w", l.Dir(id), err)
		}
		return fn()
	}
}

func errNoClaim() error {
	return grant.Errorf(ErrNoClaim, "no active claim: check that the container runs (gpuslice status lists the claims)")
}

func (l *Ledger) active(id string) (*entry, error) {
	if e := l.index.entries[id]; e != nil && e.state == StateActive {
		return e, nil
	}
	return nil, errNoClaim()
}

func (l *Ledger) resize(ctx context.Context, id string, shares []grant.Share, gpus map[string]grant.GPU, apply func(dir string, claim Claim) error) (before []grant.Share, err error) {
	var old Claim
	if err := l.locked(ctx, func() error {
		e, err := l.active(id)
		if err != nil {
			return err
		}
		old = e.Claim.clone()
		if err := checkSameGPUs(old.Shares, shares); err != nil {
			return err
		}
		if len(old.ResourceClaims) > 0 && !slices.Equal(old.Shares, shares) {
			return grant.Errorf(grant.ErrMalformed, "its shares are of a ResourceClaim, which does not change after its allocation: delete the pod and create it with another ResourceClaim")
		}
		if err := l.admitResize(e, shares, gpus); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("canceled: %w", context.Cause(ctx))
		}
		return l.rebook(e, highest(old.Shares, shares))
	}); err != nil {
		return old.Shares, err
	}
	next := old.clone()
	next.Shares = slices.Clone(shares)
	if err = apply(l.Dir(id), next); err != nil {
		err = fmt.Errorf("change its limits: %w", err)
	}
	// From here on the resize completes, because more is reserved than necessary.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resizeWait)
	defer cancel()
	if err == nil {
		err = l.settle(ctx, old.ContainerID, shares, gpus)
	}
	if err == nil || errors.Is(err, ErrNoClaim) {
		return old.Shares, err
	}
	undone := apply(l.Dir(id), old.clone())
	if undone == nil {
		undone = l.settle(ctx, old.ContainerID, old.Shares, gpus)
	}
	if undone != nil {
		err = fmt.Errorf("%w; the higher of the old and the new amounts stay reserved until the next resize: %w", err, undone)
	}
	return old.Shares, err
}

// settle reserves the shares. It can fail: cores without a limit were not reserved before.
func (l *Ledger) settle(ctx context.Context, id string, shares []grant.Share, gpus map[string]grant.GPU) error {
	return l.locked(ctx, func() error {
		e, err := l.active(id)
		if err == nil {
			err = l.admitResize(e, shares, gpus)
		}
		if err != nil {
			return err
		}
		return l.rebook(e, shares)
	})
}

func (l *Ledger) admitResize(e *entry, shares []grant.Share, gpus map[string]grant.GPU) error {
	return l.unlessStale(func() error { return l.index.admitResize(e, shares, gpus) })
}

func (l *Ledger) rebook(e *entry, shares []grant.Share) error {
	if slices.Equal(e.Shares, shares) {
		return nil
	}
	return l.change(func(uint64) error {
		next := e.record
		next.Claim = e.Claim.clone()
		next.Shares = slices.Clone(shares)
		if err := l.replaceRecord(&next); err != nil {
			return err
		}
		l.put(&next)
		return nil
	})
}

func checkSameGPUs(old, shares []grant.Share) error {
	if len(old) != len(shares) {
		return grant.Errorf(grant.ErrMalformed, "%d GPUs: the container has %d, and a running container keeps its GPUs", len(shares), len(old))
	}
	for i, share := range shares {
		switch {
		case share.UUID != old[i].UUID:
			return grant.Errorf(grant.ErrMalformed, "share %d: GPU %s: the container has %s there, and a running container keeps its GPUs", i, share.UUID, old[i].UUID)
		case share != old[i] && grant.IsMIG(share.UUID):
			return grant.Errorf(grant.ErrMalformed, "share %d: %s is a MIG device, which a container has whole", i, share.UUID)
		}
	}
	return nil
}

func (x *index) admitResize(e *entry, shares []grant.Share, gpus map[string]grant.GPU) error {
	var more []grant.Share
	for i, share := range shares {
		if old := e.Shares[i]; share.MemoryMiB > old.MemoryMiB || share.CorePercent > old.CorePercent || unlimits(old, share) {
			// What it has already is its own, fits or not.
			more = append(more, grant.Share{UUID: share.UUID, MemoryMiB: max(0, share.MemoryMiB-old.MemoryMiB), CorePercent: max(0, share.CorePercent-old.CorePercent)})
		}
	}
	if len(more) == 0 {
		return nil
	}
	if err := cmp.Or(grant.CheckGPUs(more, gpus), x.checkKnown(more)); err != nil {
		return err
	}
	for _, share := range more {
		gpu, used := gpus[share.UUID], x.gpus[share.UUID]
		if lack := lacking(share, gpu, used); lack != "" {
			return grant.Errorf(grant.ErrOverbooked, "GPU %s: %s in addition to its share; containers that hold the GPU: %d (gpuslice status on the node lists them); wait until one of them ends, or request less",
				share.UUID, lack, used.Replicas)
		}
	}
	for i, share := range shares {
		gpu, others := gpus[share.UUID], x.gpus[share.UUID].CorePercent-e.Shares[i].CorePercent
		if unlimits(e.Shares[i], share) && gpu.CorePercent > 0 && others >= gpu.CorePercent {
			return grant.Errorf(grant.ErrOverbooked, "GPU %s: unlimited cores (0) need free compute time, and other containers have all: %d of %d %%; wait until one of them ends, or request less",
				share.UUID, others, gpu.CorePercent)
		}
	}
	return nil
}

func unlimits(old, share grant.Share) bool { return share.CorePercent == 0 && old.CorePercent > 0 }

// lacking returns what of memory and cores is not free; "": nothing.
func lacking(share grant.Share, gpu grant.GPU, used Usage) string {
	switch {
	case share.MemoryMiB > 0 && share.MemoryMiB > gpu.MemoryMiB-used.MemoryMiB:
		return fmt.Sprintf("memory %d MiB requested, %d of %d MiB free", share.MemoryMiB, max(0, gpu.MemoryMiB-used.MemoryMiB), gpu.MemoryMiB)
	case share.CorePercent > 0 && share.CorePercent > gpu.CorePercent-used.CorePercent:
		return fmt.Sprintf("cores %d %% requested, %d of %d %% free", share.CorePercent, max(0, gpu.CorePercent-used.CorePercent), gpu.CorePercent)
	}
	return ""
}

// highest returns the shares with the higher of both amounts. 0 cores: no limit, so the highest.
func highest(a, b []grant.Share) []grant.Share {
	most := make([]grant.Share, len(a))
	for i := range a {
		most[i] = grant.Share{UUID: a[i].UUID, MemoryMiB: max(a[i].MemoryMiB, b[i].MemoryMiB), CorePercent: max(a[i].CorePercent, b[i].CorePercent)}
		if a[i].CorePercent == 0 || b[i].CorePercent == 0 {
			most[i].CorePercent = 0
		}
	}
	return most
}
