package httpserver_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/httpserver"
)

func TestFew(t *testing.T) {
	arrived, leave, panics := make(chan struct{}), make(chan struct{}), false
	h := httpserver.Few(2, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if panics {
			panic(http.ErrAbortHandler)
		}
		arrived <- struct{}{}
		<-leave
	}))
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}
	answers := make(chan int)
	for range 2 {
		go func() { answers <- ask().Code }()
		<-arrived
	}
	w := ask()
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.Contains(t, w.Body.String(), "retry in a second")
	for range 2 {
		leave <- struct{}{}
		assert.Equal(t, http.StatusOK, <-answers)
	}
	panics = true
	for range 3 {
		assert.Panics(t, func() { ask() }, "each has its place again")
	}
}

// always is a listener at which there is always one more, until it is closed.
type always struct{ closed atomic.Bool }

func (*always) Addr() net.Addr { return nil }
func (a *always) Close() error { a.closed.Store(true); return nil }
func (a *always) Accept() (net.Conn, error) {
	if a.closed.Load() {
		return nil, net.ErrClosed
	}
	c, _ := net.Pipe()
	return c, nil
}

// A client with all connections: no more are accepted until one is closed.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := httpserver.Limit(&always{}, 2)
		var open []net.Conn
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				open = append(open, c)
			}
		}()
		synctest.Wait()
		require.Len(t, open, 2)
		require.NoError(t, open[0].Close())
		synctest.Wait()
		require.Len(t, open, 3)
		require.NoError(t, l.Close())
		<-ended
	})
}

// A new connection closes the oldest; a closed connection has no place.
func TestNewest(t *testing.T) {
	l := httpserver.Newest(&always{}, 2)
	accept := func() (inside net.Conn) {
		c, err := l.Accept()
		require.NoError(t, err)
		return c
	}
	isOpen := func(c net.Conn) bool {
		_ = c.SetDeadline(time.Now()) // the other end does not read; a closed pipe has no deadline
		_, err := c.Write([]byte("x"))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	first, second := accept(), accept()
	require.True(t, isOpen(first))
	third := accept()
	assert.False(t, isOpen(first), "the oldest has gone")
	assert.True(t, isOpen(second))
	assert.True(t, isOpen(third))
	_ = first.Close()
	require.NoError(t, third.Close())
	fourth := accept()
	assert.True(t, isOpen(second), "there was a place")
	_ = third.Close()
	fifth := accept()
	assert.False(t, isOpen(second))
	assert.True(t, isOpen(fourth))
	assert.True(t, isOpen(fifth))
	require.NoError(t, l.Close())
	_, err := l.Accept()
	assert.ErrorIs(t, err, net.ErrClosed)
}
