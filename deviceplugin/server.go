package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// kubeletSocket is the kubelet's socket in its directory of device plugins.
	kubeletSocket = "kubelet.sock"
	// registerTimeout bounds one registration: the kubelet connects back within it.
	registerTimeout = 10 * time.Second
	// A failure is tried again after firstPause, and then more slowly. A kubelet
	// that comes back is registered with within two seconds.
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// Server is the kubelet's side of a device plugin's life: it keeps a socket in the
// kubelet's directory and the plugin registered, whatever becomes of either.
type Server struct {
	dir      string
	resource string
	plugin   v1beta1.DevicePluginServer
	log      *slog.Logger
}

// NewServer returns a server of a resource in the kubelet's directory of device plugins.
func NewServer(dir, resource string, plugin v1beta1.DevicePluginServer, log *slog.Logger) *Server {
	return &Server{dir: filepath.Clean(dir), resource: resource, plugin: plugin, log: log.With("resource", resource)}
}

// SocketPath is where the socket of a resource is. A socket's path has room for 107
// bytes (unix(7)).
func SocketPath(dir, resource string) string {
	return filepath.Join(dir, "gpuslice-"+strings.ReplaceAll(resource, "/", "_")+".sock")
}

// Run serves until ctx ends, and leaves no socket behind. It waits for a directory that
// isn't there, for a node is guarded without a kubelet too.
func (s *Server) Run(ctx context.Context) {
	said := ""
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		since := time.Now()
		err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(since) > lastPause {
			pause, said = firstPause, ""
		}
		if said != err.Error() {
			said = err.Error()
			s.log.Warn("device plugin not served; trying again", "error", err)
		}
		if !wait(ctx, pause) {
			return
		}
	}
}

// wait waits, and says whether ctx goes on.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// session serves one socket until something becomes of it, and says what.
func (s *Server) session(ctx context.Context) (err error) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w (too many open files: raise fs.inotify.max_user_instances)", s.dir, err)
	}
	defer watch.Close()
	// Before the socket is there, so that nothing is missed.
	if err := watch.Add(s.dir); err != nil {
		return fmt.Errorf("watch the kubelet's directory of device plugins %s: %w", s.dir, err)
	}
	socket, err := listen(SocketPath(s.dir, s.resource))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, socket.remove()) }()

	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, s.plugin)
	served := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { served <- server.Serve(socket.listener) })
	err = s.keepRegistered(ctx, watch, socket, served)
	server.Stop() // ends ListAndWatch, which a graceful stop would wait for
	serving.Wait()
	return err
}

// keepRegistered registers with the kubelet, and again whenever its socket is another
// one, until ctx or the plugin's own socket ends.
func (s *Server) keepRegistered(ctx context.Context, watch *fsnotify.Watcher, socket *socket, served <-chan error) error {
	kubelet := filepath.Join(s.dir, kubeletSocket)
	pause := firstPause
	said := ""
	try := time.NewTimer(0)
	defer try.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return fmt.Errorf("serve %s: %w", socket.path, err)
		case err := <-watch.Errors:
			return fmt.Errorf("watch %s: %w", s.dir, err)
		case event := <-watch.Events:
			switch {
			case event.Name == kubelet && event.Has(fsnotify.Create):
				pause = firstPause
				try.Reset(0)
			case event.Name == s.dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				return fmt.Errorf("the kubelet's directory of device plugins %s is gone", s.dir)
			case event.Name == socket.path && !socket.there():
				return fmt.Errorf("%s was removed", socket.path) // a kubelet does that when it starts
			}
		case <-try.C:
			err := s.register(ctx, kubelet)
			if err == nil {
				s.log.Info("registered with the kubelet")
				said = ""
				continue
			}
			if text := err.Error(); said != text {
				said = text
				s.log.Warn("not registered with the kubelet; trying again", "error", err)
			}
			// Where there is no kubelet, its coming is an event.
			if _, statErr := os.Stat(kubelet); !errors.Is(statErr, fs.ErrNotExist) {
				try.Reset(pause)
				pause = min(2*pause, lastPause)
			}
		}
	}
}

// register tells the kubelet of the plugin.
func (s *Server) register(ctx context.Context, kubelet string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	options, err := s.plugin.GetDevicePluginOptions(ctx, &v1beta1.Empty{})
	if err != nil {
		return fmt.Errorf("register with %s: %w", kubelet, err)
	}
	conn, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("register with %s: %w", kubelet, err)
	}
	defer conn.Close()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version:      v1beta1.Version,
		Endpoint:     filepath.Base(SocketPath(s.dir, s.resource)),
		ResourceName: s.resource,
		Options:      options,
	})
	if err != nil {
		return fmt.Errorf("register with %s: %w", kubelet, err)
	}
	return nil
}

// socket is a Unix socket that knows whether its file is still its own.
type socket struct {
	path     string
	listener *net.UnixListener
	made     os.FileInfo
}

// listen makes the socket, in place of one that an agent which was killed left behind.
func listen(path string) (*socket, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the device plugin's old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the device plugin's socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // it may be another's by then
	made, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the device plugin's socket: %w", err), l.Close())
	}
	return &socket{path, l, made}, nil
}

// there says whether the file is the one that was made.
func (s *socket) there() bool {
	now, err := os.Stat(s.path)
	// Inode numbers come back at once on some filesystems.
	return err == nil && os.SameFile(s.made, now) && s.made.ModTime().Equal(now.ModTime())
}

// remove takes the file away if it is still its own. The server has closed the
// listener.
func (s *socket) remove() error {
	if !s.there() {
		return nil
	}
	return os.Remove(s.path)
}
