package limiter

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

// WriteLimits replaces a limits file, with mode 0444. Running containers keep the old one: use UpdateLimits for them.
func WriteLimits(path string, l Limits) error {
	file, err := encodeLimits(l, 1)
	if err == nil {
		err = inDir(path, func() error { return atomicfile.Write(path, bytesOf(file), 0o444) })
	}
	if err != nil {
		return fmt.Errorf("write limits %s: %w", path, err)
	}
	return nil
}

func ReadLimits(path string) (Limits, error) {
	_, l, err := readLimits(path)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits: %w", err)
	}
	return l, nil
}

// ReadLimitsOf reads a container's limits from its claim's directory. The error for those of another one is ErrForeign.
func ReadLimitsOf(claimDir, containerID string) (Limits, error) {
	l, err := ReadLimits(LimitsPath(claimDir))
	if err == nil && l.Identity != IdentityOf(containerID) {
		err = ErrForeign
	}
	return l, err
}

func readLimits(path string) (limits *limitsFile, l Limits, err error) {
	var f file
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return nil, Limits{}, err
	}
	defer f.close()
	content := make([]byte, min(f.stat.Size, limitsSize+1))
	if _, err = f.ReadAt(content, 0); err == nil {
		limits, l, err = decodeLimits(content)
	}
	if err != nil {
		return nil, Limits{}, fmt.Errorf("%s: %w", path, err)
	}
	return limits, l, nil
}

// UpdateLimits changes a claim's limits file in place, so that running containers follow. The GPUs, Oversubscribe, the
// turn ID, the residue and what HoldEarlier wrote stay. It fixes half-written files and those with another identity.
func UpdateLimits(claimDir string, l Limits) error {
	want, err := encodeLimits(l, 0)
	if err != nil {
		return fmt.Errorf("update limits of %s: %w", claimDir, err)
	}
	return changeLimits(claimDir, "update limits", func(limits *limitsFile) error { return rewrite(limits, want, len(l.Devices)) })
}

// Identify writes a container's identity into a limits file.
func Identify(claimDir, containerID string) error {
	return changeLimits(claimDir, "write the container's identity into the limits", func(limits *limitsFile) error {
		limits.identity = IdentityOf(containerID)
		return nil
	})
}

func rewrite(file, want *limitsFile, count int) error {
	want.generation = file.generation
	if file.identity != want.identity {
		file.limitsHeader, count = want.limitsHeader, MaxDevices
	} else {
		want.turnID = file.turnID
		if file.limitsHeader != want.limitsHeader {
			return errors.New("the header is invalid, or has other GPUs or oversubscription")
		}
		for i := range count {
			is, be := &file.records[i], &want.records[i]
			if is.uuid != be.uuid {
				return fmt.Errorf("record %d has GPU %s, not %s", i, formatUUID(is.uuid, false), formatUUID(be.uuid, false))
			}
			if is.intact() {
				be.keep(is)
			}
		}
	}
	for i := range count {
		rewriteRecord(&file.records[i], want.records[i])
	}
	file.nextGeneration()
	return nil
}

// nextGeneration makes the container's processes read the limits again.
func (h *limitsHeader) nextGeneration() { atomic.AddUint64(&h.generation, 1) }

// rewriteRecord follows the library's protocol: the sequence is odd while the bytes change, also after a writer was
// killed.
func rewriteRecord(r *limitsRecord, want limitsRecord) (changed bool) {
	want.sequence = atomic.LoadUint32(&r.sequence)
	if want.sequence%2 == 0 && *r == want {
		return false
	}
	odd := want.sequence | 1
	atomic.StoreUint32(&r.sequence, odd)
	copy(bytesOf(r)[unsafe.Offsetof(r.crc32):], bytesOf(&want)[unsafe.Offsetof(r.crc32):])
	atomic.StoreUint32(&r.sequence, odd+1)
	return true
}

// inDir writes a file, and makes its directory if it is missing.
func inDir(path string, write func() error) error {
	err := write()
	if errors.Is(err, fs.ErrNotExist) && unix.Mkdir(filepath.Dir(path), 0o755) == nil {
		err = write()
	}
	return err
}
