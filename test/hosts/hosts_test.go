//go:build hosts

package hosts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

var (
	which = flag.String("guests", "all", "the guests to run, separated by commas, or all")
	steps = flag.String("steps", "", "only these steps, separated by commas")
	tests = flag.String("tests", "", "tests that match run, instead of those of the steps")
	logs  = flag.String("logs", "../../build/hosts-logs", "directory for the guests' logs")
)

// A guest is a virtual machine.
type guest struct {
	name string
	arch string
	// distribution and kernel are suites of Debian: of all but the kernel, and of the kernel. Its release begins with release;
	// backports have any.
	distribution, kernel, release string
	// cgroup is the version of the control groups, and driver what makes those of containers: cgroupfs or systemd.
	cgroup int
	driver string
	// module is the security module: apparmor or selinux.
	module string
	steps  []step
}

// step is the demo, or a package's tests.
type step struct {
	name string
	// pkg is the directory of a package; run and skip select tests, all when both are empty.
	pkg, run, skip string
	// command is what runs instead.
	command []string
	// kubernetes: it needs the kubelet.
	kubernetes bool
	// patience is how long it may take.
	patience time.Duration
}

// program is the name of the program of a package's tests.
func (s step) program() string { return strings.ReplaceAll(s.pkg, "/", "-") + ".test" }

func TestHosts(t *testing.T) {
	chosen := choose(t)
	for _, g := range chosen {
		t.Run(g.name, func(t *testing.T) { g.test(t) })
	}
}

func choose(t *testing.T) (chosen []guest) {
	names := strings.Split(*which, ",")
	known := []string{"all"}
	for _, g := range guests {
		known = append(known, g.name)
		if slices.Contains(names, g.name) || *which == "all" {
			chosen = append(chosen, g)
		}
	}
	for _, name := range names {
		require.Contains(t, known, name, "-guests")
	}
	return chosen
}

// chosenSteps are those of -steps.
func (g guest) chosenSteps(t *testing.T) []step {
	if *steps == "" {
		return g.steps
	}
	names := strings.Split(*steps, ",")
	chosen := slices.DeleteFunc(slices.Clone(g.steps), func(s step) bool { return !slices.Contains(names, s.name) })
	require.NotEmpty(t, chosen, "-steps: the guest has none of them")
	return chosen
}

func (g guest) test(t *testing.T) {
	dir := t.TempDir()
	started := time.Now()
	script(t, "programs")
	script(t, append([]string{"root"}, g.root()...)...)
	script(t, "kernel", g.arch, g.kernel)
	chosen := g.chosenSteps(t)
	if *tests != "" {
		for i := range chosen {
			chosen[i].run = *tests
		}
	}
	payload(t, g, chosen, filepath.Join(dir, "payload"))
	t.Logf("disks: %.0f s", time.Since(started).Seconds())
	t.Cleanup(func() { keep(t, dir, filepath.Join(*logs, g.name), "console", "results", "qemu") })
	g.boot(t, dir, chosen)
	g.report(t, filepath.Join(dir, "results"), chosen)
}

// report makes a test of the machine and of each step, and prints one line for each expectation.
func (g guest) report(t *testing.T, file string, chosen []step) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var machine event
	output, ends := map[string]*strings.Builder{}, map[string]event{}
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var e event
		if err := d.Decode(&e); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the guest's results: %v", err)
			}
			break
		}
		switch {
		case e.Kernel != "":
			machine = e
		case e.Ended:
			ends[e.Step] = e
		default:
			if output[e.Step] == nil {
				output[e.Step] = &strings.Builder{}
			}
			output[e.Step].WriteString(e.Output)
		}
	}
	t.Run("machine", func(t *testing.T) {
		t.Logf("kernel %s, cgroup v%d, security modules %s, %s s after its start", machine.Kernel, machine.Cgroup, machine.Modules, machine.Uptime)
		require.True(t, strings.HasPrefix(machine.Kernel, g.release), "kernel")
		require.Equal(t, g.cgroup, machine.Cgroup, "cgroup")
		require.Contains(t, strings.Split(machine.Modules, ","), g.module, "security module")
	})
	for _, s := range chosen {
		t.Run(s.name, func(t *testing.T) {
			text := ""
			if output[s.name] != nil {
				text = output[s.name].String()
			}
			end, ended := ends[s.name]
			for _, line := range expectations(text) {
				fmt.Printf("%s  %s  %s\n", g.name, s.name, line)
			}
			if !ended || end.Error != "" {
				t.Logf("in the guest:\n%s", text)
			}
			require.True(t, ended, "the guest stopped before the step ended")
			require.Empty(t, end.Error)
			if s.pkg != "" {
				require.Contains(t, text, "--- PASS", "no test ran")
			}
			t.Logf("%.0f s in the guest", end.Took.Seconds())
		})
	}
}

