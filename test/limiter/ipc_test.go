//go:build root

package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

const ipcLimit = 100 * miB

// ipcPeer is a process that shares memory by legacy IPC.
type ipcPeer struct {
	*talker
	t testing.TB
}

func (c *container) peer(t testing.TB) ipcPeer { t.Helper(); return c.peerOn(t, 0) }

func (c *container) peerOn(t testing.TB, device int) ipcPeer {
	t.Helper()
	p := ipcPeer{talk(t, c.command(filepath.Join(bin, "probe"), "init", "ctx", strconv.Itoa(device), "listen")), t}
	require.Equal(t, "init 0", p.hear(t))
	require.Equal(t, "ctx 0", p.hear(t))
	return p
}

// does gives the answers to a script; of the last one, without its first word.
func (p ipcPeer) does(script string, args ...any) string {
	p.t.Helper()
	script = fmt.Sprintf(script, args...)
	p.tell(p.t.(*testing.T), script)
	answer := p.hear(p.t)
	word, rest, _ := strings.Cut(answer, " ")
	require.Equal(p.t, strings.Fields(script)[0], word)
	return rest
}

// handle gets the handle of the n-th pointer.
func (p ipcPeer) handle(n int) string {
	p.t.Helper()
	answer := p.does("ipcget %d 0", n)
	require.True(p.t, strings.HasPrefix(answer, "0 "), answer)
	return answer[2:]
}

func (p ipcPeer) alloc(mib int) string { p.t.Helper(); return p.does("alloc %d", mib*miB) }

// free is what is left in MiB, as the process sees it.
func (p ipcPeer) free() (mib int) {
	p.t.Helper()
	_, err := fmt.Sscanf(p.does("info"), "0 free %d total 104857600", &mib)
	require.NoError(p.t, err)
	return mib / miB
}

func (p ipcPeer) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
	p.cmd.Wait()
}

// exactly: a process gets what is left, and not a byte more.
func (p ipcPeer) exactly(mib int, free string) {
	p.t.Helper()
	require.Equal(p.t, "2", p.does("alloc %d", mib*miB+1))
	require.Equal(p.t, "0", p.alloc(mib))
	require.Equal(p.t, "0", p.does(free))
}

// What others have open of memory stays charged when its maker frees it, ends or is killed, until the last of them has
// closed it, has ended or is killed. The simulated GPU keeps it as long.
func TestOpenIPCMemoryStaysCharged(t *testing.T) {
	leave := map[string]func(p ipcPeer){
		"freed":           func(p ipcPeer) { require.Equal(t, "0", p.does("free 0")) },
		"freed in stream": func(p ipcPeer) { require.Equal(t, "0", p.does("freeasync 0")) },
		"context ended":   func(p ipcPeer) { require.Equal(t, "0", p.does("reset 0")) },
		"maker ended":     func(p ipcPeer) { p.in.Close(); p.cmd.Wait() },
		"maker killed":    func(p ipcPeer) { p.kill() },
	}
	letGo := map[string]func(p ipcPeer){
		"closed":        func(p ipcPeer) { require.Equal(t, "0", p.does("ipcclose 0")) },
		"context ended": func(p ipcPeer) { require.Equal(t, "0", p.does("reset 0")) },
		"ended":         func(p ipcPeer) { p.in.Close(); p.cmd.Wait() },
		"killed":        func(p ipcPeer) { p.kill() },
	}
	for how, leaves := range leave {
		for end, lets := range letGo {
			t.Run(how+", "+end, func(t *testing.T) {
				t.Parallel()
				c := oneGPU(t, ipcLimit)
				maker, first, second, other := c.peer(t), c.peer(t), c.peer(t), c.peer(t)
				require.Equal(t, "0", maker.alloc(60))
				h := maker.handle(0)
				require.Equal(t, "0", first.does("ipcopen %s", h))
				require.Equal(t, "0", first.does("ipcopen %s", h))
				require.Equal(t, "0", second.does("ipcopen %s", h))
				require.Equal(t, 40, other.free(), "it counts once")
				require.Equal(t, "0", second.does("ipcclose 0"))
				leaves(maker)
				other.exactly(40, "free 0")
				_, now := c.peak(t)
				require.EqualValues(t, 60*miB, now, "the GPU keeps it")
				require.Equal(t, 40, other.free())
				u, err := limiter.ReadUsage(c.usage())
				require.NoError(t, err)
				require.EqualValues(t, 60*miB, u.Devices[0].UsedBytes)
				require.EqualValues(t, 60*miB, u.Devices[0].HeldBytes, "no process' figure has it")
				lines, _ := c.probe(t, "nvml 0")
				require.Equal(t, "nvml 0 total 104857600 free 41943040 used 62914560", lines[0])
				if end == "closed" {
					lets(first)
					other.exactly(40, "free 1")
				}
				lets(first)
				other.exactly(100, map[bool]string{false: "free 1", true: "free 2"}[end == "closed"])
				peak, now := c.peak(t)
				require.LessOrEqual(t, peak, uint64(ipcLimit))
				require.Zero(t, now)
				require.Zero(t, c.used(t))
			})
		}
	}
}

