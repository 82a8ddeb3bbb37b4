//go:build root

package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/install"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/loopback"
)

const (
	mib = 1 << 20
	// contextMiB is what a CUDA context takes of an H200.
	contextMiB = 520
	patience   = time.Minute
)

type machine struct {
	*harness.Machine
	t *testing.T
}

func newMachine(t *testing.T, gpus ...string) machine {
	if len(gpus) == 0 {
		gpus = []string{"H200"}
	}
	m, err := harness.NewMachine(context.Background(), gpus...)
	t.Cleanup(func() {
		if m != nil {
			assert.NoError(t, m.Close())
		}
	})
	require.NoError(t, err)
	require.NoError(t, os.Chmod(m.Dir, 0o755)) // the driver of a host is for all users
	require.NoError(t, m.WriteRuntimeConfig(""))
	return machine{m, t}
}

// workload is the path of a CUDA program on this machine.
func workload(t *testing.T, name string) string {
	path, err := harness.Artefact("workloads", name)
	require.NoError(t, err)
	return path
}

// command is `gpuslice run` with the arguments.
func (m machine) command(args ...string) *exec.Cmd {
	program, err := harness.Artefact("bin", "gpuslice")
	require.NoError(m.t, err)
	driver, err := harness.Artefact("sim", "libcuda.so.1")
	require.NoError(m.t, err)
	config := filepath.Join(m.Dir, "runtime.yaml")
	c := exec.Command(program, append([]string{"run", "--config", config}, args...)...)
	c.Env = append(os.Environ(), append(m.RuntimeEnv(), "LD_LIBRARY_PATH="+filepath.Dir(driver))...)
	return c
}

// run runs a command to its end.
func (m machine) run(args ...string) (stdout, stderr string, status int) {
	m.t.Helper()
	var out, errs bytes.Buffer
	c := m.command(args...)
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		require.ErrorAs(m.t, err, new(*exec.ExitError))
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// start starts a command, and waits until it has printed a line.
func (m machine) start(until string, args ...string) (c *exec.Cmd, output func() string) {
	m.t.Helper()
	log := filepath.Join(m.t.TempDir(), "log")
	f, err := os.Create(log)
	require.NoError(m.t, err)
	defer f.Close()
	c = m.command(args...)
	c.Stdout, c.Stderr = f, f
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal of the tests is not its own
	require.NoError(m.t, c.Start())
	m.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	output = func() string {
		data, err := os.ReadFile(log)
		require.NoError(m.t, err)
		return string(data)
	}
	require.NoError(m.t, harness.Until(context.Background(), patience, func(context.Context) error {
		if text := output(); !strings.Contains(text, until) {
			return fmt.Errorf("%q is not in %q", until, text)
		}
		return nil
	}))
	return c, output
}

// ended waits for a command that was started, and returns its exit status.
func (m machine) ended(c *exec.Cmd) int {
	m.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case <-done:
		return c.ProcessState.ExitCode()
	case <-time.After(patience):
		_ = c.Process.Kill()
		<-done
		require.FailNow(m.t, "the command has not ended")
		return -1
	}
}

// reserved are the names of the ledger's claims, with their memory.
func (m machine) reserved() map[string]int64 {
	m.t.Helper()
	status, err := m.Status(context.Background())
	require.NoError(m.t, err)
	names := map[string]int64{}
	for _, c := range status.Containers {
		for _, s := range c.Shares {
			names[c.Container] += s.MemoryMiB
		}
	}
	return names
}

// free waits until nothing is reserved and no file of a claim is left. Each look runs a short command, which releases the shares of
// those that are gone.
func (m machine) free() {
	m.t.Helper()
	require.NoError(m.t, harness.Until(context.Background(), patience, func(context.Context) error {
		if _, stderr, status := m.run("--memory", "1GiB", "--", "true"); status != 0 {
			return errors.New(stderr)
		}
		if left := m.reserved(); len(left) > 0 {
			return fmt.Errorf("reserved: %v", left)
		}
		_, err := harness.ClaimMounts(m.StateDir())
		return err
	}))
	mounts, err := harness.ClaimMounts(m.StateDir())
	require.NoError(m.t, err)
	require.Equal(m.t, []string{m.StateDir()}, mounts)
}