// expectation is a line of the demo, of `go test -v`, or of the doctor.
var expectation = regexp.MustCompile(`^\s*(?:--- (PASS|FAIL): |(ok|warn|fail)  +|(FAIL) )(\S.*)$`)

// expectations are the results in what a step wrote, one a line.
func expectations(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if m := expectation.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			result := strings.ToLower(strings.ReplaceAll(m[1], "PASS", "ok") + m[2] + m[3])
			lines = append(lines, fmt.Sprintf("%-4s %s", result, m[4]))
		}
	}
	return lines
}

func TestExpectationsOfAStep(t *testing.T) {
	require.Equal(t, []string{"ok   it runs, and finds no GPU", `fail "train" gets its share`, "ok   TestX (1.00s)", "fail TestX/y (1.00s)", "warn nri   NRI is off"},
		expectations("=== RUN   TestX\n  ok   it runs, and finds no GPU\n  FAIL \"train\" gets its share\n       a reason\n--- PASS: TestX (1.00s)\n    --- FAIL: TestX/y (1.00s)\nwarn  nri   NRI is off\nPASS\nFAIL\n"))
}

// event is a line of the runner's results.
type event struct {
	Step, Output, Error     string
	Kernel, Modules, Uptime string
	Cgroup                  int
	Ended                   bool
	Took                    time.Duration
}

// script runs guests.sh.
func script(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("./guests.sh", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "guests.sh %s", strings.Join(args, " "))
	return strings.TrimSpace(string(out))
}

// boot runs the guest until it powers itself off.
func (g guest) boot(t *testing.T, dir string, chosen []step) {
	cache := script(t, "where")
	root := filepath.Join(cache, "root", strings.Join(g.root(), "-"))
	kernel := filepath.Join(cache, "kernel", g.arch+"-"+g.kernel)
	program, machine, console := "qemu-system-x86_64", []string{"-cpu", "max"}, "ttyS0"
	if g.arch == "arm64" {
		program, machine, console = "qemu-system-aarch64", []string{"-machine", "virt", "-cpu", "cortex-a72"}, "ttyAMA0"
	}
	drive := func(file string, option string) []string {
		return []string{"-drive", "if=virtio,format=raw,cache=unsafe,file=" + file + option}
	}
	args := slices.Concat(machine,
		[]string{"-accel", "tcg,thread=multi", "-m", "4096", "-smp", "2", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
			"-serial", "file:" + filepath.Join(dir, "console"), "-kernel", filepath.Join(kernel, "vmlinuz"), "-initrd", filepath.Join(kernel, "initrd"),
			"-device", "virtio-serial-pci", "-chardev", "file,id=results,path=" + filepath.Join(dir, "results"),
			"-device", "virtserialport,chardev=results,name=results"},
		drive(filepath.Join(root, "disk"), ",snapshot=on"), drive(filepath.Join(kernel, "modules"), ",readonly=on"),
		drive(filepath.Join(dir, "payload"), ""),
		[]string{"-append", strings.TrimSpace("console=" + console + " panic=-1 mitigations=off random.trust_cpu=on systemd.default_timeout_start_sec=1800 " + g.arguments())})
	patience := 3 * time.Minute // to start and to stop
	for _, s := range chosen {
		patience += s.patience
	}
	log, err := os.Create(filepath.Join(dir, "qemu"))
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(filepath.Join(cache, "programs", "wrappers", program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)                      // for what the guest writes to its first disk
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it is only a test's
	started := time.Now()
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Errorf("QEMU, after %v: %v\n%s", time.Since(started), err, text)
	}
	t.Logf("guest: %.0f s", time.Since(started).Seconds())
}

// keep copies files of a guest.
func keep(t *testing.T, from, to string, names ...string) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Error(err)
		return
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("the guest's logs are in %s", to)
}