// Memory that no process has open is free when its maker frees it: sharing it over and over takes nothing.
func TestIPCMemoryIsFreeWhenClosed(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	maker, opener := c.peer(t), c.peer(t)
	for i := range 600 { // more often than there are records
		require.Equal(t, "0", maker.alloc(70), i)
		h := maker.handle(i)
		require.Equal(t, "0", opener.does("ipcopen %s", h), i)
		if i%2 == 0 {
			require.Equal(t, "0", opener.does("ipcclose %d", i))
			require.Equal(t, "0", maker.does("free %d", i))
		} else {
			require.Equal(t, "0", maker.does("free %d", i))
			require.Equal(t, "2", maker.alloc(70))
			require.Equal(t, "0", opener.does("ipcclose %d", i))
		}
	}
	require.Equal(t, 100, maker.free())
	require.Zero(t, c.used(t))
}

// A handle of an address in the middle is one of the allocation; the same memory counts once by both.
func TestIPCHandleOfAnAddressInside(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	maker, opener := c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	inside := maker.does("ipcget 0 %d", miB)[2:]
	require.Equal(t, "0", opener.does("ipcopen %s", inside))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	require.Equal(t, 40, opener.free())
	require.Equal(t, "0", maker.does("free 0"))
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 40, opener.free())
	require.Equal(t, "0", opener.does("ipcclose 1"))
	require.Equal(t, 100, opener.free())
}

// A process that has memory open opens it again after its maker has left it; no other process can, and what it tried is not charged.
func TestIPCMemoryIsOpenedAgain(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	maker, opener, late := c.peer(t), c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	h := maker.handle(0)
	require.Equal(t, "201", maker.does("ipcopen %s", h), "its own")
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, "0", maker.does("free 0"))
	require.Equal(t, "1", late.does("ipcopen %s", h))
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 40, late.free())
	require.Equal(t, "0", opener.does("ipcclose 1"))
	require.Equal(t, 100, late.free())
	require.Equal(t, "1", opener.does("ipcclose 1"), "once more")
	require.Equal(t, 100, late.free())
}

// A driver can give a handle again after its memory was freed. It is then that of the new memory, also where the old is open still.
func TestIPCHandleThatIsUsedAgain(t *testing.T) {
	const keys, size = 1236992, 8 // src/LAYOUT.md
	c := oneGPU(t, ipcLimit)
	maker, opener := c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(30))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	require.Equal(t, "0", maker.does("free 0"))
	require.Equal(t, "0", maker.alloc(20))
	h := maker.handle(1)
	file, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	key := make([]byte, size)
	_, err = file.ReadAt(key, keys+size)
	require.NoError(t, err)
	_, err = file.WriteAt(key, keys)
	require.NoError(t, err)
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, "0", maker.does("free 1"))
	require.Equal(t, 100-30-20, opener.free())
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 100-20, opener.free())
	require.Equal(t, "0", opener.does("ipcclose 1"))
	require.Equal(t, 100, opener.free())
}

// Another container is charged for what it opens, in full, and once.
func TestIPCMemoryOfAnotherContainer(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	other := newContainer(t, c.state, gpu{gpuIDs[0], ipcLimit})
	maker, opener := c.peer(t), other.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	h := maker.handle(0)
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, 40, opener.free())
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, 40, opener.free())
	second := other.peer(t)
	require.Equal(t, "2", second.does("ipcopen %s", h), "it has no room for it")
	require.Equal(t, 40, second.free())
	require.Equal(t, "0", maker.does("free 0"))
	require.Equal(t, 100, maker.free())
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 40, opener.free(), "it is open once more")
	require.Equal(t, "0", opener.does("ipcclose 1"))
	require.Equal(t, 100, opener.free())
	require.Equal(t, "0", opener.alloc(100))
}