func TestLimitsHoldAlsoInChildren(t *testing.T) {
	m := newMachine(t)
	out, stderr, status := m.run("--memory", "4GiB", "--cores", "30", "--", workload(t, "meminfo"))
	require.Zero(t, status, stderr)
	require.Equal(t, strconv.Itoa(4096*mib), harness.KeyValues(out)["device.0.total_bytes"])
	require.Empty(t, m.reserved())

	// A child without the variables, and a child of it.
	out, stderr, status = m.run("--memory", "4GiB", "--", "/bin/sh", "-c", fmt.Sprintf(
		`exec env -i SIMGPU_STATE="$SIMGPU_STATE" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" /bin/sh -c '%s --chunk-mib=64; exit 0'`, workload(t, "alloc")))
	require.Zero(t, status, stderr)
	values := harness.KeyValues(out)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", values["result"], out+stderr)
	got, err := strconv.ParseInt(values["allocated_bytes"], 10, 64)
	require.NoError(t, err)
	require.LessOrEqual(t, got, int64(4096-contextMiB)*mib)
	require.Greater(t, got, int64(4096-contextMiB-64)*mib)
	m.free()
}

func TestStatusesAndSignals(t *testing.T) {
	m := newMachine(t)
	plain := filepath.Join(m.Dir, "plain")
	require.NoError(t, os.WriteFile(plain, []byte("text"), 0o644))
	broken := filepath.Join(m.Dir, "broken")
	require.NoError(t, os.WriteFile(broken, []byte("text"), 0o755))
	share := []string{"--memory", "1GiB", "--"}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{append(share, "/bin/sh", "-c", "exit 7"), 7, ""},
		{append(share, "/bin/sh", "-c", "exit 2"), 2, ""},
		{append(share, "/bin/sh", "-c", "kill -9 $$"), 128 + 9, ""},
		{append(share, "no-such-program"), 127, "no-such-program"},
		{append(share, plain), 126, "permission denied"},
		{append(share, broken), 126, "exec format error"},
		{[]string{"--memory", "500GiB", "--", "true"}, 125, "has 143771 MiB and 100 % in total"},
		{[]string{"--memory", "8", "--", "true"}, 125, "--memory: "},
		{[]string{"--cores", "300", "--memory", "1GiB", "--", "true"}, 125, "--cores: "},
		{[]string{"--gpus", "many", "--memory", "1GiB", "--", "true"}, 125, "--gpus: "},
		{[]string{"--", "true"}, 125, "set --memory (8GiB, 25%)"},
		{[]string{"--slice", "none", "--", "true"}, 125, "--slice: "},
		{[]string{"--memory", "1GiB"}, 125, "an argument is missing: use gpuslice run"},
		{[]string{"--nothing", "true"}, 125, "--nothing"},
		{[]string{"--memory", "1GiB", "--name", "a b", "--", "true"}, 125, "--name"},
		{[]string{"--memory", "1GiB", "--user", "no-such-user", "--", "true"}, 125, "--user"},
		{append(append(append([]string{}, share...), m.command(share...).Args...), "true"), 125, "has a GPU share already"},
	} {
		_, stderr, status := m.run(c.args...)
		require.Equal(t, c.status, status, "%q: %s", c.args, stderr)
		require.Contains(t, stderr, c.says)
		require.Equal(t, c.says == "", stderr == "", "%q: %s", c.args, stderr)
		require.Empty(t, m.reserved(), "%q", c.args)
	}
	for _, sent := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
		if sent == syscall.SIGINT && signal.Ignored(sent) {
			continue // in the background: the command ignores it, too
		}
		c, output := m.start("ready", append(share, "/bin/sh", "-c",
			`trap 'echo got TERM; exit 3' TERM; trap 'echo got INT; exit 3' INT; trap 'echo got USR1; exit 3' USR1; echo ready; while :; do sleep 0.1; done`)...)
		require.NoError(t, c.Process.Signal(sent))
		require.Equal(t, 3, m.ended(c), output())
		require.Equal(t, 1, strings.Count(output(), "got "), output())
		require.Empty(t, m.reserved())
	}
	m.free()
}

