package cdihook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A jail is a mount namespace in which a copy of a host's static program works on a container's root, without
// procfs. chroot is not sufficient: /proc/1/root in the container leads to the host while process 1 is the
// runtime's. The jail's root is a tmpfs over the host's /proc.
const (
	jailAt      = "/proc"
	jailProgram = "/program"
	jailRoot    = "/root"
)

// jailCapabilities are kept: for chroot, and to write despite the image's permissions.
const jailCapabilities = 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_DAC_OVERRIDE

var errNotStatic = errors.New("it is a script or linked dynamically")

// runInJail returns the beginning of the program's output. The program gets no variables and no files.
func runInJail(program string, root *os.File, args []string) (output []byte, err error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	nothing, err := os.Open(os.DevNull) // the jail has none
	if err != nil {
		return nil, err
	}
	defer nothing.Close()
	// Files that the runtime left open; kernels before 5.11 do not support it.
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)

	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespaces
		if err := enterJail(content, root); err != nil {
			done <- err
			return
		}
		var out bytes.Buffer
		cmd := exec.Command(jailProgram, args...)
		cmd.Args[0] = program
		cmd.Env, cmd.Dir = []string{}, "/"
		cmd.Stdin, cmd.Stdout, cmd.Stderr = nothing, &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			Pdeathsig:  unix.SIGKILL,
		}
		err := cmd.Start()
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errNotStatic, err)
		}
		if err == nil {
			err = cmd.Wait()
		}
		output = bytes.TrimSpace(out.Bytes()[:min(out.Len(), 1024)])
		done <- err
	}()
	err = <-done
	return output, err
}

func enterJail(program []byte, root *os.File) error {
	// The working directory stays valid in the new namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return fmt.Errorf("change to the container's root: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("create a mount namespace: %w", err)
	}
	unix.Umask(0o022)
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	defer mounts.Close()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"stop the propagation of mounts to the host", func() error { return unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "") }},
		{"mount a root", func() error {
			return unix.Mount("gpuslice", jailAt, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size="+strconv.Itoa(len(program)+1<<20))
		}},
		{"copy the program", func() error { return os.WriteFile(jailAt+jailProgram, program, 0o555) }},
		{"create a directory", func() error { return os.Mkdir(jailAt+jailRoot, 0o755) }},
		{"mount the container's root", func() error { return unix.Mount(".", jailAt+jailRoot, "", unix.MS_BIND|unix.MS_REC, "") }},
		{"unmount procfs", func() error { return unmountProcfs(mounts, jailAt+jailRoot) }},
		{"change the root", func() error { return pivot(jailAt) }},
		{"make the root read-only", func() error {
			return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
		}},
		{"drop capabilities", func() error { return boundCapabilities(jailCapabilities) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// unmountProcfs unmounts every procfs: the container's, and the host's as a volume.
func unmountProcfs(mounts io.ReadSeeker, below string) error {
	for {
		if _, err := mounts.Seek(0, io.SeekStart); err != nil {
			return err
		}
		data, err := io.ReadAll(mounts)
		if err != nil {
			return err
		}
		at := firstProcfs(string(data), below)
		if at == "" {
			return nil
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", strings.TrimPrefix(at, below), err)
		}
	}
}

// firstProcfs returns the first mount point of a procfs at or below a directory, or "".
func firstProcfs(mountinfo, below string) string {
	for line := range strings.Lines(mountinfo) {
		mount, system, _ := strings.Cut(line, " - ")
		fields := strings.Split(mount, " ") // the kernel escapes no other white space
		kind, _, _ := strings.Cut(system, " ")
		if len(fields) < 5 || kind != "proc" {
			continue
		}
		at := unescapeMount.Replace(fields[4])
		if at == below || strings.HasPrefix(at, below+"/") {
			return at
		}
	}
	return ""
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

func pivot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // mounts the old root over the new one
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// boundCapabilities limits the capabilities of children that are root.
func boundCapabilities(keep uint64) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	for c := uintptr(0); ; c++ {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break
		}
		if err != nil {
			return err
		}
		if in == 0 || keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return err
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