// Of more allocations than there are records, the processes that open them are charged.
func TestIPCMemoryWithoutARecord(t *testing.T) {
	const records = 512
	c := newContainer(t, newMachine(t, "H200:context_mib=0"+unpaged), gpu{gpuIDs[0], ipcLimit})
	maker, opener := c.peer(t), c.peer(t)
	require.Equal(t, "0 left 0", maker.does("ipcmany %d %d", records, 64*kiB)) // 32 MiB
	require.Equal(t, "0", maker.alloc(20))
	h := maker.handle(records)
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, 100-32-2*20, opener.free())
	require.Equal(t, "0", maker.does("free %d", records))
	require.Equal(t, 100-32-20, opener.free())
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 100-32, opener.free())
	maker.kill()
	require.Equal(t, "0", opener.alloc(100))
}

// The records of a maker that was killed are free for others.
func TestIPCRecordsOfTheDead(t *testing.T) {
	c := newContainer(t, newMachine(t, "H200:context_mib=0"+unpaged), gpu{gpuIDs[0], ipcLimit})
	dead, maker, opener := c.peer(t), c.peer(t), c.peer(t)
	require.Equal(t, "0 left 0", dead.does("ipcmany 512 %d", 64*kiB))
	require.Equal(t, "0", maker.alloc(60)) // before the kill: an allocation can find the dead
	dead.kill()
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	require.Equal(t, 40, opener.free())
}

// Memory that a process opened before it had a record, and once more since: the charge ends on the GPU where it began.
func TestIPCMemoryGetsARecordWhileItIsOpen(t *testing.T) {
	const records = 512
	c := newContainer(t, newMachine(t, "H200:context_mib=0"+unpaged, "H200:context_mib=0"+unpaged), gpu{gpuIDs[0], ipcLimit}, gpu{gpuIDs[1], ipcLimit})
	filler, maker, opener := c.peer(t), c.peerOn(t, 1), c.peerOn(t, 1)
	require.Equal(t, "0 left 0", filler.does("ipcmany %d %d", records, 64*kiB)) // 32 MiB
	require.Equal(t, "0", maker.alloc(20))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	require.Equal(t, 100-2*20, opener.free())
	require.Equal(t, "0", filler.does("free 0"))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	used := func(first, second uint64) {
		t.Helper()
		u, err := limiter.ReadUsage(c.usage())
		require.NoError(t, err)
		require.Equal(t, []uint64{first, second}, []uint64{u.Devices[0].UsedBytes, u.Devices[1].UsedBytes})
	}
	used((records-1)*64*kiB, 2*20*miB)
	require.Equal(t, "0", opener.does("ipcclose 0"))
	used((records-1)*64*kiB, 2*20*miB)
	require.Equal(t, "0", opener.does("ipcclose 1"))
	used((records-1)*64*kiB, 20*miB)
	require.Equal(t, "0", maker.does("free 0"))
	used((records-1)*64*kiB, 0)
}

// The GPU keeps the whole page of a small piece.
func TestSmallIPCMemoryIsChargedByPages(t *testing.T) {
	c := oneGPU(t, ipcLimit).inPages(t)
	maker, opener := c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.does("alloc 1000"))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	require.Equal(t, 98, opener.free())
	require.Equal(t, "0", maker.does("free 0"))
	require.Equal(t, 98, opener.free())
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 100, opener.free())
}

// Small pieces share a page. Those that are left count a page each: never less than the pages that the GPU keeps, wherever the pieces
// are, and nothing any more when all are closed.
func TestSmallIPCMemoryOfOnePage(t *testing.T) {
	const pieces = 8 // of 256 KiB: one page
	c := oneGPU(t, ipcLimit).inPages(t)
	maker, opener := c.peer(t), c.peer(t)
	for i := range pieces {
		require.Equal(t, "0", maker.does("alloc %d", 256*kiB))
		require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(i)))
		require.Equal(t, 98, opener.free(), "one page, and what is shared counts once")
	}
	for i := range pieces - 1 {
		require.Equal(t, "0", maker.does("free %d", i))
		require.Equal(t, 100-2*(1+i+1), opener.free(), "the page of those that are not freed, and one for each that is")
	}
	require.Equal(t, "0", maker.does("free %d", pieces-1))
	require.Equal(t, 100-2*pieces, opener.free())
	require.Equal(t, "0", maker.does("alloc %d", 256*kiB))
	require.Equal(t, 100-2*pieces-2, opener.free(), "it can be in a page of its own")
	require.Equal(t, "0", maker.does("free %d", pieces))
	for i := range pieces {
		require.Equal(t, "0", opener.does("ipcclose %d", i))
		require.Equal(t, 100-2*(pieces-i-1), opener.free())
	}
}

