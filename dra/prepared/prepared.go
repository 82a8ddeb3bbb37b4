// Package prepared stores which shares of the node's GPUs prepared ResourceClaims have, and returns the grant of a
// container that has some of them. The DRA driver writes the records, the NRI plugin reads them; only root can read
// them. It has no types of Kubernetes.
package prepared

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const version = 1

// Record is what one ResourceClaim has of the node's GPUs.
type Record struct {
	Version   int    `json:"version"`
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Requests are the shares by the name of the request, in the order of the allocation.
	Requests map[string][]grant.Share `json:"requests"`
}

// Kubernetes' names: a UID is any text for the API server, and its own are UUIDs; a request is a DNS label.
var (
	uidPattern     = regexp.MustCompile(`^[0-9a-z]([-0-9a-z]{0,61}[0-9a-z])?$`)
	requestPattern = regexp.MustCompile(`^[0-9a-z]([-0-9a-z]{0,61}[0-9a-z])?$`)
)

// Device is the CDI device of a ResourceClaim's request: the name after "gpuslice.io/claim=".
type Device struct{ UID, Request string }

func (d Device) String() string { return d.UID + "." + d.Request }

// QualifiedName is the device's name for a container runtime.
func (d Device) QualifiedName() string { return api.CDIClaimKind + "=" + d.String() }

// ContainerPath is where a device's record is mounted in a container.
func ContainerPath(device string) string { return api.ContainerPreparedDir + "/" + device }

// ValidUID returns whether a ResourceClaim with this UID can be prepared.
func ValidUID(uid string) bool { return uidPattern.MatchString(uid) }

// Devices are the names of the record's CDI devices, sorted.
func (r *Record) Devices() (names []string) {
	for request := range r.Requests {
		names = append(names, Device{r.UID, request}.String())
	}
	slices.Sort(names)
	return names
}

// Same returns whether both records are of one ResourceClaim and have the same shares.
func (r *Record) Same(other Record) bool {
	return r.UID == other.UID && r.Namespace == other.Namespace && r.Name == other.Name &&
		maps.EqualFunc(r.Requests, other.Requests, slices.Equal)
}

func deviceOf(name string) (Device, error) {
	uid, request, _ := strings.Cut(name, ".")
	if !uidPattern.MatchString(uid) || !requestPattern.MatchString(request) {
		return Device{}, grant.Errorf(grant.ErrMalformed, "CDI device %s: must be %s=<UID>.<request>", quote.Short(name), api.CDIClaimKind)
	}
	return Device{uid, request}, nil
}

// Validate checks the record without the node.
func (r *Record) Validate() error {
	switch {
	case r.Version != version:
		return fmt.Errorf("version %d is not known, only %d is", r.Version, version)
	case !uidPattern.MatchString(r.UID):
		return grant.Errorf(grant.ErrMalformed, "UID %s: must be of a-z, 0-9 and -, as the API server's", quote.Short(r.UID))
	case r.Namespace == "" || r.Name == "":
		return grant.Errorf(grant.ErrMalformed, "it has no name or no namespace")
	case len(r.Requests) == 0:
		return grant.Errorf(grant.ErrMalformed, "it has no request of a GPU")
	}
	for request, shares := range r.Requests {
		if !requestPattern.MatchString(request) {
			return grant.Errorf(grant.ErrMalformed, "request %s: must be a DNS label", quote.Short(request))
		}
		if err := grant.ValidateShares(shares); err != nil {
			return fmt.Errorf("request %s: %w", request, err)
		}
	}
	return nil
}

// Store is the directory of the records, one file for each ResourceClaim.
type Store struct{ dir string }

// Open opens the store of a state directory, and makes it if it is missing.
func Open(stateDir string) (*Store, error) {
	s := &Store{filepath.Join(stateDir, api.PreparedDirName)}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("prepared ResourceClaims: %w", err)
	}
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("prepared ResourceClaims: %w", err)
	}
	if err := atomicfile.RemoveUnfinished(s.dir, func(string) bool { return true }); err != nil {
		return nil, fmt.Errorf("prepared ResourceClaims: %w", err)
	}
	return s, nil
}

// Path returns the path of a record.
func (s *Store) Path(uid string) string { return filepath.Join(s.dir, uid+".json") }

// Write writes a record, unless it is there with the same content: then the file stays the one that containers have
// mounted. A kill leaves the old content or the new content.
func (s *Store) Write(r Record) error {
	r.Version = version
	if err := r.Validate(); err != nil {
		return r.failed("write", err)
	}
	data, err := encode(r)
	if err != nil {
		return r.failed("write", err)
	}
	if have, err := os.ReadFile(s.Path(r.UID)); err == nil && bytes.Equal(have, data) {
		return nil
	}
	if err := atomicfile.Write(s.Path(r.UID), data, 0o600); err != nil {
		return r.failed("write", err)
	}
	return nil
}

func (r *Record) failed(what string, err error) error {
	return fmt.Errorf("%s the record of ResourceClaim %s/%s: %w", what, r.Namespace, r.Name, err)
}

func encode(r Record) ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// Read returns the record of a prepared ResourceClaim; the error is fs.ErrNotExist if there is none.
func (s *Store) Read(uid string) (Record, error) {
	if !uidPattern.MatchString(uid) {
		return Record{}, grant.Errorf(grant.ErrMalformed, "UID %s: must be of a-z, 0-9 and -, as the API server's", quote.Short(uid))
	}
	data, err := os.ReadFile(s.Path(uid))
	if err != nil {
		return Record{}, err
	}
	r, err := decode(data, uid)
	if err != nil {
		return Record{}, fmt.Errorf("%s: %w", s.Path(uid), err)
	}
	return r, nil
}

func decode(data []byte, uid string) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("not valid JSON: %w", err)
	}
	if r.UID != uid {
		return Record{}, fmt.Errorf("is of the ResourceClaim with UID %s", quote.Short(r.UID))
	}
	return r, r.Validate()
}

// Has returns whether a prepared ResourceClaim has a device. An unreadable record can have it: it is an error.
func (s *Store) Has(uuid string) (bool, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		uid, is := strings.CutSuffix(e.Name(), ".json")
		if !is || !ValidUID(uid) {
			continue
		}
		r, err := s.Read(uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		for _, shares := range r.Requests {
			if grant.IndexOf(shares, uuid) >= 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// Remove removes a record. It is no error if there is none.
func (s *Store) Remove(uid string) error {
	if !uidPattern.MatchString(uid) {
		return nil // Write never wrote it
	}
	if err := os.Remove(s.Path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a ResourceClaim: %w", err)
	}
	return nil
}
