package doctor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
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
