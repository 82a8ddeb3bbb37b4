package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// Choose selects the GPUs of a request, in the container's order. gpus is the capacity by UUID, and
// reserved what is in use.
//
// A number of GPUs is chosen by best fit; ties go by index, then UUID. MIG devices are used only if
// GPUs do not fit, whole, and never together with GPUs.
//
// After grant.ErrOverbooked from the ledger the caller can choose again.
func Choose(r *Request, gpus map[string]grant.GPU, reserved map[string]ledger.Usage, c Config) ([]grant.Share, error) {
	if r == nil {
		return nil, nil
	}
	list := inventory(gpus, reserved, c)
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

func chooseNamed(r *Request, devices Devices, list []candidate, c Config) ([]grant.Share, error) {
	var named []candidate
	for _, name := range devices.Names {
		d, err := find(list, name, c)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(named, func(other candidate) bool { return other.UUID == d.UUID }) {
			return nil, grant.Errorf(grant.ErrMalformed, "%v is listed twice, by its index and its UUID: list it once", d)
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
		return nil, grant.Errorf(grant.ErrUnknownGPU, "no GPU is allowed for containers without Kubernetes: the node has %s (see devices in %s)", namesOf(list), c.Path)
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
		return nil, overbooked(amounts, full)
	}
	return shares, nil
}

func chooseAny(r *Request, n int, list []candidate, c Config) ([]grant.Share, error) {
	amounts, err := c.amounts(r, n)
	if err != nil {
		return nil, err
	}
	allowed := slices.Concat(ofKind(list, false), ofKind(list, true))
	if len(allowed) == 0 {
		return nil, grant.Errorf(grant.ErrUnknownGPU, "no GPU is allowed for containers without Kubernetes: the node has %s (see devices in %s)", namesOf(list), c.Path)
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
	return nil, overbooked(amounts, allowed)
}

// checkAnywhere returns an error if an amount exceeds the operator's maximum on every GPU.
func (c Config) checkAnywhere(a Amount, list []candidate) (err error) {
	for _, d := range list {
		if err = c.checkMaximum(d, d.share(a)); err == nil {
			return nil
		}
	}
	return err
}

func chooseGranted(shares []grant.Share, list []candidate, c Config) ([]grant.Share, error) {
	if err := grant.ValidateShares(shares); err != nil {
		return nil, fmt.Errorf("%s: %w", api.AnnotationGrant, err)
	}
	if err := c.checkCount(len(shares)); err != nil {
		return nil, err
	}
	var first candidate
	for i, share := range shares {
		d, err := find(list, share.UUID, c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", api.AnnotationGrant, err)
		}
		if i == 0 {
			first = d
		}
		if d.mig() != first.mig() {
			return nil, mixedKinds(first, d)
		}
		if err := c.checkMaximum(d, share); err != nil {
			return nil, fmt.Errorf("%s: %w", api.AnnotationGrant, err)
		}
		if !d.hasCapacity(share) {
			return nil, overbooked([]Amount{{Size{MiB: share.MemoryMiB}, Cores(share.CorePercent)}}, []candidate{d})
		}
	}
	return slices.Clone(shares), nil
}

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
	return grant.Errorf(grant.ErrMalformed, "%v and %v: a container can have either GPUs or MIG devices: request one kind", a, b)
}

func overbooked(amounts []Amount, list []candidate) error {
	var texts []string
	for _, a := range amounts {
		if text := a.String(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	what := "a GPU with " + strings.Join(texts, " or ")
	if len(amounts) > 1 {
		what = fmt.Sprintf("%d GPUs with %s each", len(amounts), strings.Join(texts, " and "))
	}
	return grant.Errorf(grant.ErrOverbooked, "not enough free GPU capacity for %s: %s. Wait until a container ends (gpuslice status lists them), or request less", what, freeOf(list))
}
