package orphans

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// RecordName is the record's file in a claim's directory, beside the ledger's own.
const RecordName = "runtime.json"

// Record says by what a claim's container is found. It is the host's alone.
type Record struct {
	// Nonce tells this claim from another of the same container id.
	Nonce string `json:"nonce"`
	// Creator is who makes the container: the wrapper, and the low-level runtime that it
	// becomes by exec. A slice's hook names the container's first process.
	Creator Process `json:"creator"`
	// CreatorUntil bounds Creator's word, in seconds since the machine's boot: of one that
	// goes on to live when the creation is over (podman as a service). 0 is no bound.
	CreatorUntil int64 `json:"creatorUntil,omitempty"`
	// PIDNamespace is the one that Creator's number is of.
	PIDNamespace uint64 `json:"pidNamespace"`
	// Roots are where the low-level runtime may keep the container's state.
	Roots []string `json:"roots"`
	// Runtime is the low-level runtime, and Bundle the container's. They are for people.
	Runtime string `json:"runtime"`
	Bundle  string `json:"bundle"`
	// Slice is the slice that the container has; empty with the wrapper's claims.
	Slice string `json:"slice,omitempty"`
}

// NewRecord describes a container that creator is about to make, with no word yet of what
// the caller knows better.
func NewRecord(proc Procfs, creator int) (Record, error) {
	r := Record{Nonce: rand.Text(), Roots: []string{}}
	var processErr, namespaceErr error
	r.Creator, processErr = proc.Identify(creator)
	r.PIDNamespace, namespaceErr = proc.Namespace()
	return r, errors.Join(processErr, namespaceErr)
}

// BoundCreator makes the creator's word count for so long from now on.
func (r *Record) BoundCreator(patience time.Duration) error {
	now, err := uptime()
	r.CreatorUntil = now + int64(patience.Seconds())
	return err
}

// uptime is how long the machine runs, in seconds. Unlike the time of day it is never set.
func uptime() (int64, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return 0, fmt.Errorf("ask how long the machine runs: %w", err)
	}
	return up.Sec, nil
}

// Write puts the record into a claim's directory that nobody else sees yet.
func (r Record) Write(dir string) error {
	data, err := r.encode()
	if err == nil {
		err = rawfile.Write(filepath.Join(dir, RecordName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", RecordName, err)
	}
	return nil
}

// ErrDamaged is of a record that is there and doesn't say what it should.
var ErrDamaged = errors.New("the record of a claim is damaged")

// Read reads the record of a claim's directory; fs.ErrNotExist where it has none, because
// the claim is another's or gone.
func Read(dir string) (Record, error) {
	path := filepath.Join(dir, RecordName)
	data, err := rawfile.Read(path)
	if err != nil {
		return Record{}, err
	}
	r, err := Decode(data)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	if r.Nonce == "" {
		return Record{}, fmt.Errorf("%w: %s: it has no nonce", ErrDamaged, path)
	}
	return r, nil
}
