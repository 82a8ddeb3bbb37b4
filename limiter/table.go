package limiter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Table has the shares of one GPU's compute time. The containers of the GPU read it.
type Table struct {
	// FloorPercent is the least of a container without a share; 0: it stays, or is the least that is valid.
	FloorPercent int
	Shares       []TableShare
}

// MostTableShares is the number of shares that a table has room for. A container that is not in it has its share also
// while it is the only one on the GPU, as with PolicyForce.
const MostTableShares = tableShares

type TableShare struct {
	ID          TurnID
	CorePercent int // 0: no share
	SoftPercent int // ceiling with borrowed time; 0: none
	Policy      Policy
	Priority    Priority
}

var ErrTable = errors.New("not a table of shares")

const leastFloor = 1

// TableWriter writes tables. It is for one goroutine; the zero value is ready.
type TableWriter struct {
	file   file
	is, be tableFile
}

// Write changes a table in place, because containers map it. There must be only one writer. It fixes what a killed
// writer left.
func (w *TableWriter) Write(path string, t Table) error {
	if err := w.file.open(path, unix.O_RDWR); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	defer w.file.close()
	if err := w.rewrite(t); err != nil {
		return fmt.Errorf("write table %s: %w", path, err)
	}
	return nil
}

func (w *TableWriter) rewrite(t Table) error {
	is, be := &w.is, &w.be
	if _, err := w.file.ReadAt(bytesOf(is), 0); err != nil {
		return err
	}
	intact := is.check() == nil
	if t.FloorPercent == 0 && intact {
		t.FloorPercent = int(is.floorPercent)
	}
	be.encode(t)
	be.sequence = is.sequence
	if intact && *is == *be {
		return nil
	}
	odd := is.sequence | 1
	crc, end := unsafe.Offsetof(be.crc32), unsafe.Sizeof(*be)
	if intact {
		end = unsafe.Offsetof(be.shares) + uintptr(max(is.count, be.count))*unsafe.Sizeof(tableShare{})
	}
	if err := w.setSequence(odd); err != nil {
		return err
	}
	if err := w.file.writeAt(bytesOf(be)[crc:end], int64(crc)); err != nil {
		return err
	}
	if !intact {
		if err := w.file.writeAt(be.magic[:], 0); err != nil {
			return err
		}
	}
	return w.setSequence(odd + 1)
}

func (w *TableWriter) setSequence(sequence uint32) error {
	var bytes [4]byte
	binary.LittleEndian.PutUint32(bytes[:], sequence)
	return w.file.writeAt(bytes[:], int64(unsafe.Offsetof(w.be.sequence)))
}

func (f *file) writeAt(p []byte, at int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(f.fd, p, at)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

func (t *tableFile) encode(from Table) {
	*t = tableFile{floorPercent: uint32(max(from.FloorPercent, leastFloor))}
	copy(t.magic[:], tableMagic)
	for _, s := range from.Shares[:min(len(from.Shares), tableShares)] {
		t.shares[t.count] = tableShare{
			id: uint64(s.ID), corePercent: uint16(s.CorePercent), softPercent: uint16(s.SoftPercent),
			policy: uint8(s.Policy), priority: uint8(s.Priority),
		}
		t.count++
	}
	t.crc32 = t.checksum()
}

func (t *tableFile) check() error {
	switch {
	case string(t.magic[:]) != tableMagic:
		return fmt.Errorf("%w: magic number %q, not %q", ErrTable, t.magic, tableMagic)
	case t.sequence%2 != 0:
		return fmt.Errorf("%w: sequence %d is odd: %w", ErrTable, t.sequence, ErrHalfWritten)
	case t.crc32 != t.checksum():
		return fmt.Errorf("%w: crc32 is %#x, not %#x", ErrTable, t.crc32, t.checksum())
	case t.count > tableShares:
		return fmt.Errorf("%w: %d shares, not up to %d", ErrTable, t.count, tableShares)
	}
	return nil
}

// ReadTable reads a table that is not being changed.
func ReadTable(path string) (Table, error) {
	var f file
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return Table{}, fmt.Errorf("read table: %w", err)
	}
	defer f.close()
	var is tableFile
	_, err := f.ReadAt(bytesOf(&is), 0)
	if err == nil {
		err = is.check()
	}
	if err != nil {
		return Table{}, fmt.Errorf("read table %s: %w", path, err)
	}
	t := Table{FloorPercent: int(is.floorPercent)}
	for _, s := range is.shares[:is.count] {
		t.Shares = append(t.Shares, TableShare{
			ID: TurnID(s.id), CorePercent: int(s.corePercent), SoftPercent: int(s.softPercent),
			Policy: Policy(s.policy), Priority: Priority(s.priority),
		})
	}
	return t, nil
}

// newTable begins the name of a directory that is being made.
const newTable = ".new-"

// createTable makes a GPU's directory with an empty table. It does not replace one.
func createTable(stateDir, gpu string) error {
	made := TurnsDirOf(stateDir, newTable+gpu)
	if err := os.RemoveAll(made); err != nil { // of one that was killed
		return err
	}
	if err := mkdir(made); err != nil {
		return err
	}
	var empty tableFile
	empty.encode(Table{})
	err := createFile(TablePath(stateDir, newTable+gpu), 0o644, bytesOf(&empty))
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, TurnsDirOf(stateDir, gpu), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(made))
	}
	return nil
}
