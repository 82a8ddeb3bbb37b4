package audit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

func TestParseLock(t *testing.T) {
	for line, want := range map[string]fileLock{
		"1: LEASE  ACTIVE    READ  1234 00:2d:5678 0 EOF\n":                                          {"LEASE", 1234, fileID{unix.Mkdev(0, 0x2d), 5678}, 0, 1<<64 - 1},
		"2: FLOCK  ADVISORY  WRITE 99 103:02:42 0 EOF":                                               {"FLOCK", 99, fileID{unix.Mkdev(0x103, 2), 42}, 0, 1<<64 - 1},
		"lock:\t3: OFDLCK ADVISORY  WRITE -1 00:2d:18446744073709551615 1099511627776 1099511627777": {"OFDLCK", -1, fileID{unix.Mkdev(0, 0x2d), 1<<64 - 1}, 1 << 40, 1<<40 + 1},
		"4: LEASE  BREAKING  UNLCK 7 00:2d:1 0 EOF":                                                  {"LEASE", 7, fileID{unix.Mkdev(0, 0x2d), 1}, 0, 1<<64 - 1},
		"2: -> FLOCK  ADVISORY  WRITE 100 103:02:42 0 EOF":                                           {},
		"5: POSIX  *NOINODE* WRITE 8 <none>:0 0 EOF":                                                 {},
		"6: POSIX ADVISORY READ x 00:2d:1 0 EOF":                                                     {},
		"7: POSIX ADVISORY READ 1 00:2d 0 EOF":                                                       {},
		"8: POSIX ADVISORY READ 1 00:2d:1 0 x":                                                       {},
		"flags:\t02":                                                                                 {},
	} {
		got, ok := parseLock(line)
		assert.Equal(t, want != fileLock{}, ok, line)
		if ok {
			assert.Equal(t, want, got, line)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add("1: LEASE  ACTIVE    READ  1234 00:2d:5678 0 EOF\n")
	f.Add("lock:\t3: OFDLCK ADVISORY  WRITE -1 00:2d:18446744073709551615 1099511627776 1099511627777")
	f.Fuzz(func(t *testing.T, line string) {
		if l, ok := parseLock(line); ok {
			require.NotEmpty(t, l.kind)
		}
	})
}

// tampered is a simulated /proc with the claims of two containers. The limits file of the first one is locked.
type tampered struct {
	t      *testing.T
	proc   string
	claims map[string]*Claim
	i      *Inspector
}

func newTampered(t *testing.T) *tampered {
	p := &tampered{t: t, proc: t.TempDir(), claims: map[string]*Claim{idA: granted(idA), idB: granted(idB)}}
	for _, c := range p.claims {
		c.Dir = madeClaim(t)
	}
	p.locks()
	p.i = NewInspector(p.proc, t.TempDir(), runtimeOf(nil))
	p.i.holderTime = time.Hour // what is found depends on numbers, and not on how fast the machine is
	return p
}

// madeClaim makes a claim's directory with its files.
func madeClaim(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Dir(limiter.LimitsPath(dir)), 0o755))
	require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(dir), limiter.Limits{Devices: []limiter.DeviceLimit{{UUID: gpuA, MemoryLimitBytes: 1}}}))
	require.NoError(t, limiter.CreateUsage(limiter.UsagePath(dir), []string{gpuA}))
	return dir
}

// line returns a line of /proc/locks for a lock on a file.
func line(t *testing.T, kind string, pid int, path, bytes string) string {
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return fmt.Sprintf("1: %s ADVISORY WRITE %d %02x:%02x:%d %s\n", kind, pid, unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino, bytes)
}

// locks writes /proc/locks.
func (p *tampered) locks(lines ...string) {
	require.NoError(p.t, os.WriteFile(filepath.Join(p.proc, "locks"), []byte(strings.Join(lines, "")), 0o644))
}

// process adds a process of a container with a file open, and its locks.
func (p *tampered) process(pid int, container, file string, locks ...string) {
	dir := filepath.Join(p.proc, strconv.Itoa(pid))
	for _, sub := range []string{"fd", "fdinfo"} {
		require.NoError(p.t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (p%d) S 0 %s500 0\n", pid, pid, strings.Repeat("0 ", 17)), 0o644))
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/"+container+"\n"), 0o644))
	require.NoError(p.t, os.Symlink(file, filepath.Join(dir, "fd/7")))
	text := "pos:\t0\nflags:\t0100000\n"
	for _, l := range locks {
		text += "lock:\t" + l
	}
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "fdinfo/7"), []byte(text), 0o644))
}

