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

// What changes nothing is not told again, and an error doesn't end it.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	generate := func(_ context.Context, out io.Writer) error {
		calls++
		switch calls {
		case 1, 2, 5:
			fmt.Fprintln(out, "wrote")
		case 3, 4:
			return errors.New("the driver is away")
		default:
			cancel()
		}
		return nil
	}
	var out, errs bytes.Buffer
	require.NoError(t, watch(ctx, time.Millisecond, generate, &out, &errs))
	require.Equal(t, "wrote\nwrote\n", out.String())
	require.Equal(t, "gpuslice: the driver is away\n", errs.String())
}
