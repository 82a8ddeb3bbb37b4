package nriplugin_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// faultsPerCell is how many containers each cell of the matrix tries, each on a
// node of its own, side by side.
const faultsPerCell = 50

// The runtime's patience: where nothing waits for its end, and where every
// container does.
const (
	longTimeout = 5 * time.Minute
	lossTimeout = 250 * time.Millisecond
)

// faultRow is a state of the plugin.
type faultRow struct {
	name string
	// before010 is a runtime of before NRI 0.10, which has no validators.
	before010 bool
	// timeout is the runtime's patience with a creation; zero is longTimeout.
	timeout time.Duration
	// asksNames: only the kubelet has the names of the containers of the grants.
	asksNames bool
	config    func(*faultNode, *nriplugin.Config)
	// setUp brings about a state that stays.
	setUp func(*faultNode)
	// create creates a container in a state that passes; nil: just so. heal ends
	// the state, when the runtime's patience is long again.
	create func(*faultNode, *api.PodSandbox, *api.Container) (*rspec.Spec, error)
	heal   func(*faultNode)
	// granted and without are the outcomes of containers with and without a grant.
	granted, without []faultOutcome
}

var faultRows = []faultRow{
	{name: "answers in time", granted: only(limited), without: only(voided)},
	{name: "answers with an error", config: populateFails, granted: only(byError), without: only(voided)},
	{
		// A machine that is slower still loses the answer.
		name: "slower than the runtime's timeout", timeout: time.Second, asksNames: true, config: namesHang, create: hanging, heal: letGo,
		granted: []faultOutcome{byDeadline, byLost}, without: []faultOutcome{voided, byLost},
	},
	{
		name: "stopped before it reads the request", timeout: lossTimeout, create: stoppedBefore, heal: openAndAgain,
		granted: only(byLost), without: only(byLost),
	},
	{
		name: "stopped before its answer is sent", timeout: lossTimeout, create: stoppedAfter, heal: openAndAgain,
		granted: only(byLost), without: only(byLost),
	},
	{
		name: "killed before it reads the request", create: killedBefore, heal: openAndAgain,
		granted: only(byLost), without: only(byLost),
	},
	{
		name: "killed before its answer is sent", create: killedAfter, heal: openAndAgain,
		granted: only(byLost), without: only(byLost),
	},
	{
		name: "absent from the start", setUp: absent,
		granted: []faultOutcome{voided, bare}, without: only(bare),
	},
	{
		name: "absent after a restart of the runtime", setUp: absentAfterRestart,
		granted: []faultOutcome{voided, bare}, without: only(bare),
	},
	{name: "connected twice", setUp: connectedTwice, granted: only(bySecond), without: only(voided)},
	{
		name: "connected, its synchronisation lost", timeout: lossTimeout, create: syncLost, heal: openAndAgain,
		granted: []faultOutcome{voided, bare}, without: only(bare),
	},
	{
		name: "connected, its synchronisation failed", config: namesUnknown, setUp: unreconciled,
		granted: only(byReconcile), without: only(voided),
	},

	{
		name: "stopped before it reads the request, no validators", before010: true, timeout: lossTimeout, create: stoppedBefore, heal: openAndAgain,
		granted: []faultOutcome{voided, bare}, without: only(bare),
	},
	{
		name: "killed before its answer is sent, no validators", before010: true, create: killedAfter, heal: openAndAgain,
		granted: []faultOutcome{voided, bare}, without: only(bare),
	},
}

func only(o faultOutcome) []faultOutcome { return []faultOutcome{o} }

// Every state of the plugin times every kind of container: no GPU, or the GPU with
// its limits. test/faults does the same to a real containerd.
func TestFaultMatrix(t *testing.T) {
	t.Cleanup(nriplugin.SetReconcilePause(time.Hour))
	for _, row := range faultRows {
		t.Run(row.name, func(t *testing.T) {
			if row.before010 {
				t.Cleanup(nriplugin.NoFailurePolicy())
			}
			setRequestTimeout(t, longTimeout)
			nodes := make([]*faultNode, faultsPerCell)
			onAll := func(t *testing.T, do func(i int)) {
				var wg sync.WaitGroup
				for i := range nodes {
					wg.Go(func() { do(i) })
				}
				wg.Wait()
				if t.Failed() {
					t.FailNow()
				}
			}
			onAll(t, func(i int) { nodes[i] = newFaultNode(t, row) })
			for _, s := range faultShapes {
				t.Run(s.name, func(t *testing.T) {
					var cell faultTally
					if row.timeout > 0 {
						adaptation.SetPluginRequestTimeout(row.timeout)
					}
					tried := make([]faultTry, len(nodes))
					onAll(t, func(i int) { tried[i] = nodes[i].try(s) })
					adaptation.SetPluginRequestTimeout(longTimeout)
					onAll(t, func(i int) { cell.add(nodes[i].outcome(tried[i])) })
					cell.check(t, s, row)
				})
			}
		})
	}
}

// check compares a cell with what its row expects.
func (c *faultTally) check(t *testing.T, s faultShape, row faultRow) {
	t.Log(c)
	require.NoError(t, errors.Join(c.errs...))
	want := row.without
	switch {
	case s.claimed && row.asksNames: // only HAMi's positions need the kubelet's names
		want = append(only(limited), row.granted...)
	case s.granted:
		want = row.granted
	case s.forged && slices.Contains(row.without, voided):
		want = append(only(byRecord), slices.DeleteFunc(slices.Clone(row.without), func(o faultOutcome) bool { return o == voided })...)
	}
	total := 0
	for _, o := range want {
		total += c.counts[o]
	}
	require.Equal(t, faultsPerCell, total, "%s; and all must be of %q", c, want)
}
