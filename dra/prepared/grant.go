package prepared

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// ErrNotPrepared: a container has a ResourceClaim that the node has not prepared, or only a part of what belongs to it.
var ErrNotPrepared = errors.New("ResourceClaim not prepared")

// Mount is a mount of a container, as the runtime reports it.
type Mount struct{ Source, Destination string }

// Names returns the devices of ResourceClaims among CDI names, each once and sorted: the runtime names a device twice if
// the kubelet prepared it twice, and containers with the same ones have a share in common.
func Names(cdi []string) (devices []string) {
	for _, name := range cdi {
		if device, is := strings.CutPrefix(name, api.CDIClaimKind+"="); is {
			devices = append(devices, device)
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

// Grant returns the grant of a container's ResourceClaims, or nil if it has none. It needs two things: the CDI devices
// that the runtime reports, which only the kubelet requests, and the mounts of the records, which show that the runtime
// applied them. A pod's author can mount a record by hostPath: a record without its device is refused.
func (s *Store) Grant(pod grant.Pod, container string, cdi []string, mounts []Mount) (*grant.Grant, error) {
	g, err := s.grant(pod, container, Names(cdi), mounts)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s container %q: %w", pod.Namespace, pod.Name, container, err)
	}
	return g, nil
}

func (s *Store) grant(pod grant.Pod, container string, names []string, mounts []Mount) (*grant.Grant, error) {
	for _, name := range names {
		if _, err := deviceOf(name); err != nil {
			return nil, err
		}
	}
	mounted, err := s.mounted(names, mounts)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	g := &grant.Grant{Container: container, Source: grant.SourceResourceClaim, ResourceClaims: names}
	for _, name := range names {
		if !mounted[name] {
			return nil, grant.Errorf(ErrNotPrepared, "CDI device %s: its record is not mounted: delete the pod", quote.Short(name))
		}
		shares, err := s.shares(pod, name)
		if err != nil {
			return nil, err
		}
		g.Shares = Add(g.Shares, shares...)
	}
	return g, grant.ValidateShares(g.Shares)
}

// mounted returns which devices have their records mounted. It refuses every other mount of or over a record.
func (s *Store) mounted(names []string, mounts []Mount) (map[string]bool, error) {
	mounted := map[string]bool{}
	for _, m := range mounts {
		destination := path.Clean("/" + m.Destination)
		name, at := strings.CutPrefix(destination, api.ContainerPreparedDir+"/")
		if !at && destination != api.ContainerPreparedDir && !within(path.Clean(m.Source), s.dir) {
			continue
		}
		if !slices.Contains(names, name) {
			return nil, grant.Errorf(ErrNotPrepared, "it mounts %s at %s, and the container runtime reports no CDI device for it: "+
				"remove the volume from the pod; if the pod has a ResourceClaim, the runtime must report CDI devices to NRI plugins (containerd 2.3)", m.Source, m.Destination)
		}
		device, err := deviceOf(name)
		if err != nil {
			return nil, err
		}
		if mounted[name] || m.Source != s.Path(device.UID) {
			return nil, grant.Errorf(ErrNotPrepared, "it mounts %s at %s, where only the record of its ResourceClaim is mounted: remove the volume from the pod", m.Source, m.Destination)
		}
		mounted[name] = true
	}
	return mounted, nil
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (s *Store) shares(pod grant.Pod, name string) ([]grant.Share, error) {
	device, err := deviceOf(name)
	if err != nil {
		return nil, err
	}
	record, err := s.Read(device.UID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, grant.Errorf(ErrNotPrepared, "ResourceClaim with UID %s: is not prepared on this node, or no longer: delete the pod", device.UID)
	}
	if err != nil {
		return nil, err
	}
	if record.Namespace != pod.Namespace {
		return nil, grant.Errorf(ErrNotPrepared, "ResourceClaim %s/%s: is of another namespace than the pod", record.Namespace, record.Name)
	}
	shares, ok := record.Requests[device.Request]
	if !ok {
		return nil, grant.Errorf(ErrNotPrepared, "ResourceClaim %s/%s: has no GPU for the request %s: delete the pod", record.Namespace, record.Name, device.Request)
	}
	return shares, nil
}

// Add adds shares; those of one GPU become one share. A share without limited compute time adds none.
func Add(to []grant.Share, shares ...grant.Share) []grant.Share {
	for _, share := range shares {
		i := grant.IndexOf(to, share.UUID)
		if i < 0 {
			to = append(to, share)
			continue
		}
		to[i].MemoryMiB += share.MemoryMiB
		to[i].CorePercent = min(to[i].CorePercent+share.CorePercent, grant.MaxCorePercent)
	}
	return to
}