// A signal that the caller ignores, as by nohup, is ignored in the command, too.
func TestIgnoredSignals(t *testing.T) {
	m := newMachine(t)
	more := filepath.Join(m.Dir, "more")
	run := m.command("--memory", "1GiB", "--", "/bin/sh", "-c", "echo ready; while ! test -e "+more+"; do sleep 0.1; done; exit 5")
	log, err := os.Create(filepath.Join(m.Dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	c := exec.Command("nohup", append([]string{"/bin/sh", "-c", `trap "" INT; exec "$@"`, "sh"}, run.Args...)...)
	c.Env, c.Stdout, c.Stderr, c.SysProcAttr = run.Env, log, log, &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	require.NoError(t, harness.Until(context.Background(), patience, func(context.Context) error {
		if text, err := os.ReadFile(log.Name()); err != nil || !strings.Contains(string(text), "ready") {
			return fmt.Errorf("not ready: %q, %w", text, err)
		}
		return nil
	}))
	for _, sent := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
		require.NoError(t, syscall.Kill(-c.Process.Pid, sent)) // as at a logout: to all of them
	}
	require.NoError(t, os.WriteFile(more, nil, 0o644))
	require.Equal(t, 5, m.ended(c))
	m.free()
}

// The command's exit status stays, if its share can't be released.
func TestReleaseFails(t *testing.T) {
	m := newMachine(t)
	away := m.StateDir() + "/lock"
	_, stderr, status := m.run("--memory", "1GiB", "--name", "kept", "--", "/bin/sh", "-c", "mv "+away+" "+away+".away && mkdir "+away+"; exit 3")
	require.Equal(t, 3, status, stderr)
	require.Contains(t, stderr, "gpuslice: kept: release its GPU share: ")
	require.NotContains(t, stderr, "still run")
	require.NoError(t, os.Remove(away))
	require.NoError(t, os.Rename(away+".away", away))
	m.free()
}

// endless is an argument that only this run of the tests gives to hold.
var endless = fmt.Sprintf("--seconds=%d", 100_000+os.Getpid())

func held(t *testing.T) []int {
	pids, err := harness.Processes(func(program, args string) bool { return program == "hold" && strings.Contains(args, endless) })
	require.NoError(t, err)
	return pids
}

// The share stays as long as something runs with it, and is released after.
func TestKilled(t *testing.T) {
	m := newMachine(t)
	c, output := m.start("ready=1", "--memory", "100GiB", "--name", "held", "--", workload(t, "hold"), "--mib=100", endless)
	require.NoError(t, c.Process.Kill())
	require.Error(t, c.Wait())
	_, stderr, status := m.run("--memory", "100GiB", "--", "true")
	require.Equal(t, 125, status)
	require.Contains(t, stderr, "not enough free GPU capacity")
	require.Equal(t, map[string]int64{"held": 100 << 10}, m.reserved())
	holding := held(t)
	require.Len(t, holding, 1, output())
	require.NoError(t, syscall.Kill(holding[0], syscall.SIGKILL))
	require.NoError(t, harness.Until(context.Background(), patience, func(context.Context) error {
		if _, stderr, status := m.run("--memory", "100GiB", "--", "true"); status != 0 {
			return errors.New(stderr)
		}
		return nil
	}))
	m.free()
}

// Processes that outlive the command keep the share.
func TestChildrenKeepTheShare(t *testing.T) {
	m := newMachine(t)
	_, stderr, status := m.run("--memory", "3GiB", "--name", "left", "--", "/bin/sh", "-c", workload(t, "hold")+" --mib=100 "+endless+" >/dev/null 2>&1 & echo $!")
	require.Zero(t, status, stderr)
	require.Contains(t, stderr, "processes of left still run: its GPU share is released after they end")
	require.Equal(t, map[string]int64{"left": 3 << 10}, m.reserved())
	holding := held(t)
	require.Len(t, holding, 1)
	require.NoError(t, syscall.Kill(holding[0], syscall.SIGKILL))
	m.free()
}

func TestNameAndResize(t *testing.T) {
	m := newMachine(t)
	more := filepath.Join(m.Dir, "more")
	c, output := m.start("ready=1", "--memory", "4GiB", "--cores", "30", "--", "/bin/sh", "-c", fmt.Sprintf(
		`%s --mib=100 & hold=$!; trap 'kill $hold; wait; exit 0' TERM; while ! test -e %s; do sleep 0.1; done; %s; wait`,
		workload(t, "hold"), more, workload(t, "meminfo")))
	name := fmt.Sprintf("root.sh.%d", c.Process.Pid)
	require.Equal(t, map[string]int64{name: 4 << 10}, m.reserved(), output())
	table, err := m.CLI(context.Background(), "status")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^- +`+name+` +active +0 +\d+/4096 MiB +30 % +1 +preload$`, table)
	table, err = m.CLI(context.Background(), "top", "--once", "--interval=100ms")
	require.NoError(t, err)
	require.Contains(t, table, name)
	_, err = m.CLI(context.Background(), "resize", name, "--memory", "6GiB", "--cores", "50")
	require.NoError(t, err)
	require.Equal(t, map[string]int64{name: 6 << 10}, m.reserved())
	require.NoError(t, os.WriteFile(more, nil, 0o644))
	require.NoError(t, harness.Until(context.Background(), patience, func(context.Context) error {
		if got := harness.KeyValues(output())["device.0.total_bytes"]; got != strconv.Itoa(6144*mib) {
			return fmt.Errorf("the command sees %q", got)
		}
		return nil
	}))
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.NoError(t, c.Wait())
	m.free()
}

// Another user has the share, and can change neither limits nor mounts.
func TestAsAnotherUser(t *testing.T) {
	m := newMachine(t)
	out, stderr, status := m.run("--memory", "4GiB", "--user", "daemon", "--", "/bin/sh", "-c",
		`id -un; echo home=$HOME; for f in limits usage; do (echo x >/.gpuslice/$f) 2>&1; done; (echo >/etc/ld.so.preload) 2>&1; cat /etc/ld.so.preload`)
	require.Zero(t, status, stderr)
	require.Contains(t, out, "daemon\nhome=/usr/sbin\n")
	require.Contains(t, out, "/.gpuslice/libvgpu-before-libasan.so")
	require.GreaterOrEqual(t, strings.Count(out, "Read-only file system")+strings.Count(out, "Permission denied"), 2, out)

	// It has no open file of the caller.
	secret, err := os.Open("/etc/shadow")
	require.NoError(t, err)
	defer secret.Close()
	files := m.command("--memory", "4GiB", "--user", "daemon", "--", "/bin/sh", "-c", "for fd in 3 4 5 6 7 8 9; do test -e /proc/self/fd/$fd && echo $fd; done; exit 0")
	files.ExtraFiles = []*os.File{secret}
	text, err := files.CombinedOutput()
	require.NoError(t, err, string(text))
	require.Empty(t, string(text))

	c, _ := m.start("ready", "--memory", "4GiB", "--user", "1", "--", "/bin/sh", "-c", "echo ready; exec sleep 100")
	for name := range m.reserved() {
		require.Equal(t, fmt.Sprintf("daemon.sh.%d", c.Process.Pid), name)
	}
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	_ = c.Wait()
	m.free()
}

// Another user than root gets no share, and one line with what to do.
func TestNotRoot(t *testing.T) {
	m := newMachine(t)
	c := m.command("--memory", "4GiB", "--", "true")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	require.Error(t, c.Run())
	require.Equal(t, 125, c.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "run it as root, for example sudo gpuslice run --user")
	require.Equal(t, 1, strings.Count(stderr.String(), "\n"))
}

// The host's own processes and mounts are as they were.
func TestHostIsUnchanged(t *testing.T) {
	m := newMachine(t)
	mounted := filepath.Join(m.Dir, "mounted")
	require.NoError(t, os.Mkdir(mounted, 0o755))
	_, stderr, status := m.run("--memory", "4GiB", "--", "/bin/sh", "-c", "mount -t tmpfs none "+mounted+" && grep -c ' /.gpuslice' /proc/self/mountinfo")
	require.Zero(t, status, stderr)
	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for _, point := range []string{mounted, " /.gpuslice", " /etc/ld.so.preload "} {
		require.NotContains(t, string(table), point)
	}
	content, err := os.ReadFile("/etc/ld.so.preload")
	require.NoError(t, err)
	require.NotContains(t, string(content), "gpuslice")
	m.free()
}

// Two commands divide the GPU's time by their shares, as two containers do.
func TestSharesOfComputeTime(t *testing.T) {
	m := newMachine(t)
	spin := append([]string{workload(t, "spin")}, harness.Busy[1:]...)
	for group, cores := range map[int]int{1: 30, 2: 60} {
		c := m.command(append([]string{"--memory", "8GiB", "--cores", strconv.Itoa(cores), "--"}, spin...)...)
		c.Env = append(c.Env, harness.BusyEnv(group))
		require.NoError(t, c.Start())
		t.Cleanup(func() {
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait()
		})
	}
	require.NoError(t, m.HoldShares(context.Background(), 0, map[int]int{1: 30, 2: 60}, 5))
}

// startAgent starts the agent as its unit does.
func (m machine) startAgent() (agent *harness.Process, metrics string) {
	m.t.Helper()
	_, stderr, status := m.run("--memory", "1GiB", "--", "true") // the unit takes what the first command installed
	require.Zero(m.t, status, stderr)
	program, err := harness.Artefact("bin", "gpuslice-agent")
	require.NoError(m.t, err)
	metrics = loopback.FreeAddress(m.t)
	command := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/gpuslice-agent (.*)$`).FindSubmatch(install.AgentUnit)
	require.NotNil(m.t, command)
	args := append(strings.Fields(string(command[1])), "--health-address=", "--metrics-address="+metrics, "--audit-interval=1s")
	agent, err = harness.StartProcess(m.Dir, "gpuslice-agent", m.RuntimeEnv(), program, args...)
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, agent.Stop(harness.StopPatience)) })
	return agent, metrics
}