// A process without a path to the usage file, and without a free descriptor, gets what the dead had open.
func TestIPCMemoryOfTheDeadWithoutAPath(t *testing.T) {
	for _, how := range []string{"chroot", "fillfds"} {
		t.Run(how, func(t *testing.T) {
			c := oneGPU(t, ipcLimit)
			maker, opener, needy := c.peer(t), c.peer(t), c.peer(t)
			require.Equal(t, "0", maker.alloc(60))
			require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
			maker.kill()
			require.Equal(t, "0", needy.does(how))
			require.Equal(t, "2", needy.alloc(50))
			opener.kill()
			require.Equal(t, "0", needy.alloc(100))
		})
	}
}

// A process that is stopped keeps what it has open, and blocks no other.
func TestIPCMemoryOfAStoppedProcess(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	maker, opener, other := c.peer(t), c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	require.NoError(t, opener.cmd.Process.Signal(syscall.SIGSTOP))
	require.Equal(t, "0", maker.does("free 0"))
	other.exactly(40, "free 0")
	assert.Equal(t, 40, maker.free())
	opener.kill()
	require.Equal(t, "0", other.alloc(100))
}

// NVML's view counts what the dead have left, also before a process has looked for them.
func TestNVMLShowsIPCMemoryOfTheDead(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	maker, opener := c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	used := func(mib int) {
		t.Helper()
		lines, _ := c.probe(t, "nvml 0")
		require.Equal(t, fmt.Sprintf("nvml 0 total 104857600 free %d used %d", (100-mib)*miB, mib*miB), lines[0])
	}
	used(60)
	maker.kill()
	used(60)
	opener.kill()
	used(0)
}

// The driver refuses a call: nothing of it counts, and what it refuses to give back stays charged.
func TestRefusalsOfIPC(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	maker, opener := c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	h := maker.handle(0)
	fail(t, c, "cuIpcOpenMemHandle_v2")
	require.Equal(t, "2", opener.does("ipcopen %s", h))
	fail(t, c, "cuMemFree_v2")
	require.Equal(t, "2", maker.does("free 0"))
	require.Equal(t, "0", opener.does("ipcopen %s", h))
	require.Equal(t, "0", maker.does("free 0"))
	fail(t, c, "cuIpcCloseMemHandle")
	require.Equal(t, "2", opener.does("ipcclose 0"))
	require.Equal(t, 40, maker.free())
	require.Equal(t, "0", opener.does("ipcclose 0"))
	require.Equal(t, 100, maker.free())
	fail(t, c, "cuIpcGetMemHandle")
	require.Equal(t, "0", maker.alloc(60))
	require.Equal(t, "2", strings.Fields(maker.does("ipcget 1 0"))[0])
	fail(t, c, "cuMemGetAddressRange_v2") // the record can't be made, and the opener is charged
	h = maker.handle(1)
	require.Equal(t, "2", opener.does("ipcopen %s", h))
	require.Equal(t, 40, maker.free())
}

// A maker that is checkpointed leaves what it shares to those that have it open: it stays charged, also when the maker is killed, and
// the rest is free. It is restored if all of it fits.
func TestIPCMemoryOfACheckpointedMaker(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			c := oneGPU(t, ipcLimit)
			c.simctl(t, "set", "driver", "branch=615")
			maker, opener, other := c.peer(t), c.peer(t), c.peer(t)
			require.Equal(t, "0", maker.alloc(50))
			require.Equal(t, "0", maker.alloc(20))
			require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
			pid := maker.cmd.Process.Pid
			ask(t, c, fmt.Sprintf("init lock %[1]d checkpoint %[1]d", pid), "init 0", "lock 0", "checkpoint 0")
			_, now := c.peak(t)
			require.EqualValues(t, 50*miB, now, "the GPU keeps it")
			require.Equal(t, 50, other.free())
			u, err := limiter.ReadUsage(c.usage())
			require.NoError(t, err)
			require.EqualValues(t, 50*miB, u.Devices[0].UsedBytes)
			require.EqualValues(t, 50*miB, u.Devices[0].HeldBytes, "no process' figure has it")
			lines, _ := c.probe(t, "nvml 0")
			require.Equal(t, "nvml 0 total 104857600 free 52428800 used 52428800", lines[0])
			other.exactly(50, "free 0")
			if killed {
				maker.kill()
				other.exactly(50, "free 1")
				require.Equal(t, "0", opener.does("ipcclose 0"))
				other.exactly(100, "free 2")
				return
			}
			require.Equal(t, "0", other.alloc(31))
			restore := fmt.Sprintf("init restore %[1]d unlock %[1]d", pid)
			ask(t, c, restore, "init 0", "restore 2", "unlock 401")
			require.Equal(t, "0", other.does("free 1"))
			ask(t, c, restore, "init 0", "restore 0", "unlock 0")
			other.exactly(30, "free 2")
			require.Equal(t, "0", maker.does("free 0"))
			other.exactly(30, "free 3")
			require.Equal(t, "0", opener.does("ipcclose 0"))
			other.exactly(80, "free 4")
			peak, _ := c.peak(t)
			require.LessOrEqual(t, peak, uint64(ipcLimit))
		})
	}
}

