//go:build root

package limiter_test

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// defect is something that is wrong and not put right yet.
type defect struct {
	reason string
	shows  string // a pattern of what its checks print
}

var (
	byRequest = "the limiter charges what is asked for, the driver takes whole pages"
	overLimit = defect{byRequest, `"\d+" is not less than or equal to "\d+"`}
)

// known has the cases that fail today, by the name of their test. They run like all others, and have to fail as stated
// here: one that passes must be taken out.
var known = map[string]defect{
	"TestKillsNeverExceedTheLimit/in_pages":                     overLimit,
	"TestRaceForTheLast/in_pages":                               overLimit,
	"TestOversubscriptionUnderKills/in_pages":                   overLimit,
	"TestSanitizers/address,undefined":                          overLimit,
	"TestSanitizers/thread":                                     overLimit,
	"TestLimitInFront/in_front":                                 {byRequest, `expected: 0x40000000\n\s+actual  : 0x40200000`},
	"TestLimitInFront/in_front_and_preloaded":                   {byRequest, `expected: 0x40000000\n\s+actual  : 0x40200000`},
	"TestLimitIsExact/pitched_memory_counts_by_its_pitch":       overLimit,
	"TestAccountFollowsTheDriver/own_in_pages":                  {byRequest, `expected: "array 0 2097152"\s+actual  : "array 0 512"`},
	"TestPiecesOfAnySizeStayWithinTheLimit/alloc_of_700_KiB":    overLimit,
	"TestPiecesOfAnySizeStayWithinTheLimit/alloc_of_1500_KiB":   overLimit,
	"TestPiecesOfAnySizeStayWithinTheLimit/alloc_of_2150_KiB":   overLimit,
	"TestPiecesOfAnySizeStayWithinTheLimit/alloc_of_3072_KiB":   overLimit,
	"TestPiecesOfAnySizeStayWithinTheLimit/managed_of_3072_KiB": overLimit,
	"TestPiecesOfAnySizeStayWithinTheLimit/pitch_of_3072_KiB":   overLimit,
	"TestGrowthOfAContextStaysWithinTheLimit":                   {"the limiter charges a context as it is when it is made", overLimit.shows},
}

var came sync.Map // names of tests that got to unlessKnown

// unlessKnown makes checks that have to hold, or, where the test is known to fail, that have to fail so.
func unlessKnown(t *testing.T, checks func(t require.TestingT)) {
	t.Helper()
	came.Store(t.Name(), true)
	defect, is := known[t.Name()]
	if !is {
		checks(t)
		return
	}
	text := failure(checks)
	require.NotEmpty(t, text, "this passes now: take it out of the table of known defects")
	require.Regexp(t, regexp.MustCompile(defect.shows), text, "known is: %s", defect.reason)
	t.Logf("known: %s", defect.reason)
}

// knownButGone are cases of the table that no test is.
func knownButGone() (names []string) {
	for name := range known {
		if _, is := came.Load(name); !is {
			names = append(names, name)
		}
	}
	return names
}

// failure is what the checks complain of; "": of nothing.
func failure(checks func(t require.TestingT)) string {
	var r recorder
	done := make(chan struct{})
	go func() {
		defer close(done)
		checks(&r)
	}()
	<-done
	return strings.Join(r, "\n")
}

type recorder []string

func (r *recorder) Errorf(format string, args ...any) { *r = append(*r, fmt.Sprintf(format, args...)) }

func (r *recorder) FailNow() { runtime.Goexit() }

func TestUnlessKnownTellsAFailure(t *testing.T) {
	require.Empty(t, failure(func(t require.TestingT) { require.Equal(t, 1, 1) }))
	text := failure(func(t require.TestingT) {
		require.LessOrEqual(t, 2, 1)
		require.Equal(t, "not", "reached")
	})
	require.Regexp(t, overLimit.shows, text)
	require.NotContains(t, text, "reached")
}