// With the agent's unit, NVML's figures of the command's processes are attributed to its share.
func TestWithTheAgent(t *testing.T) {
	ctx := context.Background()
	m := newMachine(t)
	agent, metrics := m.startAgent()
	c, _ := m.start("ready", "--memory", "8GiB", "--name", "held", "--", "/bin/sh", "-c",
		"echo ready; exec "+workload(t, "spin")+" "+strings.Join(harness.Busy[1:], " "))
	read := func() string {
		response, err := http.Get("http://" + metrics + "/metrics")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return string(body)
	}
	// The limiter doesn't count time without a share of it: this is NVML's figure, for the command's process.
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		if body := read(); !regexp.MustCompile(`(?m)^gpuslice_container_core_used_ratio\{[^}]*container="held"[^}]*\} [01]\.?[0-9]*[1-9]`).MatchString(body) {
			return errors.New(body)
		}
		return nil
	}))
	// Passes after it was seen.
	pass := regexp.MustCompile(`(?m)^gpuslice_audit_last_timestamp_seconds .*$`)
	seen := map[string]bool{}
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		seen[pass.FindString(read())] = true
		if delete(seen, ""); len(seen) < 4 {
			return fmt.Errorf("passes: %v", seen)
		}
		return nil
	}))
	require.NotContains(t, agent.LogTail(1000), "violation")
	require.NotRegexp(t, `(?m)^gpuslice_violations\{.*\} [^0]`, read())
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.NoError(t, c.Wait())
	require.Empty(t, m.reserved())
}

