package nriplugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	nriversion "github.com/containerd/nri/pkg/version"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// faultNode is a runtime and a plugin that something happens to.
type faultNode struct {
	*fixture
	row faultRow
	// second is another plugin, where there is one.
	second *fixture
	// stays is the number of containers that are there all the time.
	stays int
	// A decision waits for hang; known: the kubelet reports names.
	hang  atomic.Pointer[chan struct{}]
	known atomic.Bool
	// shut is the gate that holds something.
	shut *gate
}

func newFaultNode(t *testing.T, row faultRow) *faultNode {
	r := newRuntime(t, "v2.4.2")
	if row.before010 {
		r.proxy.edit(olderNRI(t))
	}
	n := &faultNode{fixture: &fixture{t: t, runtime: r, config: newConfig(t)}, row: row}
	var err error
	n.config.Prepared, err = prepared.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, n.config.Prepared.Write(prepared.Record{UID: claimUID, Namespace: "default", Name: "c", Requests: map[string][]grant.Share{
		"gpu": {{UUID: gpuA, MemoryMiB: faultMiB, CorePercent: faultCores}},
	}}))
	if row.config != nil {
		row.config(n, &n.config)
	}
	n.ledger = n.config.Ledger
	n.start()
	n.settle()
	if row.setUp != nil {
		row.setUp(n)
	}
	return n
}

// faultTry is a creation and what came of it.
type faultTry struct {
	pod  *api.PodSandbox
	ctr  *api.Container
	spec *rspec.Spec
	err  error
}

// try creates a container.
func (n *faultNode) try(s faultShape) faultTry {
	var annotations map[string]string
	if s.granted && !s.claimed {
		annotations = named("main", gpuA, faultMiB, faultCores)
		if n.row.asksNames {
			annotations = map[string]string{gpuapi.AnnotationHAMiAllocated: fmt.Sprintf("%s,NVIDIA,%d,%d:;%s,NVIDIA,1,1:;", gpuA, faultMiB, faultCores, gpuB)}
		}
	}
	ctr := newContainer("main")
	s.change(ctr)
	if s.claimed {
		addName(ctr, claimUID)
	}
	if s.claimed || s.forged {
		addMount(ctr, n.config.Prepared, claimUID)
	}
	pod := newPod("p-"+ctr.Id, annotations)
	create := n.row.create
	if create == nil {
		create = (*faultNode).just
	}
	spec, err := create(n, pod, ctr)
	return faultTry{pod, ctr, spec, err}
}

// outcome ends the fault and returns the container's outcome, and whether the ledger is empty after it.
func (n *faultNode) outcome(tried faultTry) (faultOutcome, error) {
	if n.row.heal != nil {
		n.row.heal(n)
	}
	var dirs []string
	for _, id := range []string{tried.ctr.Id, ledger.CommonID([]string{deviceOf(claimUID).String()})} {
		dirs = append(dirs, n.ledger.Dir(id))
		if n.second != nil {
			dirs = append(dirs, n.second.ledger.Dir(id))
		}
	}
	outcome, err := faultOutcomeOf(tried.spec, tried.err, dirs)
	n.runtime.remove(tried.pod, tried.ctr)
	return outcome, errors.Join(err, n.nothingLeft())
}

// nothingLeft returns an error when the ledger has more than what is there.
func (n *faultNode) nothingLeft() error {
	n.plugin.Wait()
	got := n.dirs()
	if n.second != nil {
		n.second.plugin.Wait()
		got = append(got, n.second.dirs()...)
	}
	if len(got) != n.stays {
		return fmt.Errorf("the ledger has %q, and there are %d containers", got, n.stays)
	}
	return nil
}

func (n *faultNode) just(pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	return n.runtime.create(pod, ctr)
}

// settle returns when the runtime has no synchronisation under way.
func (n *faultNode) settle() { n.runtime.BlockPluginSync().Unblock() }

// openAndAgain opens the gate that is shut, and takes a new plugin.
func openAndAgain(n *faultNode) {
	n.shut.open()
	n.again()
}

// again starts a new plugin on the same ledger. The old one must not come back before
// that, as a process that was killed does not (and NRI's adaptation has a data race
// where a plugin goes while it registers).
func (n *faultNode) again() {
	n.stop()
	n.runtime.proxy.refuse(false)
	n.start()
	n.settle()
}

