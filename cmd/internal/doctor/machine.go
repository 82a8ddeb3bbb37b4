package doctor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const patience = 5 * time.Second

// longestBody bounds an answer: a view of some hundred containers.
const longestBody = 4 << 20

// Machine is the real host, or a host by its root directory.
type Machine struct {
	root     *os.File
	isNative bool
}

var _ Host = (*Machine)(nil)

// NewMachine opens the host with that root directory; "/" is this machine.
func NewMachine(root string) (*Machine, error) {
	f, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Machine{root: f, isNative: root == "/"}, nil
}

func (m *Machine) Close() error { return m.root.Close() }

// open opens a path inside the root; symbolic links can't leave it.
func (m *Machine) open(path string, flags int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(int(m.root.Fd()), name(path), &how)
	if err == unix.ENOSYS && m.isNative { // Linux before 5.6
		fd, err = unix.Open("/"+name(path), flags|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (m *Machine) Open(name string) (fs.File, error) {
	return m.open("/"+name, unix.O_RDONLY|unix.O_NONBLOCK)
}

// Stat implements [fs.StatFS]. It opens no device.
func (m *Machine) Stat(name string) (fs.FileInfo, error) {
	f, err := m.open("/"+name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

func (m *Machine) IsRoot() bool { return os.Geteuid() == 0 }

func (m *Machine) Filesystem(path string) (Filesystem, error) {
	f, err := m.open(path, unix.O_PATH)
	if err != nil {
		return Filesystem{}, err
	}
	defer f.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return Filesystem{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return Filesystem{
		Type: int64(s.Type), NoExec: s.Flags&unix.ST_NOEXEC != 0,
		FreeBytes: s.Bavail * uint64(s.Bsize), FreeInodes: s.Ffree,
	}, nil
}

func (m *Machine) RuntimeVersion(ctx context.Context, socket string) (string, string, error) {
	f, err := m.open(socket, unix.O_PATH)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		// The path can be inside another root, or too long for a socket address.
		return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	}
	conn, err := grpc.NewClient("passthrough:///runtime", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	v, err := cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return "", "", fmt.Errorf("read the version from %s: %w", socket, err)
	}
	return v.RuntimeName, v.RuntimeVersion, nil
}

// Output implements [Host]. Programs of another root are not run.
func (m *Machine) Output(ctx context.Context, program string, args ...string) (string, error) {
	if !m.isNative {
		return "", fmt.Errorf("%s was not run: it is in another root directory", program)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return string(out), nil
}

func (m *Machine) Network(pid int) (string, error) {
	if pid == 0 {
		return os.Readlink("/proc/self/ns/net")
	}
	link := networkOf(pid)
	var name [64]byte // "net:[4026531840]"
	n, err := unix.Readlinkat(int(m.root.Fd()), link, name[:])
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: "/" + link, Err: err}
	}
	return string(name[:n]), nil
}

func networkOf(pid int) string { return "proc/" + strconv.Itoa(pid) + "/ns/net" }

func (m *Machine) Get(ctx context.Context, pid int, url string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	// No proxy: the server is local. No fallback: it would dial in another goroutine, outside of the network namespace.
	dial := (&net.Dialer{FallbackDelay: -1}).DialContext
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if pid == 0 {
			return dial(ctx, network, address)
		}
		return m.dialWithin(pid, func() (net.Conn, error) { return dial(ctx, network, address) })
	}}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, longestBody))
	return response.StatusCode, strings.TrimSpace(string(body)), err
}

// dialWithin dials in the network namespace of a process; the socket stays in it.
func (m *Machine) dialWithin(pid int, dial func() (net.Conn, error)) (net.Conn, error) {
	enter := func(fd int) error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network of process %d: %w", pid, err)
		}
		return nil
	}
	// m.open can't follow links of procfs.
	its, err := unix.Openat(int(m.root.Fd()), networkOf(pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/" + networkOf(pid), Err: err}
	}
	defer unix.Close(its)
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("open this thread's network: %w", err)
	}
	defer unix.Close(own)
	if err := enter(its); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	conn, err := dial()
	// If the thread can't return, it stays locked and ends with its goroutine.
	if enter(own) == nil {
		runtime.UnlockOSThread()
	}
	return conn, err
}
