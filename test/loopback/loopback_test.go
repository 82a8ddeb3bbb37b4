package loopback

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A connection with the same port as its source does not keep a program from listening.
func TestFreeAddress(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	for tried := 0; tried < 20; {
		address := FreeAddress(t)
		parsed, err := netip.ParseAddrPort(address)
		require.NoError(t, err)
		require.True(t, parsed.Addr().IsLoopback(), address)

		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(parsed.Port())}}
		connection, err := dialer.Dial("tcp", server.Addr().String())
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, connection.Close())
		tried++
	}
}