// The documented command, with the simulated driver's directories in place of devices and libraries.
func TestSystemdNspawn(t *testing.T) {
	m := newMachine(t)
	nspawn, err := harness.Nspawn()
	require.NoError(t, err)
	root, err := harness.GlibcRoot()
	require.NoError(t, err)
	dir := filepath.Join(m.Dir, "root")
	require.NoError(t, root.Write(dir))
	driver, err := harness.Artefact("sim")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/PROCESSES.md")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^gpuslice run (.* -- systemd-nspawn .*)$`).FindSubmatch(bytes.ReplaceAll(page, []byte("\\\n"), nil))
	require.NotNil(t, found)
	var args []string
	for _, word := range strings.Fields(string(found[1])) {
		switch {
		case word == "systemd-nspawn":
			// This machine may have no systemd.
			args = append(args, nspawn, "--quiet", "--as-pid2", "--register=no", "--keep-unit")
		case strings.HasPrefix(word, "--directory="):
			args = append(args, "--directory="+dir)
		case strings.Contains(word, "/dev/nvidia"), strings.Contains(word, "/usr/lib/"):
		default:
			args = append(args, word)
		}
	}
	args = append(args, "--bind="+filepath.Dir(m.SimState()), "--bind-ro="+driver, "--setenv=SIMGPU_STATE="+m.SimState(), "--setenv=LD_LIBRARY_PATH="+driver)
	out, stderr, status := m.run(append(args, harness.WorkloadDir+"/alloc", "--chunk-mib=64")...)
	require.Zero(t, status, stderr)
	values := harness.KeyValues(out)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", values["result"], out+stderr)
	got, err := strconv.ParseInt(values["allocated_bytes"], 10, 64)
	require.NoError(t, err)
	require.LessOrEqual(t, got, int64(8192-contextMiB)*mib)
	require.Greater(t, got, int64(8192-contextMiB-64)*mib)
	m.free()
}

