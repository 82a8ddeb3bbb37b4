//go:build root

// Package limiter_test runs the preload library on the simulated driver: what it
// lets through, what it hides, and what it does when processes die. The tests
// need a C compiler and make; they build what they run.
package limiter_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	kiB = 1 << 10
	miB = 1 << 20
	giB = 1 << 30
)

var (
	root   string // of the repository
	built  string // library and simulated driver
	bin    string // the programs of testdata
	gpuIDs = []string{
		"GPU-00000001-5151-4000-8000-000000000001",
		"GPU-00000002-5151-4000-8000-000000000002",
		"GPU-00000003-5151-4000-8000-000000000003",
	}
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == goWaits {
		waitAsGoProgram()
	}
	code, err := withBuild(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if gone := knownButGone(); code == 0 && all() && len(gone) > 0 {
		fmt.Fprintln(os.Stderr, "no tests, but in the table of known defects:", gone)
		code = 1
	}
	os.Exit(code)
}

// all: every test was asked for.
func all() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

func withBuild(run func() int) (int, error) {
	if _, err := os.Stat("/.gpuslice"); err == nil {
		return 0, fmt.Errorf("/.gpuslice exists here, and so the library would not look at the tests' files")
	}
	var err error
	if root, err = filepath.Abs("../.."); err != nil {
		return 0, err
	}
	built = filepath.Join(root, "build")
	if bin, err = os.MkdirTemp("", "limiter-test-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(bin)
	if err := buildNative(""); err != nil {
		return 0, err
	}
	for _, name := range []string{"probe", "churn", "primary", "pools"} {
		if err := compile(filepath.Join(bin, name), "testdata/"+name+".c", "-pthread"); err != nil {
			return 0, err
		}
	}
	return run(), nil
}

// buildNative builds the library, the simulated driver and the programs that use it.
func buildNative(sanitizer string) error {
	return harness.Make(sanitizer, "", "limiter/src", "limiter/front", "testdata/simdriver", "testdata/workloads")
}

// compile builds one C file of the tests; warnings of the old-style calls in it are off.
func compile(out, source string, flags ...string) error {
	args := append([]string{"-w", "-O1", "-g", "-o", out, source}, flags...)
	if text, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("cc %s: %w\n%s", source, err, text)
	}
	return nil
}

// GPU is a simulated GPU that a container is granted some memory of.
type gpu struct {
	uuid  string
	limit uint64
}

// container is the two files of one container, on a simulated machine.
type container struct {
	dir     string
	state   string
	group   string
	library string
	sim     string
	front   string // in mode library: the directory of the fronts
	env     []string
	node    *node // nil: it takes no turns
	turnID  uint64
}

// newMachine makes the state of a simulated machine with these GPUs.
func newMachine(tb testing.TB, gpus ...string) string {
	tb.Helper()
	state := filepath.Join(tb.TempDir(), "state")
	args := []string{"--state", state, "init"}
	for _, c := range gpus {
		args = append(args, "--gpu", c)
	}
	out, err := exec.Command(filepath.Join(built, "sim", "simctl"), args...).CombinedOutput()
	require.NoError(tb, err, "%s", out)
	return state
}

// newContainer writes the two files as the host does where it does not know what
// a context takes.
func newContainer(tb testing.TB, state string, gpus ...gpu) *container {
	tb.Helper()
	return newContainerKnowing(tb, state, 0, gpus...)
}

// newContainerKnowing is a container with a known size of a context on its GPUs.
func newContainerKnowing(tb testing.TB, state string, contextBytes uint64, gpus ...gpu) *container {
	tb.Helper()
	c := &container{
		dir: tb.TempDir(), state: state, group: "7",
		library: filepath.Join(built, "lib", "libvgpu.so"),
		sim:     filepath.Join(built, "sim"),
	}
	var limits limiter.Limits
	for _, one := range gpus {
		limits.Devices = append(limits.Devices, limiter.DeviceLimit{
			UUID: one.uuid, MemoryLimitBytes: one.limit, ContextBytes: contextBytes,
		})
	}
	require.NoError(tb, limiter.WriteLimits(c.limits(), limits))
	require.NoError(tb, limiter.CreateUsage(c.usage(), limits.UUIDs()))
	return c
}

// inPages is the container on a host that knows by which pages its GPUs' memory is taken.
func (c *container) inPages(tb testing.TB) *container {
	tb.Helper()
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(tb, err)
	for i := range limits.Devices {
		limits.Devices[i].Pages = limiter.Pages{KiB: 2048, SmallKiB: 1024}
	}
	require.NoError(tb, limiter.UpdateLimits(c.dir, limits))
	return c
}

// as is the container on a host that knows its machine's GPU, which was made with these keys.
func (c *container) as(tb testing.TB, keys string) *container {
	tb.Helper()
	if keys == unpaged {
		return c
	}
	return c.inPages(tb)
}

func (c *container) limits() string { return limiter.LimitsPath(c.dir) }
func (c *container) usage() string  { return limiter.UsagePath(c.dir) }

// bare is the same machine without the library.
func (c *container) bare() *container {
	b := *c
	b.library, b.front = "", ""
	return &b
}

func (c *container) with(env ...string) *container {
	w := *c
	w.env = append(append([]string{}, c.env...), env...)
	return &w
}

func (c *container) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(),
		"SIMGPU_STATE="+c.state, "SIMGPU_GROUP="+c.group, "LD_LIBRARY_PATH="+c.sim,
		"VGPU_LIMITS_PATH="+c.limits(), "VGPU_USAGE_PATH="+c.usage(), "VGPU_TURNS_PATH="+c.turns())
	if c.front != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+c.front)
	}
	if c.library != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+c.library)
	}
	cmd.Env = append(cmd.Env, c.env...)
	return cmd
}

