package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
)

// Tampering describes locks and leases on a claim's files. gpuslice takes none of these: they can only make the host wait.
type Tampering struct {
	What string
	// By are processes of the container that hold one, as far as found.
	By []Holder
}

type Holder struct {
	orphans.Process
	// Name and What are for messages. Spared is the reason not to kill it.
	Name, What, Spared string
}

// A tenant can have very many processes, files and locks.
const (
	// holderTime is for /proc/locks, and for all containers of a pass together.
	holderTime  = 250 * time.Millisecond
	mostHolders = 16
	// mostFileLocks: the kernel allocates one buffer for all locks in an fdinfo.
	mostFileLocks = 1024
	mostFdinfo    = 256 << 10
)

var errLockList = fmt.Errorf("reading /proc/locks takes longer than %s: processes that hold locks on files of containers are not searched", holderTime)

type fileID struct{ device, inode uint64 }

// fileLock is a line of /proc/locks, or of /proc/<pid>/fdinfo/<fd>.
type fileLock struct {
	kind string // FLOCK, POSIX, OFDLCK, LEASE
	// pid took the lock; -1: not known. Others can hold it now, and the PID can be reused.
	pid        int
	file       fileID
	start, end uint64
}

// parseLock parses one line; see proc_locks(5).
//
//	1: LEASE ACTIVE READ 1234 00:2d:5678 0 EOF
func parseLock(line string) (l fileLock, ok bool) {
	fields := strings.Fields(strings.TrimPrefix(line, "lock:"))
	if len(fields) < 8 || fields[1] == "->" {
		return l, false
	}
	l.kind, l.end = fields[1], 1<<64-1
	place := strings.Split(fields[5], ":")
	if len(place) != 3 {
		return l, false
	}
	major, err1 := strconv.ParseUint(place[0], 16, 32)
	minor, err2 := strconv.ParseUint(place[1], 16, 32)
	inode, err3 := strconv.ParseUint(place[2], 10, 64)
	pid, err4 := strconv.Atoi(fields[4])
	start, err5 := strconv.ParseUint(fields[6], 10, 64)
	var err6 error
	if fields[7] != "EOF" {
		l.end, err6 = strconv.ParseUint(fields[7], 10, 64)
	}
	l.pid, l.start, l.file = pid, start, fileID{unix.Mkdev(uint32(major), uint32(minor)), inode}
	return l, errors.Join(err1, err2, err3, err4, err5, err6) == nil
}

type claimFiles map[fileID]limiter.Lock

func filesOf(c *Claim) claimFiles {
	files := claimFiles{}
	var st unix.Stat_t
	if c.Dir != "" && unix.Lstat(limiter.LimitsPath(c.Dir), &st) == nil {
		files[fileID{uint64(st.Dev), st.Ino}] = limiter.Lock{}
	}
	if c.Dir != "" && unix.Lstat(limiter.UsagePath(c.Dir), &st) == nil {
		files[fileID{uint64(st.Dev), st.Ino}] = limiter.Lock{Usage: true}
	}
	return files
}

// foreign excludes the limiter's own locks.
func (f claimFiles) foreign(l fileLock) (limiter.Lock, bool) {
	is, ours := f[l.file]
	is.Lease = l.kind == "LEASE"
	bytes := l.kind == "POSIX" || l.kind == "OFDLCK"
	own := is.Usage && bytes && l.start >= limiter.LimiterLocks && l.end <= limiter.LimiterLocksEnd
	return is, ours && !own
}

// locks reads /proc/locks, at most mostFileLocks+1 per file. A tenant can make the list very long, and each read walks it
// from the beginning.
func (p procfiles) locks(ctx context.Context, of map[fileID]bool) (map[fileID][]fileLock, error) {
	f, err := os.Open(p.Path("locks"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[fileID][]fileLock{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if ctx.Err() != nil {
			return nil, errLockList
		}
		if l, ok := parseLock(lines.Text()); ok && of[l.file] && len(found[l.file]) <= mostFileLocks {
			found[l.file] = append(found[l.file], l)
		}
	}
	return found, lines.Err()
}

func (i *Inspector) tampering(ctx context.Context, claims map[string]*Claim, locks func(*Claim) ([]limiter.Lock, error)) error {
	var errs []error
	var tampered []*Claim
	for _, id := range slices.Sorted(maps.Keys(claims)) {
		c := claims[id]
		if c.Dir == "" {
			continue
		}
		held, err := locks(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Container, err))
		}
		if len(held) == 0 {
			continue
		}
		c.Tampering.What = inWords(held)
		tampered = append(tampered, c)
	}
	if len(tampered) > 0 {
		errs = append(errs, i.holders(ctx, tampered, claims))
	}
	return errors.Join(errs...)
}

