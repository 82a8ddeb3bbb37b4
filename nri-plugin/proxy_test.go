package nriplugin_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/stretchr/testify/require"

	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// proxy relays connections to the adaptation's socket, so that a test can cut them
// all, as the end of containerd's process does: the adaptation's own Stop leaves
// them open. Its gates hold what is sent, as a process that is stopped does.
type proxy struct {
	toPlugin, toRuntime *gate
	listener            net.Listener
	backend             string
	mu                  sync.Mutex
	open                []net.Conn
	accepted            int // connections so far
	// toPlugins changes what is sent to plugins; nil: nothing.
	toPlugins func([]byte) []byte
	refuses   bool
}

func newProxy(t testing.TB, socket, backend string) *proxy {
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	p := &proxy{listener: listener, backend: backend, toPlugin: newGate(), toRuntime: newGate()}
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
		if p.refusing() {
			front.Close()
			continue
		}
		back, err := net.Dial("unix", p.backend)
		if err != nil {
			front.Close() // no server
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, front, back)
		p.accepted++
		edit := p.toPlugins
		p.mu.Unlock()
		go relay(back, front, p.toRuntime, nil)
		go relay(front, back, p.toPlugin, edit)
	}
}

// relay copies until either end closes, and then closes both.
func relay(to, from net.Conn, through *gate, edit func([]byte) []byte) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		through.pass()
		sent := buffer[:n]
		if edit != nil {
			sent = edit(sent)
		}
		if _, err := to.Write(sent); err != nil {
			return
		}
	}
}

// edit changes what is sent to plugins that connect from now on.
func (p *proxy) edit(change func([]byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toPlugins = change
}

// refuse closes new connections at once, or stops that. A client that is still in
// the queue from before is hung up on first.
func (p *proxy) refuse(on bool) {
	if !on && p.refusing() {
		if last, err := net.Dial("unix", p.listener.Addr().String()); err == nil {
			_, _ = last.Read(make([]byte, 1))
			last.Close()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = on
}

func (p *proxy) refusing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refuses
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

// gate lets everything pass while it is open, and holds it while it is shut.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed: the gate is open
	// held is sent to when something arrives at the shut gate.
	held chan struct{}
}

func newGate() *gate {
	opened := make(chan struct{})
	close(opened)
	return &gate{opened: opened, held: make(chan struct{}, 1)}
}

// close shuts the gate.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened = make(chan struct{})
	select {
	case <-g.held:
	default:
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.opened)
}

func (g *gate) pass() {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	select {
	case <-opened:
		return
	default:
	}
	select {
	case g.held <- struct{}{}:
	default:
	}
	<-opened
}

// synced is embedded by test plugins, to know when the runtime has synchronised them.
type synced struct{ done chan struct{} }

func newSynced() synced { return synced{make(chan struct{})} }

func (s synced) isSynced() <-chan struct{} { return s.done }

func (s synced) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(s.done)
	return nil, nil
}

// startStub connects handlers under the plugin's own name, past its connection logic.
func startStub(t *testing.T, r *runtime, handlers interface{ isSynced() <-chan struct{} }) (stop func()) {
	return startStubAs(t, r, nriplugin.PluginIndex, nriplugin.PluginName, handlers)
}

func startStubAs(t *testing.T, r *runtime, index, name string, handlers interface{ isSynced() <-chan struct{} }) (stop func()) {
	s, err := stub.New(handlers, stub.WithPluginName(name), stub.WithPluginIdx(index),
		stub.WithSocketPath(r.socket), stub.WithOnClose(func() {}), stub.WithFailurePolicy(nriplugin.FailurePolicy()))
	require.NoError(t, err)
	require.NoError(t, s.Start(context.Background()))
	<-handlers.isSynced()
	// The runtime asks it from the moment that it lets creations go on.
	r.BlockPluginSync().Unblock()
	t.Cleanup(s.Stop)
	return s.Stop
}
