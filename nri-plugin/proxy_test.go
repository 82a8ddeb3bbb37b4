package nriplugin_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy relays connections to the adaptation's socket, so that a test can cut them
// all, as the end of containerd's process does: the adaptation's own Stop leaves
// them open.
type proxy struct {
	listener net.Listener
	backend  string
	mu       sync.Mutex
	open     []net.Conn
	accepted int // connections so far
}

func newProxy(t testing.TB, socket, backend string) *proxy {
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	p := &proxy{listener: listener, backend: backend}
	t.Cleanup(func() { listener.Close() })
	go p.accept()
	return p
}

func (p *proxy) accept() {
	for {
		front, err := p.listener.Accept()
		if err != nil {
			return
		}
		back, err := net.Dial("unix", p.backend)
		if err != nil {
			front.Close() // nobody at home
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, front, back)
		p.accepted++
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{front, back}, {back, front}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1])
				pair[0].Close()
			}()
		}
	}
}

// cut breaks every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

// connections is how many there were so far.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}
