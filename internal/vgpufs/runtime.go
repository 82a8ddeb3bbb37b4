package vgpufs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Runtime mounts file systems in the container runtime's mount namespace.
type Runtime struct {
	mu sync.Mutex
	// space is the runtime's mount namespace. thread is nil if that is the process' own.
	space   namespace
	thread  *thread
	problem error
	// turns is the state directory with turn files that are mounted in space.
	turns string
}

// NewRuntime returns a Runtime that can mount after Follow.
func NewRuntime() *Runtime {
	return &Runtime{problem: errors.New("the agent is not connected to the container runtime")}
}

// Follow finds the runtime's mount namespace from a connection to its socket. Mount returns its error.
func (r *Runtime) Follow(conn syscall.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := peer(conn)
	if err == nil {
		err = r.enter(pid)
	}
	r.problem = err
}

// Mount is Mount in the runtime's mount namespace. It fails if this process can't see the mount.
func (r *Runtime) Mount(claimDir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mount(claimDir, Name, func() error { return mount(claimDir, Name, options) })
}

// MountTurns is MountTurns in the runtime's mount namespace. It fails if this process can't see the mount.
func (r *Runtime) MountTurns(stateDir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turns == stateDir && r.problem == nil {
		if there, err := mounted(stateDir, TurnsName); there && err == nil {
			return nil
		}
	}
	err := r.mount(stateDir, TurnsName, func() error { return mountTurns(stateDir) })
	if err == nil {
		r.turns = stateDir
	}
	return err
}

func (r *Runtime) mount(dir, name string, mount func() error) error {
	if r.problem != nil {
		return fmt.Errorf("mount gpuslice's file system on %s: %w", filepath.Join(dir, name), r.problem)
	}
	if r.thread == nil {
		if err := mount(); err != nil {
			return err
		}
		return seenIn(hostRoot, dir, name)
	}
	if err := r.thread.do(mount); err != nil {
		return err
	}
	return requireMounted(dir, dir, name, "the container runtime sees the mount and the agent does not: mount the agent's --state-dir with mountPropagation: HostToContainer, "+
		"and make its mount on the host shared (mount --make-shared)")
}

func (r *Runtime) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.thread.end()
	r.thread, r.space, r.problem = nil, namespace{}, errors.New("the agent is stopping")
}

func (r *Runtime) enter(pid int) error {
	file, space, err := openNamespace(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return fmt.Errorf("find the mount namespace of the container runtime (process %d): %w: the agent needs hostPID and CAP_SYS_PTRACE", pid, err)
	}
	defer file.Close()
	if space == r.space {
		return nil
	}
	own, ownSpace, err := openNamespace("/proc/thread-self/ns/mnt")
	if err != nil {
		return fmt.Errorf("find the agent's mount namespace: %w", err)
	}
	own.Close()
	var entered *thread
	if space != ownSpace {
		entered = newThread()
		if err := entered.do(func() error { return enterNamespace(file) }); err != nil {
			entered.end()
			return fmt.Errorf("enter the mount namespace of the container runtime (process %d): %w: the agent needs CAP_SYS_ADMIN and CAP_SYS_CHROOT, and setns in its seccomp profile", pid, err)
		}
	}
	r.thread.end()
	r.thread, r.space, r.turns = entered, space, ""
	return nil
}

// enterNamespace moves the calling thread. setns requires that it shares no working directory.
func enterNamespace(file *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return nil
}

func peer(conn syscall.Conn) (int, error) {
	control, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find the container runtime's process: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = control.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("find the container runtime's process: %w", err)
	}
	if cred.Pid == 0 {
		return 0, errors.New("find the container runtime's process: it is in another PID namespace: the agent needs hostPID")
	}
	return int(cred.Pid), nil
}

type namespace struct{ device, inode uint64 }

func openNamespace(path string) (*os.File, namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, namespace{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, namespace{}, err
	}
	return file, namespace{uint64(st.Dev), st.Ino}, nil
}

type thread struct {
	work chan func()
	gone sync.WaitGroup
}

func newThread() *thread {
	t := &thread{work: make(chan func())}
	locked := make(chan struct{})
	t.gone.Go(func() { t.run(locked) })
	<-locked
	return t
}

// run leaves the main thread, which /proc shows as the process and Go never ends, and closes locked when it has its own.
func (t *thread) run(locked chan struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		t.gone.Go(func() { t.run(locked) })
		<-locked
		runtime.UnlockOSThread()
		return
	}
	close(locked)
	// Without UnlockOSThread, Go ends the thread with the goroutine.
	for work := range t.work {
		work()
	}
}

func (t *thread) do(fn func() error) error {
	done := make(chan error)
	t.work <- func() { done <- fn() }
	return <-done
}

func (t *thread) end() {
	if t == nil {
		return
	}
	close(t.work)
	t.gone.Wait()
}
