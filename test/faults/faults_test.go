//go:build faults

package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// fault is a state of the plugin: a row of the matrix, on a node of its own.
type fault struct {
	name string
	// timeout is NRI's plugin_request_timeout, short where every container waits
	// for it; zero is long enough for a slow machine.
	timeout time.Duration
	// noAgent: the node never had one.
	noAgent bool
	// pods are further annotations of the row's pods.
	pods map[string]string
	// together is how many containers meet one occurrence of the fault.
	together int
	// arm brings the state about and returns what ends it.
	arm func(ctx context.Context, n *harness.Node) (heal func() error, err error)
	// around makes the i-th creation of an occurrence happen at its moment; nil: at once.
	around func(ctx context.Context, n *harness.Node, i int, create func())
	// granted and without are what may become of containers with and without a grant.
	granted, without expected
}

func never(context.Context, *harness.Node) (func() error, error) {
	return func() error { return nil }, nil
}

// The state of the rows that have one.
var (
	dying      killed
	connecting unsynchronised
)

var faults = []fault{
	{
		name: "answers in time", together: perPod, arm: never,
		granted: expected{limited: perCell}, without: expected{voided: perCell},
	},
	{
		name: "answers with an error", together: perPod, arm: readOnlyLedger,
		granted: expected{byLedger: perCell},
		// Nothing that it needs for these can fail.
		without: expected{voided: perCell},
	},
	{
		name: "slower than the runtime's timeout", timeout: 200 * time.Millisecond, together: perPod, arm: lockedLedger,
		// On a machine that is slower still, the answer itself is late.
		granted: expected{byDeadline: 1, byLost: 0, byReconcile: 0, bare: 0, voided: 0},
		without: expected{voided: 1, byLost: 0, bare: 0},
	},
	{
		// The request is lost; the runtime drops the plugin, and the next container
		// finds none.
		name: "SIGSTOP", timeout: 300 * time.Millisecond, together: 2, arm: stopped,
		granted: expected{byLost: perCell / 4, bare: 0, voided: 0},
		without: expected{byLost: perCell / 4, bare: 0},
	},
	{
		name: "SIGKILL in the middle of the request", together: 1, arm: startedAgain, around: dying.around,
		granted: expected{byLost: perCell / 4, limited: 0, bare: 0, voided: 0},
		without: expected{byLost: perCell / 4, voided: 0, bare: 0},
	},
	{
		name: "absent from the start", noAgent: true, together: perPod, arm: never,
		granted: expected{voided: 0, bare: 0}, without: expected{bare: perCell},
	},
	{
		name: "absent after a restart of containerd", together: perPod, arm: restarted,
		granted: expected{voided: 0, bare: 0}, without: expected{bare: perCell},
	},
	{
		name: "absent, and its pods require it", noAgent: true, together: perPod, arm: never,
		pods:    map[string]string{"required-plugins.noderesource.dev": `["gpuslice"]`},
		granted: expected{byRequired: perCell}, without: expected{byRequired: perCell},
	},
	{
		name: "connected twice", together: perPod, arm: twice,
		granted: expected{bySecond: perCell}, without: expected{voided: perCell},
	},
	{
		name: "connected and not yet synchronised", timeout: 200 * time.Millisecond, together: perPod, arm: connecting.arm, around: connecting.around,
		granted: expected{byReconcile: perCell / 4, byLost: 0, bare: 0, voided: 0},
		without: expected{voided: perCell / 4, byLost: 0, bare: 0},
	},
}

// readOnlyLedger: no entry can be made, and every grant is refused.
func readOnlyLedger(_ context.Context, n *harness.Node) (func() error, error) {
	dir := filepath.Join(n.StateDir(), "containers")
	heal := func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) }
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		return nil, err
	}
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return nil, errors.Join(err, heal())
	}
	return heal, nil
}

// lockedLedger: every reservation waits until the lock is released.
func lockedLedger(ctx context.Context, n *harness.Node) (func() error, error) {
	unlock, err := lock(n)
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(unlock(), n.WaitConnected(ctx)) }, nil
}

