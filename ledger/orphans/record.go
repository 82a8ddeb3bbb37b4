package orphans

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// RecordName is the record's file in a claim's directory.
const RecordName = "runtime.json"

// Record identifies the container of a claim. Containers can't read it.
type Record struct {
	// Nonce distinguishes claims of the same container ID.
	Nonce string `json:"nonce"`
	// Creator creates the container: the wrapper, and the low-level runtime that it becomes. For a slice it is
	// the container's first process.
	Creator Process `json:"creator"`
	// CreatorUntil is when Creator stops to count, in seconds since boot; 0: never.
	CreatorUntil int64  `json:"creatorUntil,omitempty"`
	PIDNamespace uint64 `json:"pidNamespace"`
	// Roots are the low-level runtime's directories of states.
	Roots []string `json:"roots"`
	// Runtime and Bundle are for information.
	Runtime string `json:"runtime"`
	Bundle  string `json:"bundle"`
	// Slice is the container's slice, or "".
	Slice string `json:"slice,omitempty"`
}

func NewRecord(proc Procfs, creator int) (Record, error) {
	r := Record{Nonce: rand.Text(), Roots: []string{}}
	var processErr, namespaceErr error
	r.Creator, processErr = proc.Identify(creator)
	r.PIDNamespace, namespaceErr = proc.Namespace()
	return r, errors.Join(processErr, namespaceErr)
}

// BoundCreator sets CreatorUntil.
func (r *Record) BoundCreator(patience time.Duration) error {
	now, err := uptime()
	r.CreatorUntil = now + int64(patience.Seconds())
	return err
}

// uptime returns the seconds since boot.
func uptime() (int64, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return 0, fmt.Errorf("read the machine's uptime: %w", err)
	}
	return up.Sec, nil
}

// Write writes the record into a new claim's directory.
func (r Record) Write(dir string) error {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(r)
	if err == nil {
		err = rawfile.Write(filepath.Join(dir, RecordName), data.Bytes(), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", RecordName, err)
	}
	return nil
}

// ErrDamaged is returned for a record that can't be parsed.
var ErrDamaged = errors.New("the record of a claim is damaged")

// Read reads the record of a claim's directory; fs.ErrNotExist: the agent made the claim, or it is gone.
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

func Decode(data []byte) (r Record, err error) {
	err = json.Unmarshal(data, &r)
	return r, err
}
