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
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
)

const (
	kubeletSocket   = "kubelet.sock"
	registerTimeout = 10 * time.Second
	// Pauses between attempts. The first is short: a kubelet that restarts removes the socket, and fails pods until
	// the plugin has registered.
	firstPause = time.Millisecond
	lastPause  = time.Second
	// listTimeout is the time in which the kubelet lists the devices after a registration.
	listTimeout = 2 * time.Second
)

// Server keeps the plugin's socket in the kubelet's directory, and keeps the plugin registered.
type Server struct {
	dir      string
	resource string
	plugin   v1beta1.DevicePluginServer
	log      *slog.Logger
}

// NewServer returns a server in the kubelet's directory of device plugins.
func NewServer(dir, resource string, plugin v1beta1.DevicePluginServer, log *slog.Logger) *Server {
	return &Server{dir: filepath.Clean(dir), resource: resource, plugin: plugin, log: log.With("resource", resource)}
}

// SocketPath returns the socket of a resource. The limit is 107 bytes (unix(7)).
func SocketPath(dir, resource string) string {
	return filepath.Join(dir, "gpuslice-"+strings.ReplaceAll(resource, "/", "_")+".sock")
}

// Run serves until ctx ends, and removes the socket. It waits for a missing directory: the agent
// also works without a kubelet.
func (s *Server) Run(ctx context.Context) {
	var problem logonce.Problem
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		since := time.Now()
		err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(since) > lastPause {
			pause, problem = firstPause, logonce.Problem{}
		}
		problem.Warn(s.log, "serving the device plugin failed; retrying", err)
		if !periodic.Sleep(ctx, pause) {
			return
		}
	}
}

func (s *Server) session(ctx context.Context) (err error) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w (too many open files: raise fs.inotify.max_user_instances)", s.dir, err)
	}
	defer watch.Close()
	// Before the socket exists, so that no event is missed.
	if err := watch.Add(s.dir); err != nil {
		return fmt.Errorf("watch the kubelet's directory of device plugins %s: %w", s.dir, err)
	}
	socket, err := listen(SocketPath(s.dir, s.resource))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, socket.remove()) }()

	listings := newListings()
	server := grpc.NewServer(grpc.StreamInterceptor(listings.intercept))
	v1beta1.RegisterDevicePluginServer(server, s.plugin)
	served := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { served <- server.Serve(socket.listener) })
	err = s.keepRegistered(ctx, watch, socket, served, listings)
	server.Stop() // ends ListAndWatch, for which a graceful stop would wait
	serving.Wait()
	return err
}

// keepRegistered registers with each new kubelet, and again while the kubelet does not follow the devices: on the end
// of an earlier plugin it can end the connection to the one that registered since.
func (s *Server) keepRegistered(ctx context.Context, watch *fsnotify.Watcher, socket *socket, served <-chan error, listings *listings) error {
	kubelet := filepath.Join(s.dir, kubeletSocket)
	pause := firstPause
	registered := false // with the kubelet that made the socket last
	var problem logonce.Problem
	try := time.NewTimer(0)
	defer try.Stop()
	retry := func() {
		try.Reset(pause)
		pause = min(2*pause, lastPause)
	}
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
			case event.Has(fsnotify.Create) && api.OtherPlugin(event.Name):
				s.warnOfOther(event.Name)
			case event.Name == kubelet && event.Has(fsnotify.Create):
				pause, registered = firstPause, false
				try.Reset(0)
			case event.Name == s.dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				return fmt.Errorf("the kubelet's directory of device plugins %s is gone", s.dir)
			case event.Name == socket.path && !socket.there():
				return fmt.Errorf("%s was removed", socket.path)
			}
		case <-listings.ended:
			retry()
		case <-try.C:
			if registered && listings.open() {
				pause = firstPause
				continue
			}
			err := s.register(ctx, kubelet)
			problem.Warn(s.log, "registering with the kubelet failed; retrying", err)
			if registered = err == nil; registered {
				s.log.Info("registered with the kubelet")
				files, _ := filepath.Glob(filepath.Join(s.dir, "*"))
				for _, file := range files {
					if api.OtherPlugin(file) {
						s.warnOfOther(file)
					}
				}
				try.Reset(listTimeout)
				continue
			}
			// Without a kubelet, wait for the event.
			if _, statErr := os.Stat(kubelet); !errors.Is(statErr, fs.ErrNotExist) {
				retry()
			}
		}
	}
}

// listings counts the calls of ListAndWatch, the only call that lasts.
type listings struct {
	count atomic.Int64
	ended chan struct{} // receives a value when the last call ended
}

func newListings() *listings { return &listings{ended: make(chan struct{}, 1)} }

func (l *listings) open() bool { return l.count.Load() > 0 }

func (l *listings) intercept(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	l.count.Add(1)
	defer func() {
		if l.count.Add(-1) == 0 {
			periodic.Wake(l.ended)
		}
	}()
	return handle(server, stream)
}

func (s *Server) warnOfOther(socket string) {
	s.log.Warn("another device plugin offers this node's GPUs; the kubelet uses the one that registered last: keep it off this node",
		"socket", socket)
}

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

// socket detects whether its file was replaced.
type socket struct {
	path     string
	listener *net.UnixListener
	made     os.FileInfo
}

// listen replaces a socket that a killed agent left.
func listen(path string) (*socket, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket of the device plugin: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("create the socket of the device plugin: %w", err)
	}
	l.SetUnlinkOnClose(false) // the file can belong to another process by then
	made, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the socket of the device plugin: %w", err), l.Close())
	}
	return &socket{path, l, made}, nil
}

func (s *socket) there() bool {
	now, err := os.Stat(s.path)
	// Some file systems reuse inode numbers at once.
	return err == nil && os.SameFile(s.made, now) && s.made.ModTime().Equal(now.ModTime())
}

func (s *socket) remove() error {
	if !s.there() {
		return nil
	}
	return os.Remove(s.path)
}
