//go:build chaos

package chaos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// proxy is the network between one replica and the API server. It adds the user that the replica is: the replica itself
// uses plain HTTP.
type proxy struct {
	listener net.Listener
	upstream http.RoundTripper
	server   *url.URL
	user     string

	mu     sync.Mutex
	open   chan struct{} // closed while nothing is held back
	late   sync.WaitGroup
	twice  float64       // the part of writes that arrive a second time
	lost   float64       // the part of writes with a lost answer
	skew   time.Duration // of the host's clock: of the times in Leases that its programs write, and of those that they read
	caught func(*http.Request) bool
	hold   chan struct{} // what caught has selected waits for it
}

func newProxy(config *rest.Config, user string) (*proxy, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, upstream: transport, server: server, user: user, open: make(chan struct{})}
	close(p.open)
	go func() { _ = (&http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}).Serve(listener) }()
	return p, nil
}

func (p *proxy) address() string { return "http://" + p.listener.Addr().String() }

// partition holds all traffic back until heal, in both directions. What is held back is not lost.
func (p *proxy) partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// repeat makes a part of the writes arrive twice, and the answers to a part of them get lost.
func (p *proxy) repeat(twice, lost float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.twice, p.lost = twice, lost
}

func (p *proxy) setSkew(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skew = by
}

// catch holds back the next request that is selected, and calls then. It arrives when release is called, also if its
// sender is gone.
func (p *proxy) catch(selected func(*http.Request) bool, then func()) (release func()) {
	hold := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = hold
	p.caught = func(r *http.Request) bool {
		if !selected(r) {
			return false
		}
		p.caught = nil
		then()
		return true
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.caught = nil
		p.mu.Unlock()
		close(hold)
	})
}

// isBinding is for catch.
func isBinding(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/binding")
}

func (p *proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		<-p.gate()
		p.forward(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	p.mu.Lock()
	var hold <-chan struct{}
	if p.caught != nil && p.caught(r) {
		hold = p.hold
	}
	twice, lost, skew := rand.Float64() < p.twice, rand.Float64() < p.lost, p.skew
	p.mu.Unlock()
	if skew != 0 && strings.Contains(r.URL.Path, "/leases") {
		body = skewed(body, skew)
	}
	// What was sent arrives, also if the sender does not wait for it.
	arrives := r.Clone(context.WithoutCancel(r.Context()))
	send := func(w http.ResponseWriter) {
		again := arrives.Clone(arrives.Context())
		again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		p.forward(w, again)
	}
	if hold != nil {
		<-hold
	}
	<-p.gate()
	if twice {
		pause := time.Duration(rand.Int64N(int64(2 * time.Second)))
		p.late.Go(func() {
			time.Sleep(pause)
			send(discard{http.Header{}})
		})
	}
	if lost {
		send(discard{http.Header{}})
		panic(http.ErrAbortHandler) // closes the connection
	}
	send(w)
}

func (p *proxy) forward(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	skew := p.skew
	p.mu.Unlock()
	reads := skew != 0 && strings.Contains(r.URL.Path, "/leases")
	reverse := httputil.ReverseProxy{
		Transport: p.upstream, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(p.server)
			r.Out.Header.Set("Impersonate-User", p.user)
			if reads {
				r.Out.Header.Set("Accept", "application/json")
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if !reads {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			body = skewed(body, -skew)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	defer func() { // in a goroutine of ours there is no server that recovers
		if e := recover(); e != nil {
			if err, is := e.(error); !is || !errors.Is(err, http.ErrAbortHandler) {
				panic(e)
			}
			if _, discarded := w.(discard); !discarded {
				panic(e)
			}
		}
	}()
	reverse.ServeHTTP(&gated{w, p}, r)
}

// gated holds answers back too.
type gated struct {
	http.ResponseWriter
	proxy *proxy
}

func (g *gated) Write(b []byte) (int, error) {
	<-g.proxy.gate()
	return g.ResponseWriter.Write(b)
}

func (g *gated) Unwrap() http.ResponseWriter { return g.ResponseWriter }

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

var leaseTime = regexp.MustCompile(`("(?:renewTime|acquireTime)":")([^"]+)"`)

// skewed is a Lease as a replica with another clock writes it; by the opposite time, as it reads one. The extender compares the
// times with its clock, which is that of the kube-scheduler on its host. No other time of a replica is read by another one.
func skewed(body []byte, by time.Duration) []byte {
	return leaseTime.ReplaceAllFunc(body, func(match []byte) []byte {
		parts := leaseTime.FindSubmatch(match)
		at, err := time.Parse(time.RFC3339Nano, string(parts[2]))
		if err != nil {
			return match
		}
		return []byte(string(parts[1]) + at.Add(by).UTC().Format("2006-01-02T15:04:05.000000Z") + `"`)
	})
}
