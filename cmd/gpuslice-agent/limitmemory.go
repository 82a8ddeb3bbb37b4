package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/oci/native"
)

// hookPatience is longer than the hook waits.
const hookPatience = 30 * time.Second

// listenForHooks makes the socket of the hook that sets the driver's memory limits. Only root can connect to it.
func listenForHooks(stateDir string) (net.Listener, error) {
	path := filepath.Join(stateDir, native.SocketName)
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	var l net.Listener
	if err == nil {
		l, err = net.Listen("unix", path)
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the hook of the driver's memory limits: %w", err)
	}
	return l, nil
}

// serveHooks sets the limits that hooks request until ctx ends.
func serveHooks(ctx context.Context, l net.Listener, d native.Driver, log *slog.Logger) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Error("containers with the driver's memory limits are refused: accepting their hooks failed", "error", err)
			periodic.Sleep(ctx, time.Second)
			continue
		}
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(hookPatience))
			reply := native.Reply{Error: "the other end of the socket is not root"}
			if fromRoot(c) {
				reply = native.Answer(ctx, d, c)
			}
			if reply.Error != "" {
				log.Warn("the driver's memory limits were not set", "reason", reply.Error)
			}
			_ = json.NewEncoder(c).Encode(reply) // the hook refuses the container without an answer
		}()
	}
}

func fromRoot(c net.Conn) bool {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return controlErr == nil && err == nil && (peer.Uid == 0 || peer.Uid == uint32(os.Geteuid()))
}