// The scripts of install/slurm, in control groups as Slurm makes them, and with sudo's variables.
func TestSlurmScripts(t *testing.T) {
	const second = "GPU-00000002-5151-4000-8000-000000000002"
	m := newMachine(t, "H200", "H200")
	job := strconv.Itoa(4_000_000_000 + os.Getpid())
	daemon, err := user.Lookup("daemon")
	require.NoError(t, err)
	roots, err := harness.CgroupRoots()
	require.NoError(t, err)
	require.NotEmpty(t, roots)
	path := []string{"slurm", "uid_" + daemon.Uid, "job_" + job, "step_0"}
	if _, err := os.Stat(filepath.Join(roots[0], "cgroup.controllers")); err == nil {
		path = []string{"system.slice", "slurmstepd.scope", "job_" + job, "step_0"}
	}
	group := filepath.Join(append([]string{roots[0]}, path...)...)
	require.NoError(t, os.MkdirAll(group, 0o755))
	t.Cleanup(func() { // before the machine's own
		_ = os.Remove("/run/gpuslice-jobs") // if it is empty
		assert.NoError(t, os.Remove(group))
		for dir := filepath.Dir(group); dir != roots[0]; dir = filepath.Dir(dir) {
			_ = os.Remove(dir) // another one's, too
		}
	})

	// gpuslice with this machine's directories, nvidia-smi, and sed, which reads the control groups in FAKE_CGROUP.
	bin := filepath.Join(m.Dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	call := m.command("\"$@\"")
	for name, text := range map[string]string{
		"gpuslice":   "shift\nexec " + strings.Join(call.Args, " "),
		"nvidia-smi": `echo "$*" | grep -q -e "^--id=1 --query-gpu=uuid --format=csv,noheader$" && echo ` + second,
		"sed":        `[ -z "$FAKE_CGROUP" ] && exec /bin/sed "$@"; [ "$6" = /proc/self/cgroup ] && echo "$FAKE_CGROUP" | /bin/sed "$1" "$2" "$3" "$4" "$5"`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	script := func(name string, env ...string) {
		t.Helper()
		out, err := harness.Run(context.Background(), append(env, "PATH="+bin+":"+os.Getenv("PATH"), "SLURM_JOB_ID="+job, "SLURM_JOB_UID="+daemon.Uid), "../../install/slurm/"+name)
		require.NoError(t, err, out)
	}
	wrapped := func(command string, env ...string) *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", "echo $$ >"+group+"/cgroup.procs; exec ../../install/slurm/gpuslice-job.sh "+command)
		cmd.Env = append(append(call.Env, "PATH="+bin+":"+os.Getenv("PATH"), "SUDO_UID="+daemon.Uid, "SUDO_USER=root", "SLURM_JOB_ID=1"), env...)
		return cmd
	}
	works := func(command string, env ...string) string {
		t.Helper()
		out, err := wrapped(command, env...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	fails := func(says string, env ...string) {
		t.Helper()
		out, err := wrapped("true", env...).CombinedOutput()
		require.ErrorContains(t, err, "exit status 125", "%q: %s", env, out)
		require.Contains(t, string(out), says, "%q", env)
	}
	const noJob = "not in a job of a partition with GPUs"

	fails(noJob) // the prolog has not run
	script("prolog.sh", "SLURM_JOB_PARTITION=small", "SLURM_JOB_GPUS=1")
	require.Equal(t, strconv.Itoa(8192*mib), harness.KeyValues(works(workload(t, "meminfo")))["device.0.total_bytes"])
	require.Equal(t, "daemon\n"+second+"\n", works(`/bin/sh -c 'id -un; echo $CUDA_VISIBLE_DEVICES'`))

	scope := "/system.slice/slurmstepd.scope/job_" + job
	session := "/user.slice/user-1.slice/user@1.service"
	for _, text := range []string{
		"0::" + scope, "0::" + scope + "/step_0/user/task_0", "0::/system.slice/node7_slurmstepd.scope/job_" + job + "/step_batch",
		"5:devices:/slurm/uid_" + daemon.Uid + "/job_" + job + "/step_0\n0::/", "3:cpuset,cpu:/slurm_node7/uid_" + daemon.Uid + "/job_" + job,
	} {
		require.Equal(t, "daemon\n", works("id -un", "FAKE_CGROUP="+text), text)
	}
	for _, text := range []string{
		"0::" + session + "/app.slice/job_" + job + ".scope", "0::" + session + "/job_" + job, "0::" + session + scope,
		"0::/system.slice/evil-slurmstepd.scope/job_" + job, "0::" + scope + "x/step_0", "0::/system.slice/slurmstepd.scope/x/job_" + job,
		"0::/slurm/uid_" + daemon.Uid + "/job_" + job, "1:name=systemd:/slurm/uid_" + daemon.Uid + "/job_" + job,
		"5:devices:/user.slice/slurm/uid_" + daemon.Uid + "/job_" + job, "5:devices:/slurm/uid_65534/job_" + job,
		"5:devices:/slurm/uid_65534/uid_" + daemon.Uid + "/job_" + job,
	} {
		fails(noJob, "FAKE_CGROUP="+text)
	}
	fails("job "+job+" is another user's", "SUDO_UID=65534", "FAKE_CGROUP=0::"+scope)
	for _, uid := range []string{"", "daemon", ".*"} {
		fails("run it by sudo", "SUDO_UID="+uid)
	}

	// A job has one share.
	first := wrapped("/bin/sh -c 'echo ready; read end'")
	in, err := first.StdinPipe()
	require.NoError(t, err)
	out, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"job-" + job: 8192}, m.reserved())
	fails("another command with this name has a share")
	require.NoError(t, in.Close())
	require.Equal(t, 1, m.ended(first))
	require.Equal(t, "daemon\n", works("id -un"))

	script("epilog.sh")
	fails(noJob)
	script("prolog.sh", "SLURM_JOB_PARTITION=other")
	fails(noJob)
	m.free()
}
