package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Equal output is printed once, and an error does not end the watch.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	generate := func(_ context.Context, out io.Writer) error {
		calls++
		switch calls {
		case 1, 2, 5:
			fmt.Fprintln(out, "wrote")
		case 3, 4:
			return errors.New("no driver")
		default:
			cancel()
		}
		return nil
	}
	var out, errs bytes.Buffer
	require.NoError(t, watch(ctx, time.Millisecond, generate, &out, &errs))
	require.Equal(t, "wrote\nwrote\n", out.String())
	require.Equal(t, "gpuslice: no driver\n", errs.String())
}