// probe runs testdata/probe.c with a script of words and returns its lines and
// what came on stderr.
func (c *container) probe(tb testing.TB, script string) (lines []string, stderr string) {
	tb.Helper()
	return c.run(tb, filepath.Join(bin, "probe"), strings.Fields(script)...)
}

func (c *container) run(tb testing.TB, program string, args ...string) (lines []string, stderr string) {
	tb.Helper()
	cmd := c.command(program, args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	require.NoError(tb, cmd.Start())
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }) // nothing here takes so long: it hangs
	defer timer.Stop()
	cmd.Wait() // how it ends is the script's business
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n"), complaint.String()
}

func (c *container) used(tb testing.TB) uint64 {
	tb.Helper()
	u, err := limiter.ReadUsage(c.usage())
	require.NoError(tb, err)
	var sum uint64
	for _, d := range u.Devices {
		sum += d.UsedBytes
	}
	return sum
}

// simStatus is what the simulated driver knows to be true.
type simStatus struct {
	Clients []struct {
		GPUs []struct {
			BusyNs uint64 `json:"busy_ns"`
		}
	}
	GPUs []struct {
		ClockNs uint64 `json:"clock_ns"`
		BusyNs  uint64 `json:"busy_ns"`
	}
	Groups []struct {
		ID   uint64
		GPUs []struct {
			Index          int
			ContextBytes   uint64 `json:"context_bytes"`
			DataBytes      uint64 `json:"data_bytes"`
			PeakDataBytes  uint64 `json:"peak_data_bytes"`
			PeakTotalBytes uint64 `json:"peak_total_bytes"`
			BusyNs         uint64 `json:"busy_ns"`
		}
	}
}

func (c *container) truth(tb testing.TB) simStatus {
	tb.Helper()
	out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", c.state, "status", "-o", "json").Output()
	require.NoError(tb, err)
	var s simStatus
	require.NoError(tb, json.Unmarshal(out, &s))
	return s
}

// peak is the most data bytes that the container ever had on GPU 0, exactly.
func (c *container) peak(tb testing.TB) (peak, now uint64) {
	tb.Helper()
	for _, g := range c.truth(tb).Groups {
		if fmt.Sprint(g.ID) == c.group {
			for _, one := range g.GPUs {
				if one.Index == 0 {
					return one.PeakDataBytes, one.DataBytes
				}
			}
		}
	}
	return 0, 0
}

// peakTotal is the most that the container ever had on GPU 0, contexts and data
// together, exactly.
func (c *container) peakTotal(tb testing.TB) (peak, now uint64) {
	tb.Helper()
	for _, g := range c.truth(tb).Groups {
		if fmt.Sprint(g.ID) == c.group {
			for _, one := range g.GPUs {
				if one.Index == 0 {
					return one.PeakTotalBytes, one.ContextBytes + one.DataBytes
				}
			}
		}
	}
	return 0, 0
}

func eventually(tb testing.TB, within time.Duration, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(tb, "not within "+within.String()+": "+what)
		}
	}
}

// fail makes the next call of a symbol return OUT_OF_MEMORY.
func fail(tb testing.TB, c *container, symbol string) {
	tb.Helper()
	out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", c.state, "fail", symbol, "1").CombinedOutput()
	require.NoError(tb, err, "%s", out)
}

// simSymbols are the functions of the simulated driver.
func simSymbols(tb testing.TB) (names []string) {
	tb.Helper()
	out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "symbols").Output()
	require.NoError(tb, err)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		names = append(names, strings.Fields(line)[0])
	}
	return names
}