// lock takes the ledger's lock.
func lock(n *harness.Node) (unlock func() error, err error) {
	file, err := os.OpenFile(filepath.Join(n.StateDir(), "lock"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}

// stopped: the process and the connection exist, and the process reads nothing. When it continues, it answers
// a request that has timed out, and finds the connection closed. A new process takes its place and connects
// at once: the stopped one would wait longer each time.
func stopped(ctx context.Context, n *harness.Node) (func() error, error) {
	before := lines(n, cutOff)
	if err := n.Agent.Suspend(ctx); err != nil {
		return nil, err
	}
	return func() error {
		if err := n.Agent.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		if err := logged(ctx, n, cutOff, before+1); err != nil {
			return err
		}
		n.Agent.Kill()
		return n.StartAgent(ctx)
	}, nil
}

// What the agent logs when it has lost its connection, and when its synchronisation failed.
const (
	cutOff       = "NRI connection lost"
	unreconciled = "failed to reconcile the ledger"
)

func startedAgain(ctx context.Context, n *harness.Node) (func() error, error) {
	return func() error {
		n.Agent.Kill()
		return n.StartAgent(ctx)
	}, nil
}

// killed counts the creations during which the agent was killed.
type killed int

// around kills the agent: every other time when the request has reached its socket
// and before it reads it, and else at some moment of the request.
func (k *killed) around(ctx context.Context, n *harness.Node, _ int, create func()) {
	*k++
	agent := n.Agent
	if *k%2 == 0 {
		defer time.AfterFunc(time.Duration(rand.IntN(15000))*time.Microsecond, func() { _ = agent.Signal(syscall.SIGKILL) }).Stop()
		create()
		return
	}
	ctx, created := context.WithCancel(ctx)
	_ = agent.Suspend(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		// A creation that ends without a request shows in the outcomes.
		_ = harness.Until(ctx, 10*time.Second, func(context.Context) error { return requestArrived(agent.PID(), n.NRISocket()) })
		_ = agent.Signal(syscall.SIGKILL)
	}()
	create()
	created()
	<-watched
}

// restarted: containerd is another process than the one that knew the agent.
func restarted(ctx context.Context, n *harness.Node) (func() error, error) {
	n.Agent.Kill()
	n.Containerd.Kill()
	if err := n.Containerd.Start(ctx); err != nil {
		return nil, err
	}
	return func() error { return n.StartAgent(ctx) }, nil
}

// twice: another agent was started beside the node's.
func twice(ctx context.Context, n *harness.Node) (func() error, error) {
	second, err := n.StartSecondAgent(ctx)
	if err != nil {
		return nil, err
	}
	return func() error {
		second.Kill()
		return n.WaitConnected(ctx)
	}, nil
}

// unsynchronised: a new agent connects, and can't reserve claims for the running containers while the ledger
// is locked.
type unsynchronised struct{ failures int }

func (u *unsynchronised) arm(ctx context.Context, n *harness.Node) (func() error, error) {
	n.Agent.Kill()
	unlock, err := lock(n)
	if err != nil {
		return nil, err
	}
	u.failures = lines(n, unreconciled)
	if err := n.LaunchAgent(); err != nil {
		return nil, errors.Join(err, unlock())
	}
	return func() error {
		n.Agent.Kill() // it would wait some seconds before it connects again
		return errors.Join(unlock(), n.StartAgent(ctx))
	}, nil
}

// around creates half of the containers while the agent registers and is
// synchronised, and half when that has failed.
func (u *unsynchronised) around(ctx context.Context, n *harness.Node, i int, create func()) {
	// An agent that does neither shows in the outcomes.
	if i%2 == 0 {
		_ = harness.Until(ctx, 20*time.Second, func(context.Context) error {
			c, err := connection(n.Agent.PID(), n.NRISocket())
			if err == nil {
				c.Close()
			}
			return err
		})
	} else {
		_ = logged(ctx, n, unreconciled, u.failures+1)
	}
	create()
}

// lines counts the lines of the agent's log that have a text.
func lines(n *harness.Node, text string) int {
	data, err := os.ReadFile(n.Agent.LogPath)
	if err != nil {
		return 0
	}
	return strings.Count(string(data), text)
}

// logged waits until the agent's log has a text so many times.
func logged(ctx context.Context, n *harness.Node, text string, times int) error {
	return harness.Until(ctx, time.Minute, func(context.Context) error {
		if lines(n, text) < times {
			return errors.New("the agent has not logged " + text)
		}
		return nil
	})
}
