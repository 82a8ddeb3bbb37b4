// Package httpdoor bounds what strangers take of a program through a port that anybody may reach.
package httpserver

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// Connections are open at the same time to a port that only tells; who comes then waits until one is closed.
	Connections = 64
	// InFlight are the requests of one kind that are answered at the same time.
	InFlight = 8
)

// Limit is the listener with at most so many connections open at the same time.
func Limit(l net.Listener, connections int) net.Listener {
	return netutil.LimitListener(l, connections)
}

// Newest is the listener with at most so many connections open at the same time; who comes then takes the place of the one
// that has been open the longest. So nobody who opens many keeps others out, as he does with Limit: it is for ports whose
// answers are short, and on which somebody relies, such as a kubelet.
func Newest(l net.Listener, connections int) net.Listener {
	return &newest{Listener: l, most: connections}
}

type newest struct {
	net.Listener
	most int

	mu   sync.Mutex
	open list.List // of net.Conn, the oldest first
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

// placed is a connection that has one of the places.
type placed struct {
	net.Conn
	in    *newest
	place *list.Element
}

func (p *placed) Close() error {
	p.in.mu.Lock()
	p.in.open.Remove(p.place) // it may have lost it
	p.in.mu.Unlock()
	return p.Conn.Close()
}

// patience is how long one who is answered may take to read it: he has a place that others want.
const patience = 30 * time.Second

// Few lets at most so many requests through to the handler at the same time; who comes then is told to come again.
func Few(most int, h http.Handler) http.Handler {
	places := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience)) // a test's recorder has none
			h.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests of this kind are being answered: come again in a second", http.StatusServiceUnavailable)
		}
	})
}
