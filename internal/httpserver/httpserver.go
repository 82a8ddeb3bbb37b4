// Package httpserver limits the resources that clients of an open port can use.
package httpserver

import (
	"container/list"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// Connections is the limit of a read-only port; others wait.
	Connections = 64
	// InFlight is the limit of concurrent requests of one kind.
	InFlight = 8
)

// Limit returns a listener with a limit of open connections; others wait.
func Limit(l net.Listener, connections int) net.Listener {
	return netutil.LimitListener(l, connections)
}

// Newest returns a listener with a limit of open connections: a new one closes the oldest. So a
// client with many connections can't block others, such as a kubelet. Use it for short responses.
func Newest(l net.Listener, connections int) net.Listener {
	return &newest{Listener: l, most: connections}
}

type newest struct {
	net.Listener
	most int

	mu   sync.Mutex
	open list.List
}

func (n *newest) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open.Len() >= n.most {
		_ = n.open.Remove(n.open.Front()).(net.Conn).Close()
	}
	return &placed{Conn: c, in: n, place: n.open.PushBack(c)}, nil
}

type placed struct {
	net.Conn
	in    *newest
	place *list.Element
}

func (p *placed) Close() error {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.in.open.Remove(p.place)
	return p.Conn.Close()
}

// patience limits the time in which a client reads a response.
const patience = 30 * time.Second

// Few limits concurrent requests of the handler; others get a "retry later" response.
func Few(most int, h http.Handler) http.Handler {
	places := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
			h.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many concurrent requests: retry in a second", http.StatusServiceUnavailable)
		}
	})
}

// Check returns a handler for probes: it answers "ok", or 503 with the error of check, which can be nil.
func Check(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if check != nil {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	}
}