// payload makes the guest's third disk: the repository with what `make build` made, the tools, and the tests.
func payload(t *testing.T, g guest, chosen []step, image string) {
	dir := image + ".d"
	repository, err := harness.Repository()
	require.NoError(t, err)
	built := filepath.Join(repository, "build")
	if g.arch != runtime.GOARCH {
		built = filepath.Join(built, g.arch)
	}
	tests := filepath.Join(repository, "build", "hosts", g.arch)
	shell(t, repository, `make --no-print-directory binaries ARCH="$1"`, g.arch)
	shell(t, repository, `
		mkdir -p "$2/gpuslice/build" "$2/bin"
		git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- --ignore-failed-read 2>/dev/null | tar -x -C "$2/gpuslice"
		for part in bin lib obj sim workloads; do cp -a "$1/$part" "$2/gpuslice/build/"; done
		mkdir "$2/tools"
		cp -a "$3" "$2/tools/"
	`, built, dir, script(t, "tools", g.arch))
	if slices.ContainsFunc(chosen, func(s step) bool { return s.kubernetes }) {
		shell(t, repository, `
			where=$(test/setup.sh --where-kubernetes)
			[ -x "$where/kubelet" ] || test/setup.sh --kubernetes
			mkdir -p "$1/tools/$(basename "$where")"
			cp "$where/kubelet" "$1/tools/$(basename "$where")/"
		`, dir)
	}
	compile(t, repository, g.arch, tests, chosen)
	list := []map[string]any{}
	for _, s := range chosen {
		one := map[string]any{"Name": s.name, "Dir": "/srv/gpuslice", "Command": s.command, "Env": g.env(), "Patience": s.patience}
		if s.pkg != "" {
			name := s.program()
			if err := os.Link(filepath.Join(tests, name), filepath.Join(dir, "bin", name)); !errors.Is(err, fs.ErrExist) {
				require.NoError(t, err)
			}
			command := []string{"/srv/bin/" + name, "-test.v", "-test.count=1", "-test.timeout=" + s.patience.String()}
			if s.run != "" {
				command = append(command, "-test.run="+s.run)
			}
			if s.skip != "" {
				command = append(command, "-test.skip="+s.skip)
			}
			one["Dir"], one["Command"] = filepath.Join("/srv/gpuslice", s.pkg), command
		}
		list = append(list, one)
	}
	data, err := json.MarshalIndent(list, "", "  ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "steps.json"), data, 0o644))
	for name, to := range map[string]string{"runner": "guest", "demo": "bin/demo"} {
		require.NoError(t, os.Link(filepath.Join(tests, name), filepath.Join(dir, to)))
	}
	shell(t, repository, `
		truncate -s 4G "$2"
		PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=1 -d "$1" "$2"
		rm -rf "$1"
	`, dir, image)
}

// compile builds the programs that run in a guest.
func compile(t *testing.T, repository, arch, to string, chosen []step) {
	require.NoError(t, os.MkdirAll(to, 0o755))
	for _, s := range chosen {
		if s.pkg != "" {
			goRun(t, repository, arch, "1", "test", "-c", "-o", filepath.Join(to, s.program()), "./"+s.pkg)
		}
	}
	goRun(t, repository, arch, "1", "build", "-o", to+"/", "./test/demo")
	goRun(t, repository, arch, "0", "build", "-o", to+"/", "./test/hosts/runner")
}

func goRun(t *testing.T, repository, arch, cgo string, args ...string) {
	t.Helper()
	args = slices.Insert(args, 1, "-trimpath", "-buildvcs=false", "-tags=nri_no_wasm,root,hosts", "-ldflags=-s -w")
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = repository, append(os.Environ(), "GOFLAGS=", "GOARCH="+arch, "CGO_ENABLED="+cgo, "CGO_CFLAGS=-g -O2 -Wno-deprecated-declarations")
	if arch != runtime.GOARCH {
		cmd.Env = append(cmd.Env, "CC="+script(t, "compiler", arch))
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go %s\n%s", strings.Join(args, " "), out)
}

func shell(t *testing.T, dir, text string, args ...string) {
	t.Helper()
	cmd := exec.Command("bash", append([]string{"-euc", "set -o pipefail\n" + text, "bash"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, fmt.Sprintf("%s\n%s", text, out))
}