func inWords(held []limiter.Lock) string {
	var all []string
	for _, l := range held {
		if text := l.String(); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, " and ")
}

// holders finds the holders of these claims' locks. The claims share the time equally.
func (i *Inspector) holders(ctx context.Context, tampered []*Claim, claims map[string]*Claim) error {
	of := map[fileID]bool{}
	for _, c := range tampered {
		for id := range filesOf(c) {
			of[id] = true
		}
	}
	listing, cancel := context.WithTimeout(ctx, i.holderTime)
	defer cancel()
	listed, err := i.proc.locks(listing, of)
	if err != nil {
		return err
	}
	pids, err := i.byContainer(claims)
	if err != nil {
		return err
	}
	for _, c := range tampered {
		part, cancel := context.WithTimeout(ctx, i.holderTime/time.Duration(len(tampered)))
		c.Tampering.By = i.holdersOf(part, c, pids[c.ID], listed)
		cancel()
	}
	return nil
}

func (i *Inspector) byContainer(claims map[string]*Claim) (map[string][]int, error) {
	all, err := i.proc.All()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(pid int) bool { return i.strangers[pid] > i.pass })
	files := usageFiles(claims)
	owners := files.Of(i.owners.Find(all, files.UsageFiles))
	of := map[string][]int{}
	for _, pid := range all {
		if owner := owners[pid]; owner != "" {
			of[owner] = append(of[owner], pid)
		}
	}
	return of, nil
}

func (i *Inspector) holdersOf(ctx context.Context, c *Claim, pids []int, listed map[fileID][]fileLock) (all []Holder) {
	files := filesOf(c)
	named := map[int]bool{}
	for id := range files {
		if len(listed[id]) > mostFileLocks {
			return nil
		}
		for _, l := range listed[id] {
			named[l.pid] = true
		}
	}
	slices.SortStableFunc(pids, func(a, b int) int {
		switch {
		case named[a] == named[b]:
			return 0
		case named[a]:
			return -1
		}
		return 1
	})
	for _, pid := range pids {
		if ctx.Err() != nil || len(all) == mostHolders {
			break
		}
		s, dir, err := i.proc.Process(pid)
		if err != nil {
			continue
		}
		held := i.proc.held(ctx, dir, files)
		if len(held) == 0 {
			continue
		}
		one := Holder{Process: orphans.Process{PID: pid, Start: s.Start}, Name: s.Name, What: inWords(held)}
		if c.ID == i.own || pid == os.Getpid() {
			one.Spared = ownContainer
		}
		all = append(all, one)
	}
	return all
}

func (i *Inspector) holds(pid int, claim *Claim) bool {
	_, dir, err := i.proc.Process(pid)
	if err != nil || claim == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), i.holderTime)
	defer cancel()
	return len(i.proc.held(ctx, dir, filesOf(claim))) > 0
}

// held returns locks and leases by open files: all processes with the open file have its lock.
func (p procfiles) held(ctx context.Context, dir string, files claimFiles) (all []limiter.Lock) {
	count := 0
	p.openFiles(dir, 0, func(open int, name string, _ int) bool {
		var st unix.Statx_t
		err := unix.Statx(open, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st)
		if _, ours := files[fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}]; err == nil && ours {
			all = append(all, p.lockedBy(filepath.Join(dir, "fdinfo", name), files)...)
		}
		count++
		return count < mostOpen && len(all) < mostHolders && ctx.Err() == nil
	})
	return all
}

func (p procfiles) lockedBy(fdinfo string, files claimFiles) (all []limiter.Lock) {
	f, err := os.Open(p.Path(fdinfo))
	if err != nil {
		return nil // closed
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, mostFdinfo))
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "lock:") {
			continue
		}
		if l, ok := parseLock(lines.Text()); ok {
			if one, foreign := files.foreign(l); foreign && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

func (f *finder) tampering(claim *Claim) {
	t := claim.Tampering
	if t.What == "" {
		return
	}
	one := Finding{Kind: TamperedFiles, Container: claim.Container, Detail: "a process of the container holds " + t.What}
	for n, by := range t.By {
		if n == 0 {
			one.Detail = fmt.Sprintf("process %d (%q) holds %s", by.PID, by.Name, by.What)
		}
		one.Offenders = append(one.Offenders, Offender{Process: by.Process, Spared: by.Spared})
	}
	f.add(one)
}
