//go:build root

package limiter_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// program prints "ready" and then waits for its standard input to end.
type program struct {
	name    string
	command []string
	say     string // its input before it prints "ready"
	single  bool   // of one thread
	static  bool   // no library is ever loaded into it
	user    string // the user that runs it; root by default
}

const javaProgram = "public class Wait { public static void main(String[] a) throws Exception { System.out.println(\"ready\"); while (System.in.read() >= 0); System.exit(7); } }\n"

// The test itself is the Go program: then no host of the tests needs a compiler of Go.
const goWaits = "wait"

func waitAsGoProgram() {
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(7)
}

// programs are real ones, of each kind that finds its functions in a way of its own.
// Java and Node are too large to be installed for this; they are used where they are.
func programs(t *testing.T) []program {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	mirror, setuid, static := filepath.Join(dir, "mirror"), filepath.Join(dir, "setuid"), filepath.Join(dir, "static")
	require.NoError(t, compile(mirror, "testdata/mirror.c"))
	require.NoError(t, compile(setuid, "testdata/mirror.c"))
	require.NoError(t, os.Chmod(setuid, 0o755|os.ModeSetuid))
	require.NoError(t, compile(static, "testdata/mirror.c", "-static"))
	goBinary, err := os.Executable()
	require.NoError(t, err)

	all := []program{
		{name: "C", command: []string{mirror}, single: true},
		{name: "C, set-user-ID", command: []string{setuid}, single: true, user: "65534"},
		{name: "su", command: []string{"su", "daemon", "-s", "/bin/sh", "-c", "id -u; ulimit -n; umask; echo ready; cat; exit 7"}, single: true},
		{name: "C, static", command: []string{static}, single: true, static: true},
		{name: "busybox", command: []string{"busybox", "sh", "-c", "echo ready; cat; exit 7"}, static: true},
		{name: "bash", command: []string{"bash", "-c", "trap 'echo bye' EXIT; echo ready; read -r line; exit 7"}, single: true},
		{name: "perl", command: []string{"perl", "-e", "$| = 1; print \"ready\\n\"; 1 while <STDIN>; exit 7"}, single: true},
		{name: "Python", command: []string{"/usr/bin/python3", "-c", "import sys; print('ready', flush=True); sys.stdin.read(); sys.exit(7)"}, single: true},
		{name: "Rust", command: []string{"rg", "--line-buffered", "ready", "-"}, say: "ready\n", single: true},
		{name: "Go", command: []string{goBinary, goWaits}},
	}
	for _, large := range []program{
		{name: "Node", command: []string{"node", "-e", "console.log('ready'); process.exitCode = 7; process.stdin.resume()"}},
		{name: "Java", command: []string{"java", "-Xmx64m", file("Wait.java", javaProgram)}},
	} {
		if _, err := exec.LookPath(large.command[0]); err == nil {
			all = append(all, large)
		}
	}
	return all
}

// state of a process as others can see it.
type state map[string]string

var (
	inode    = regexp.MustCompile(`\[\d+\]`)
	ofStatus = []string{"Umask", "Uid", "Gid", "Groups", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"}
)

func stateOf(t *testing.T, pid int, p program) state {
	t.Helper()
	at := fmt.Sprintf("/proc/%d/", pid)
	s := state{}
	text, err := os.ReadFile(at + "status")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.Contains(ofStatus, key) || (key == "Threads" && p.single) {
			s[key] = strings.TrimSpace(value)
		}
	}
	for _, name := range []string{"environ", "cmdline", "limits", "personality", "oom_score_adj", "timers", "comm"} {
		text, err := os.ReadFile(at + name)
		require.NoError(t, err)
		s[name] = string(text)
	}
	for _, name := range []string{"cwd", "root", "exe"} {
		s[name], _ = os.Readlink(at + name)
	}
	files, err := os.ReadDir(at + "fd")
	require.NoError(t, err)
	for _, f := range files {
		target, _ := os.Readlink(at + "fd/" + f.Name())
		s["fd "+f.Name()] = inode.ReplaceAllString(target, "[]")
	}
	return s
}

// outcome is all that can be seen of a program that was run.
type outcome struct {
	state     state
	maps      string
	output    string
	complaint string
	code      int
}

// runProgram runs one as containers do: the library comes from /etc/ld.so.preload,
// which set-user-ID programs heed, too. It looks at it until it looks as expected.
func runProgram(t *testing.T, c *container, etc string, p program, expected state) outcome {
	t.Helper()
	args := append([]string{"-m", "sh", "-c", `mount --bind "$1" /etc && shift && exec "$@"`, "sh", etc}, p.command...)
	if p.user != "" {
		args = slices.Insert(args, 6, "setpriv", "--reuid="+p.user, "--regid="+p.user, "--clear-groups")
	}
	cmd := c.command("unshare", args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out := &lines{ready: make(chan struct{})}
	cmd.Stdout = out
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	_, err = in.Write([]byte(p.say))
	require.NoError(t, err)
	select {
	case <-out.ready:
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		cmd.Wait()
		require.Fail(t, "it never was ready", "%s", complaint.String())
	}
	var o outcome
	// The bare one is looked at until it stays as it is: it may be seen in the middle of
	// something (su, between its fork and its blocking of signals).
	const settled = 50
	same := 0
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now := stateOf(t, cmd.Process.Pid, p)
		if same++; !maps.Equal(now, o.state) {
			same = 0
		}
		o.state = now
		if expected == nil && same == settled || expected != nil && maps.Equal(expected, now) || time.Now().After(end) {
			break
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	cmd.Wait()
	o.maps, o.output, o.complaint, o.code = string(text), out.text.String(), complaint.String(), cmd.ProcessState.ExitCode()
	return o
}

// lines keeps what is written and closes ready at the line "ready".
type lines struct {
	text   strings.Builder
	ready  chan struct{}
	closed bool
}

func (l *lines) Write(b []byte) (int, error) {
	l.text.Write(b)
	if !l.closed && strings.Contains(l.text.String(), "ready\n") {
		l.closed = true
		close(l.ready)
	}
	return len(b), nil
}

// Programs that use no CUDA, with the library in front of them as in a container:
// output, status, descriptors, threads, signals, environment, umask and the rest of
// what a process has are as without it, seen from within and from outside.
func TestProgramsLookTheSame(t *testing.T) {
	c := oneGPU(t, giB).bare()
	bare, with := t.TempDir(), t.TempDir()
	for _, etc := range []string{bare, with} {
		out, err := exec.Command("cp", "-a", "/etc/.", etc).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NoError(t, os.RemoveAll(filepath.Join(etc, "ld.so.preload")))
	}
	require.NoError(t, os.WriteFile(filepath.Join(with, "ld.so.preload"), []byte(filepath.Join(built, "lib", "libvgpu.so")+"\n"), 0o644))
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			want := runProgram(t, c, bare, p, nil)
			require.NotContains(t, want.maps, "libvgpu.so")
			got := runProgram(t, c, with, p, want.state)
			assert.Equal(t, !p.static, strings.Contains(got.maps, "libvgpu.so"), "whether it is loaded")
			assert.NotContains(t, got.maps, c.dir, "no file of the limiter's is mapped before CUDA is used")
			assert.Equal(t, want.state, got.state)
			assert.Equal(t, want.output, got.output)
			assert.Equal(t, want.complaint, got.complaint)
			assert.Equal(t, want.code, got.code)
			assert.Zero(t, c.used(t))
		})
	}
}
