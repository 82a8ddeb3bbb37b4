package oci

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// Result is what a container with a grant gets.
type Result struct {
	// Edits are to be applied whole or not at all.
	Edits *cdispec.ContainerEdits
	// Injection is the way that was chosen: InjectCDI or InjectEnvvar.
	Injection Injection
	// Replaced is what the container had in our places.
	Replaced Replaced
}

// Replaced is what of a container's own has to make room for the edits.
type Replaced struct {
	// Env are the names of variables that the container had set otherwise. The
	// edits set them anew.
	Env []string
	// Mounts are destinations, spelled as the container spells them. They have to
	// be removed before the edits are added.
	Mounts []string
}

// Edits says what a container gets that was granted shares of cards. It is pure:
// the same arguments give the same answer.
//
// An error means that the container must not be created. It names what is wrong
// and what to do; the caller adds whose container it is.
func Edits(shares []grant.Share, s Settings, c Container, devices DeviceEdits) (Result, error) {
	if err := checkShares(shares); err != nil {
		return Result{}, err
	}
	if err := s.Validate(); err != nil {
		return Result{}, err
	}
	if err := c.checkDir(); err != nil {
		return Result{}, err
	}

	way, visible, err := injectDevices(uuidsOf(shares), s, c, devices)
	if err != nil {
		return Result{}, err
	}
	if err := checkForeign(uuidsOf(shares), c, visible); err != nil {
		return Result{}, err
	}

	edits, err := compose(visible, &cdispec.ContainerEdits{
		Env:    environment(shares, s, c, way),
		Mounts: limiterMounts(s, c),
	})
	if err != nil {
		return Result{}, err
	}
	return Result{
		Edits:     edits,
		Injection: way,
		Replaced: Replaced{
			Env:    replacedEnv(c.Env, edits.Env),
			Mounts: replacedMounts(c.Mounts, edits),
		},
	}, nil
}

// compose puts the limiter's edits over those of the cards.
func compose(visible, limits *cdispec.ContainerEdits) (*cdispec.ContainerEdits, error) {
	for _, m := range visible.Mounts {
		if ownedDestination(cleanDestination(m.ContainerPath)) {
			return nil, fmt.Errorf("the CDI spec mounts %s, where the limiter's files go: remove that mount from the spec", m.ContainerPath)
		}
	}
	edits := Merge(visible, limits)
	if err := (&cdi.ContainerEdits{ContainerEdits: edits}).Validate(); err != nil {
		return nil, fmt.Errorf("the container's edits are not valid CDI: %w", err)
	}
	return edits, nil
}

// checkShares refuses what can't be limited. The codecs of package grant check
// the same at their doors; this is the last one.
func checkShares(shares []grant.Share) error {
	if len(shares) == 0 {
		return errors.New("the grant has no shares: a container without a card gets no grant")
	}
	if len(shares) > limiter.MaxDevices {
		return fmt.Errorf("the grant has %d cards, and a container can be limited on %d at most", len(shares), limiter.MaxDevices)
	}
	seen := map[string]bool{}
	for i, share := range shares {
		uuid := strings.ToLower(share.UUID)
		switch {
		case !validUUID(share.UUID):
			return fmt.Errorf("share %d: %q is not a card's UUID: want GPU-<uuid> or MIG-<uuid>, as nvidia-smi -L prints them", i, share.UUID)
		case seen[uuid]:
			return fmt.Errorf("share %d: card %s is granted twice", i, share.UUID)
		case share.MemoryMiB <= 0:
			return fmt.Errorf("share %d of card %s: %d MiB of memory is not a limit", i, share.UUID, share.MemoryMiB)
		case share.MemoryMiB > maxMemoryMiB:
			return fmt.Errorf("share %d of card %s: %d MiB of memory is more than any card has", i, share.UUID, share.MemoryMiB)
		case share.CorePercent < 0 || share.CorePercent > 100:
			return fmt.Errorf("share %d of card %s: %d %% of compute time is not between 0 and 100", i, share.UUID, share.CorePercent)
		}
		seen[uuid] = true
	}
	return nil
}

// maxMemoryMiB keeps a limit in bytes within 63 bits.
const maxMemoryMiB = 1<<43 - 1

// validUUID wants the form that NVML gives since driver 470: "GPU-" or "MIG-"
// and a UUID of 8-4-4-4-12 hexadecimal digits.
func validUUID(name string) bool {
	hex, ok := strings.CutPrefix(name, "GPU-")
	if !ok {
		hex, ok = strings.CutPrefix(name, "MIG-")
	}
	if !ok || len(hex) != 36 {
		return false
	}
	for i, r := range hex {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdefABCDEF", r) {
			return false
		}
	}
	return true
}

// replacedEnv are the names that a container had set to something else.
func replacedEnv(env, edits []string) []string {
	ours := map[string]string{}
	for _, e := range edits {
		name, _, _ := strings.Cut(e, "=")
		ours[name] = e
	}
	var names []string
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if entry, set := ours[name]; ok && set && entry != e {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// UnsafeDuplicates are the names that the edits set and that the environment has
// more than once with a value other than the edits'. A runtime that replaces one
// occurrence only would let another win: containerd's NRI does (nri v0.12,
// generate.AdjustEnv replaces the first, and the second then overwrites it), and
// kubelet does pass a name twice when a device plugin and the pod both set it. A
// caller that can't rewrite the whole environment refuses such a container.
func UnsafeDuplicates(env []string, edits *cdispec.ContainerEdits) []string {
	if edits == nil {
		return nil
	}
	ours := map[string]string{}
	for _, e := range edits.Env {
		name, _, _ := strings.Cut(e, "=")
		ours[name] = e
	}
	count := map[string]int{}
	var names []string
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		entry, set := ours[name]
		if !ok || !set {
			continue
		}
		if count[name]++; count[name] > 1 && e != entry {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
