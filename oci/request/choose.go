package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// Choose picks the GPUs of a request: all that it asks for, or none with an error. The
// GPUs are what may be booked of each, by UUID, and booked is what is (a ledger's
// Snapshot has it). The order of the shares is that of the GPUs in the container.
//
// Of a number of GPUs, those are taken that have the least memory left afterwards and
// still fit, so that large requests find room later; ties go by index, then UUID. They
// are listed in the order of their indices, but where each has an amount of its own.
// GPUs come before MIG devices: of those a container gets the smallest that are enough,
// each whole, whatever part of it was asked. Both never go together.
//
// Errors are ErrForbidden (the operator's maximum, or a GPU that is kept for others; the
// text names the key and the file), grant.ErrUnknownGPU, grant.ErrMalformed, or
// grant.ErrOverbooked, whose text says what was asked and what is free where.
//
// The ledger decides again when the shares are booked. If it says grant.ErrOverbooked,
// somebody was faster, and who wants to can choose again.
func Choose(r *Request, gpus map[string]grant.GPU, booked map[string]ledger.Usage, c Config) ([]grant.Share, error) {
	if r == nil {
		return nil, nil
	}
	list := inventory(gpus, booked, c)
	if r.Shares != nil {
		return chooseGranted(r.Shares, list, c)
	}
	devices := r.Devices
	if devices.IsZero() {
		devices = c.Default.Devices
	}
	if devices.IsZero() {
		devices.Count = 1
	}
	if devices.All || len(devices.Names) > 0 {
		return chooseNamed(r, devices, list, c)
	}
	return chooseAny(r, devices.Count, list, c)
}

// chooseNamed takes certain GPUs, all of them or those of certain names.
func chooseNamed(r *Request, devices Devices, list []candidate, c Config) ([]grant.Share, error) {
	var named []candidate
	for _, name := range devices.Names {
		d, err := find(list, name, c)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(named, func(other candidate) bool { return other.UUID == d.UUID }) {
			return nil, refuse(grant.ErrMalformed, "%v is named twice, by its index and its UUID: name it once", d)
		}
		named = append(named, d)
	}
	if devices.All {
		if named = ofKind(list, false); len(named) == 0 {
			named = ofKind(list, true)
		}
	}
	amounts, err := c.amounts(r, len(named))
	if err != nil {
		return nil, err
	}
	if len(named) == 0 {
		return nil, refuse(grant.ErrUnknownGPU, "all GPUs are asked for, and there is none that containers without Kubernetes may use: the node has %s (see devices in %s)", namesOf(list), c.Path)
	}
	var shares []grant.Share
	var full []candidate
	for i, d := range named {
		if d.mig() != named[0].mig() {
			return nil, mixedKinds(named[0], d)
		}
		share := d.share(amounts[i])
		if err := c.checkMaximum(d, share); err != nil {
			return nil, err
		}
		if !d.fits(amounts[i]) {
			full = append(full, d)
		}
		shares = append(shares, share)
	}
	if len(full) > 0 {
		return nil, noRoom(amounts, full)
	}
	return shares, nil
}

// chooseAny takes any so many GPUs, or else MIG devices.
func chooseAny(r *Request, n int, list []candidate, c Config) ([]grant.Share, error) {
	amounts, err := c.amounts(r, n)
	if err != nil {
		return nil, err
	}
	allowed := slices.Concat(ofKind(list, false), ofKind(list, true))
	if len(allowed) == 0 {
		return nil, refuse(grant.ErrUnknownGPU, "there is no GPU that containers without Kubernetes may use: the node has %s (see devices in %s)", namesOf(list), c.Path)
	}
	for _, a := range amounts {
		if err := c.checkAnywhere(a, allowed); err != nil {
			return nil, err
		}
	}
	for _, mig := range []bool{false, true} {
		if shares := bestFit(amounts, ofKind(list, mig), c); shares != nil {
			return shares, nil
		}
	}
	return nil, noRoom(amounts, allowed)
}

// checkAnywhere says why an amount is beyond the operator's maximum on every GPU.
func (c Config) checkAnywhere(a Amount, list []candidate) (err error) {
	for _, d := range list {
		if err = c.checkMaximum(d, d.share(a)); err == nil {
			return nil
		}
	}
	return err
}

// chooseGranted books exactly what a grant says, if that is allowed and has room.
func chooseGranted(shares []grant.Share, list []candidate, c Config) ([]grant.Share, error) {
	if err := grant.ValidateShares(shares); err != nil {
		return nil, fmt.Errorf("%s: %w", grant.AnnotationGrant, err)
	}
	if err := c.checkCount(len(shares)); err != nil {
		return nil, err
	}
	var first candidate
	for i, share := range shares {
		d, err := find(list, share.UUID, c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", grant.AnnotationGrant, err)
		}
		if i == 0 {
			first = d
		}
		if d.mig() != first.mig() {
			return nil, mixedKinds(first, d)
		}
		if err := c.checkMaximum(d, share); err != nil {
			return nil, fmt.Errorf("%s: %w", grant.AnnotationGrant, err)
		}
		if !d.hasRoom(share) {
			return nil, noRoom([]Amount{{Size{MiB: share.MemoryMiB}, share.CorePercent}}, []candidate{d})
		}
	}
	return slices.Clone(shares), nil
}

// ofKind are the GPUs that may be used, or the MIG devices.
func ofKind(list []candidate, mig bool) []candidate {
	var kind []candidate
	for _, d := range list {
		if d.allowed && d.mig() == mig {
			kind = append(kind, d)
		}
	}
	return kind
}

func mixedKinds(a, b candidate) error {
	return refuse(grant.ErrMalformed, "%v and %v: GPUs and MIG devices don't go together in one container: ask for one or the other", a, b)
}

// noRoom says what was asked and what is free.
func noRoom(amounts []Amount, list []candidate) error {
	var asked []string
	for _, a := range amounts {
		if text := a.String(); !slices.Contains(asked, text) {
			asked = append(asked, text)
		}
	}
	what := "a GPU with " + strings.Join(asked, " or ")
	if len(amounts) > 1 {
		what = fmt.Sprintf("%d GPUs with %s each", len(amounts), strings.Join(asked, " and "))
	}
	return refuse(grant.ErrOverbooked, "asked for %s, and there is no room: %s. Wait until a container ends (gpuslice status lists them), or ask for less", what, freeOf(list))
}