// A process that is checkpointed has memory open: it stays charged, also when its maker has left it.
func TestIPCMemoryOfACheckpointedOpener(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	c.simctl(t, "set", "driver", "branch=615")
	maker, opener, other := c.peer(t), c.peer(t), c.peer(t)
	require.Equal(t, "0", maker.alloc(50))
	require.Equal(t, "0", opener.does("ipcopen %s", maker.handle(0)))
	pid := opener.cmd.Process.Pid
	ask(t, c, fmt.Sprintf("init lock %[1]d checkpoint %[1]d", pid), "init 0", "lock 0", "checkpoint 0")
	require.Equal(t, 50, other.free())
	require.Equal(t, "0", maker.does("free 0"))
	other.exactly(50, "free 0")
	ask(t, c, fmt.Sprintf("init restore %[1]d unlock %[1]d", pid), "init 0", "restore 0", "unlock 0")
	other.exactly(50, "free 1")
	require.Equal(t, "0", opener.does("ipcclose 0"))
	other.exactly(100, "free 2")
}

// Many processes share memory and free it, all at once, and some are killed: the GPU never has more than the limit, and all of it is
// free at the end.
func TestIPCMemoryAtRandom(t *testing.T) {
	const processes, steps = 6, 40
	c := oneGPU(t, ipcLimit)
	var mu sync.Mutex
	var handles []string
	var wg sync.WaitGroup
	for seed := range uint64(processes) {
		p := c.peer(t)
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			for pointers := 0; ; {
				for range steps {
					var answer string
					one := random.IntN(pointers + 1)
					switch random.IntN(8) {
					case 0, 1, 2:
						answer = p.does("alloc %d", 2*miB*(1+random.IntN(12)))
						if answer == "0" {
							pointers++
							h := p.handle(pointers - 1)
							mu.Lock()
							handles = append(handles, h)
							mu.Unlock()
						}
					case 3, 4, 5:
						mu.Lock()
						h := ""
						if len(handles) > 0 {
							h = handles[max(len(handles)-1-random.IntN(8), 0)]
						}
						mu.Unlock()
						if h != "" && p.does("ipcopen %s", h) == "0" {
							pointers++
						}
					case 6:
						p.does("free %d", one)
					case 7:
						p.does("ipcclose %d", one)
					}
				}
				if random.IntN(5) == 0 {
					break
				}
				p.kill()
				p, pointers = c.peer(t), 0
			}
			p.kill()
		})
	}
	wg.Wait()
	peak, now := c.peak(t)
	require.LessOrEqual(t, peak, uint64(ipcLimit))
	require.Greater(t, peak, uint64(ipcLimit)*8/10, "the limit was never approached: the test tests nothing")
	require.Zero(t, now)
	last := c.peer(t)
	require.Equal(t, "0", last.alloc(100))
	require.Equal(t, "0", last.does("free 0"))
	require.Zero(t, c.used(t))
}

// Whatever others do meanwhile, what counts is found by its bit, and a bit of what does not count any more goes.
func TestLeftIPCMemoryIsFound(t *testing.T) {
	program, sources := filepath.Join(t.TempDir(), "left"), filepath.Join(root, "limiter/src")
	require.NoError(t, compile(program, "testdata/left.c", "-pthread", "-iquote", sources, filepath.Join(sources, "ipcleft.c"), filepath.Join(sources, "ipcrecord.c"),
		filepath.Join(sources, "filepages.c")))
	out, err := exec.Command(program).Output()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "at most one for each\n", string(out))
}