// find returns the violations.
func (p *tampered) find(locked ...limiter.Lock) ([]Finding, error) {
	err := p.i.tampering(context.Background(), p.claims, func(c *Claim) ([]limiter.Lock, error) {
		c.Tampering = Tampering{}
		if c.ID == idA {
			return locked, nil
		}
		return nil, nil
	})
	return Find(Snapshot{Claims: p.claims}), err
}

func pids(f Finding) (all []int) {
	for _, o := range f.Offenders {
		all = append(all, o.PID)
	}
	return all
}

// /proc/locks has the PID of the process that took a lock, also after that process has ended and a process of another container,
// or of the host, has the PID. Those were reported and killed.
func TestLockAccusesNoProcessOfAnotherContainer(t *testing.T) {
	p := newTampered(t)
	limits := limiter.LimitsPath(p.claims[idA].Dir)
	other := limiter.LimitsPath(p.claims[idB].Dir)
	of := func(pid int) string { return line(t, "FLOCK", pid, limits, "0 EOF") }
	p.locks(of(30), of(40), of(50), of(60))
	p.process(30, idB, other)          // reuses the PID
	p.process(40, "init", other)       // of the host
	p.process(50, idB, limits, of(50)) // received the open file over a socket
	p.process(60, idA, limits)         // of the container, without a lock
	found, err := p.find(limiter.Lock{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, idA, found[0].Container.ID)
	assert.Empty(t, found[0].Offenders)
	assert.Equal(t, "a process of the container holds a lock on its limits file (/.gpuslice/limits)", found[0].Detail)

	p.process(70, idA, limits, of(30)) // a child of the process that has ended
	found, err = p.find(limiter.Lock{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, []int{70}, pids(found[0]))
	assert.Equal(t, `process 70 ("p70") holds a lock on its limits file (/.gpuslice/limits)`, found[0].Detail)

	// And once more before the kill.
	v := Violation{Finding: found[0]}
	require.NoError(t, p.i.Still(v, found[0].Offenders[0], p.claims))
	require.NoError(t, os.WriteFile(filepath.Join(p.proc, "70/fdinfo/7"), []byte("pos:\t0\n"), 0o644))
	assert.ErrorIs(t, p.i.Still(v, found[0].Offenders[0], p.claims), errProcessChanged)
}

// The limiter's own locks on the usage file are no violation.
func TestLimitersOwnLocksAreNoTampering(t *testing.T) {
	p := newTampered(t)
	usage := limiter.UsagePath(p.claims[idA].Dir)
	p.process(10, idA, usage, line(t, "OFDLCK", -1, usage, "1099511627777 1099511627777"))
	p.process(11, idA, usage, line(t, "OFDLCK", -1, usage, "1099511627777 EOF"))
	p.process(12, idA, usage, line(t, "FLOCK", 12, usage, "0 EOF"))
	p.process(13, idA, usage, line(t, "LEASE", 13, usage, "0 EOF"))
	found, err := p.find(limiter.Lock{Usage: true})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, []int{11, 12, 13}, pids(found[0]))
}

// A tenant can make /proc/locks as long as it wants, with locks of any file. Processes with locks on our files are found while there is
// time to read it.
func TestLongListOfLocksHidesNoLock(t *testing.T) {
	p := newTampered(t)
	limits := limiter.LimitsPath(p.claims[idA].Dir)
	p.process(10, idA, limits, line(t, "POSIX", 10, limits, "0 EOF"))
	p.locks(strings.Repeat("1: POSIX ADVISORY READ 99 00:01:1 0 EOF\n", 7000), line(t, "POSIX", 10, limits, "0 EOF"))
	found, err := p.find(limiter.Lock{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, []int{10}, pids(found[0]))

	late, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = p.i.proc.locks(late, nil)
	assert.ErrorIs(t, err, errLockList)
}

// With very many locks on a limits file, or very many processes that hold one, the search ends and names some.
func TestManyLocksAndManyHoldersAreBounded(t *testing.T) {
	p := newTampered(t)
	limits := limiter.LimitsPath(p.claims[idA].Dir)
	var lines []string
	for n := range mostFileLocks {
		lines = append(lines, line(t, "POSIX", 10+n%2, limits, fmt.Sprintf("%d %d", 2*n, 2*n)))
	}
	p.locks(lines...)
	for n := range 3 * mostHolders {
		p.process(10+n, idA, limits, lines...)
	}
	found, err := p.find(limiter.Lock{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Len(t, found[0].Offenders, mostHolders)
	assert.Equal(t, []int{10, 11, 12}, pids(found[0])[:3])
	p.locks(append(lines, lines[0])...)
	found, err = p.find(limiter.Lock{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Empty(t, found[0].Offenders, "the fdinfo of such a file is not read")
}
