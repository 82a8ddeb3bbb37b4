package request

import (
	"cmp"
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
		return nil, noGPU(list, c)
	}
	var shares []grant.Share
	var full []candidate
	possible := true
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
			possible = possible && d.empty().fits(amounts[i])
		}
		shares = append(shares, share)
	}
	if len(full) > 0 {
		return nil, overbooked(amounts, full, possible)
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
		return nil, noGPU(list, c)
	}
	for _, a := range amounts {
		for _, d := range allowed {
			if err = c.checkMaximum(d, d.share(a)); err == nil {
				break
			}
		}
		if err != nil { // on every GPU
			return nil, err
		}
	}
	fit := func(list []candidate) []grant.Share {
		for _, mig := range []bool{false, true} {
			if shares := bestFit(amounts, ofKind(list, mig), c); shares != nil {
				return shares
			}
		}
		return nil
	}
	if shares := fit(list); shares != nil {
		return shares, nil
	}
	if most := max(len(ofKind(list, false)), len(ofKind(list, true))); n > most {
		return nil, grant.Errorf(grant.ErrOverbooked, "%d GPUs are more than this node has for containers without Kubernetes: it has %d%s. Request fewer", n, most, listed(list, c))
	}
	return nil, overbooked(amounts, allowed, fit(emptied(list)) != nil)
}

// listed names the GPUs that a container can have, and why it can't have the others.
func listed(list []candidate, c Config) string {
	var usable, cordoned, forbidden []candidate
	for _, d := range list {
		switch {
		case !d.allowed:
			forbidden = append(forbidden, d)
		case d.cordoned:
			cordoned = append(cordoned, d)
		default:
			usable = append(usable, d)
		}
	}
	text := ""
	if len(usable) > 0 {
		text = " (" + each(usable, candidate.String) + ")"
	}
	if len(cordoned) > 0 {
		text += "; cordoned: " + each(cordoned, candidate.String) + " (gpuslice uncordon)"
	}
	if len(forbidden) > 0 {
		text += fmt.Sprintf("; not allowed: %s (devices in %s)", each(forbidden, candidate.String), c.Path)
	}
	return text
}

func noGPU(list []candidate, c Config) error {
	if len(list) == 0 {
		return grant.Errorf(grant.ErrUnknownGPU, "this node has no GPU to share")
	}
	return grant.Errorf(grant.ErrUnknownGPU, "this node has no GPU for containers without Kubernetes%s", listed(list, c))
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
			return nil, overbooked([]Amount{{Size{MiB: share.MemoryMiB}, Cores(share.CorePercent)}}, []candidate{d}, d.empty().hasCapacity(share))
		}
	}
	return slices.Clone(shares), nil
}

func ofKind(list []candidate, mig bool) []candidate {
	var kind []candidate
	for _, d := range list {
		if d.allowed && !d.cordoned && d.mig() == mig {
			kind = append(kind, d)
		}
	}
	return kind
}

func mixedKinds(a, b candidate) error {
	return grant.Errorf(grant.ErrMalformed, "%v and %v: a container can have either GPUs or MIG devices: request one kind", a, b)
}

// overbooked is the error for amounts that list has not free. They are possible if they fit without other containers:
// only then can the end of one help.
func overbooked(amounts []Amount, list []candidate, possible bool) error {
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
	if !possible {
		return grant.Errorf(grant.ErrOverbooked, "this node can never have %s: %s in total. Request less", what, each(list, candidate.whole))
	}
	return grant.Errorf(grant.ErrOverbooked, "not enough free GPU capacity for %s: %s. Wait until a container ends (gpuslice status lists them), or request less", what, each(list, candidate.free))
}

// amounts returns the amount for each of n GPUs, with the operator's defaults.
func (c Config) amounts(r *Request, n int) ([]Amount, error) {
	if err := c.checkCount(n); err != nil {
		return nil, err
	}
	for _, i := range sortedKeys(r.Each) {
		if i >= n {
			return nil, grant.Errorf(grant.ErrMalformed, "an amount is set for GPU %d of the container (the first is 0), but it requests %d GPUs: remove the amount, or request more GPUs", i, n)
		}
	}
	amounts := make([]Amount, n)
	for i := range amounts {
		a, err := c.complete(r.Each[i].or(r.Amount).or(c.Default.Amount))
		if err != nil {
			return nil, err
		}
		amounts[i] = a
	}
	return amounts, nil
}

func (a Amount) or(other Amount) Amount {
	return Amount{cmp.Or(a.Memory, other.Memory), cmp.Or(a.CorePercent, other.CorePercent)}
}

func (c Config) complete(a Amount) (Amount, error) {
	switch {
	case !a.Memory.IsZero():
	case c.AllowWholeGPUs:
		a.Memory = Size{Percent: 100}
	default:
		return Amount{}, grant.Errorf(ErrForbidden, "the request has no memory, and whole GPUs are not allowed: set %s (8GiB, 25%%), or set default.memory or allowWholeGPUs in %s", api.EnvMemory, c.Path)
	}
	a.CorePercent = cmp.Or(a.CorePercent, c.Maximum.CorePercent) // unlimited would exceed it
	if a.CorePercent > c.Maximum.CorePercent && c.Maximum.CorePercent > 0 {
		return Amount{}, grant.Errorf(ErrForbidden, "%d %% of compute time exceeds the maximum of %d %% (maximum.cores in %s): request less", a.CorePercent, c.Maximum.CorePercent, c.Path)
	}
	return a, nil
}

func (c Config) checkCount(n int) error {
	if most := c.Maximum.Devices; most > 0 && n > most {
		return grant.Errorf(ErrForbidden, "%d GPUs exceed the maximum of %d (maximum.devices in %s): request fewer", n, most, c.Path)
	}
	if n > grant.MaxShares {
		return grant.Errorf(grant.ErrMalformed, "%d GPUs exceed the maximum of %d for one container: request fewer", n, grant.MaxShares)
	}
	return nil
}

// checkMaximum does not limit a MIG device's compute time, which no other device uses.
func (c Config) checkMaximum(d candidate, share grant.Share) error {
	most := c.Maximum
	if !most.Memory.IsZero() && share.MemoryMiB > most.Memory.Of(d.GPU) {
		return grant.Errorf(ErrForbidden, "%d MiB of %v exceed the maximum of %d MiB (maximum.memory: %v in %s): request less",
			share.MemoryMiB, d, most.Memory.Of(d.GPU), most.Memory, c.Path)
	}
	if most.CorePercent > 0 && !d.mig() && (share.CorePercent == 0 || share.CorePercent > int(most.CorePercent)) {
		return grant.Errorf(ErrForbidden, "%d %% (0: no limit) of the compute time of %v exceeds the maximum of %d %% (maximum.cores in %s): request less",
			share.CorePercent, d, most.CorePercent, c.Path)
	}
	return nil
}
