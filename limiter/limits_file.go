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
	err := l.validate()
	var file []byte
	if err == nil {
		file, err = encodeLimits(l, 1)
	}
	if err == nil {
		err = inDir(path, func() error { return atomicfile.Write(path, file, 0o444) })
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

func readLimits(path string) (content []byte, l Limits, err error) {
	var f file
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return nil, Limits{}, err
	}
	defer f.close()
	content = make([]byte, min(f.stat.Size, limitsSize+1))
	if _, err = f.ReadAt(content, 0); err == nil {
		l, err = decodeLimits(content)
	}
	if err != nil {
		return nil, Limits{}, fmt.Errorf("%s: %w", path, err)
	}
	return content, l, nil
}

// UpdateLimits changes a claim's limits file in place, so that running containers follow. The GPUs, Oversubscribe and
// CoreStates stay. It fixes half-written files and those with another identity.
func UpdateLimits(claimDir string, l Limits) error {
	err := l.validate()
	var want []byte
	if err == nil {
		want, err = encodeLimits(l, 0)
	}
	if err == nil {
		err = changeLimits(claimDir, func(limits []byte) error { return rewrite(limits, want, len(l.Devices)) })
	}
	if err != nil {
		return fmt.Errorf("update limits of %s: %w", claimDir, err)
	}
	return nil
}

// Identify writes a container's identity into a limits file.
func Identify(claimDir, containerID string) error {
	identity := IdentityOf(containerID)
	err := changeLimits(claimDir, func(limits []byte) error {
		copy(limits[limitsOffIdentity:], identity[:])
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the container's identity into the limits of %s: %w", claimDir, err)
	}
	return nil
}

func rewrite(file, want []byte, count int) error {
	if identity := limitsOffIdentity + identitySize; string(file[limitsOffIdentity:identity]) != string(want[limitsOffIdentity:identity]) {
		copy(file[:limitsOffGen], want)
		copy(file[limitsOffFlags:limitsHeaderSize], want[limitsOffFlags:])
		for i := range MaxDevices {
			rewriteRecord(recordAt(file, i), recordAt(want, i))
		}
		nextGeneration(file)
		return nil
	}
	if string(file[:limitsOffGen]) != string(want[:limitsOffGen]) ||
		string(file[limitsOffFlags:limitsHeaderSize]) != string(want[limitsOffFlags:limitsHeaderSize]) {
		return errors.New("the header is invalid, or has other GPUs or oversubscription")
	}
	for i := range count {
		is, be := recordAt(file, i)[recordOffUUID:recordOffMemory], recordAt(want, i)[recordOffUUID:recordOffMemory]
		if string(is) != string(be) {
			return fmt.Errorf("record %d has GPU %s, not %s", i, formatUUID(is, false), formatUUID(be, false))
		}
	}
	for i := range count {
		keepCores(recordAt(want, i), recordAt(file, i))
		rewriteRecord(recordAt(file, i), recordAt(want, i))
	}
	nextGeneration(file)
	return nil
}

// nextGeneration makes the container's processes read the limits again.
func nextGeneration(file []byte) {
	atomic.AddUint64((*uint64)(unsafe.Pointer(&file[limitsOffGen])), 1)
}

// rewriteRecord follows the library's protocol: the sequence is odd while the bytes change, also after a writer was
// killed.
func rewriteRecord(r, want []byte) {
	sequence := (*uint32)(unsafe.Pointer(&r[recordOffSequence]))
	now := atomic.LoadUint32(sequence)
	if now%2 == 0 && string(r[recordOffCRC:]) == string(want[recordOffCRC:]) {
		return
	}
	odd := now | 1
	atomic.StoreUint32(sequence, odd)
	copy(r[recordOffCRC:], want[recordOffCRC:])
	atomic.StoreUint32(sequence, odd+1)
}

// inDir writes a file, and makes its directory if it is missing.
func inDir(path string, write func() error) error {
	err := write()
	if errors.Is(err, fs.ErrNotExist) && unix.Mkdir(filepath.Dir(path), 0o755) == nil {
		err = write()
	}
	return err
}
