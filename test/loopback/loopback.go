// Package loopback gives tests addresses for programs that listen at a given address.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// FreeAddress is Address for a test.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := Address()
	require.NoError(t, err)
	return address
}

// Address returns a TCP address without a listener. Its IP address is a random one of 127.0.0.0/8: connections to other
// addresses have the source 127.0.0.1, so none of them can take the port before the program listens.
func Address() (string, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