// olderNRI reports to plugins that the runtime's NRI is 0.8, which has no
// validators: they don't subscribe to them, and the runtime asks none.
func olderNRI(t *testing.T) func([]byte) []byte {
	now := nriversion.GetFromBuildInfo()
	older := "v0.8." + strings.Repeat("9", max(1, len(now)-len("v0.8.")))
	if len(now) != len(older) { // the message has the length in front
		t.Errorf("no version of the length of %q is before 0.10", now)
	}
	return func(sent []byte) []byte { return bytes.ReplaceAll(sent, []byte(now), []byte(older)) }
}

func populateFails(_ *faultNode, c *nriplugin.Config) {
	c.Populate = func(string, ledger.Claim) error { return errPopulate }
}

var errPopulate = errors.New("the library is not installed")

// faultNames is the kubelet's answer for a pod of the matrix.
var faultNames = []grant.ContainerDevices{{Name: "main", Devices: 1}, {Name: "side", Devices: 1}}

// namesHang makes decisions wait for n.hang, deaf to their context.
func namesHang(n *faultNode, c *nriplugin.Config) {
	c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
		<-*n.hang.Load()
		return faultNames, nil
	})
}

func hanging(n *faultNode, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	hang := make(chan struct{})
	n.hang.Store(&hang)
	n.runtime.proxy.refuse(true)
	return n.runtime.create(pod, ctr)
}

// letGo ends the hanging, and connects again: on a slow machine the plugin was cut off.
func letGo(n *faultNode) {
	close(*n.hang.Load())
	n.again()
}

// stopped holds what is sent for as long as the runtime waits.
func (n *faultNode) stopped(g *gate, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	n.runtime.proxy.refuse(true)
	n.shut = g
	g.close()
	return n.runtime.create(pod, ctr)
}

func stoppedBefore(n *faultNode, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	return n.stopped(n.runtime.proxy.toPlugin, pod, ctr)
}

func stoppedAfter(n *faultNode, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	return n.stopped(n.runtime.proxy.toRuntime, pod, ctr)
}

// killed cuts the connection when a gate holds the request, or its answer.
func (n *faultNode) killed(g *gate, pod *api.PodSandbox, ctr *api.Container) (spec *rspec.Spec, err error) {
	n.runtime.proxy.refuse(true)
	n.shut = g
	g.close()
	created := make(chan struct{})
	go func() {
		defer close(created)
		spec, err = n.runtime.create(pod, ctr)
	}()
	<-g.held
	n.runtime.proxy.cut()
	<-created
	return spec, err
}

func killedBefore(n *faultNode, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	return n.killed(n.runtime.proxy.toPlugin, pod, ctr)
}

func killedAfter(n *faultNode, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	return n.killed(n.runtime.proxy.toRuntime, pod, ctr)
}

// absent: the plugin ended, and the runtime has noticed.
func absent(n *faultNode) {
	n.stop()
	n.runtime.remove(newPod("none", nil), newContainer("none"))
}

func absentAfterRestart(n *faultNode) {
	n.stop()
	n.runtime.shutDown()
	n.runtime.start(n.t, "v2.4.2")
}

func connectedTwice(n *faultNode) {
	n.second = connect(n.t, n.runtime, func(c *nriplugin.Config) { c.Prepared = n.config.Prepared })
	n.settle()
}

// syncLost creates a container while a new plugin is synchronised, which comes to no
// end: the request does not reach it.
func syncLost(n *faultNode, pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	absent(n)
	n.shut = n.runtime.proxy.toPlugin
	began := make(chan struct{})
	n.runtime.setOnSync(func() {
		n.runtime.setOnSync(nil)
		n.runtime.proxy.refuse(true)
		n.shut.close()
		close(began)
	})
	n.run()
	<-began
	return n.runtime.create(pod, ctr)
}

// namesUnknown makes the kubelet return names while n.known is set.
func namesUnknown(n *faultNode, c *nriplugin.Config) {
	n.known.Store(true)
	c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
		if !n.known.Load() {
			return nil, errors.New("the kubelet is down")
		}
		return faultNames, nil
	})
}

// unreconciled: a container runs, and its grant is not known.
func unreconciled(n *faultNode) {
	ctr := newContainer("main")
	_, err := n.runtime.create(newPod("stays", twoPositions), ctr)
	require.NoError(n.t, err)
	n.stop()
	require.NoError(n.t, os.RemoveAll(n.ledger.Dir(ctr.Id)))
	delete(ctr.Annotations, gpuapi.AnnotationShares) // as an earlier version created it
	n.known.Store(false)
	n.run()
	require.Eventually(n.t, func() bool { return n.plugin.Reconciled() != nil }, time.Minute, time.Millisecond)
	n.settle()
	n.stays = 1
}
