package nriplugin_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
)

var manyClaims = flag.Int("claims", 150, "number of ResourceClaims of TestManyResourceClaims")

// agentEnv makes the test's binary an agent, with the directory of its state and of the runtime's socket.
const agentEnv = "NRI_TEST_AGENT"

func agentConfig(dir string) (nriplugin.Config, error) {
	store, err := ledger.Open(dir)
	if err != nil {
		return nriplugin.Config{}, err
	}
	c := configOf(store)
	gpus := c.GPUs()
	for uuid, gpu := range gpus {
		gpu.Replicas = 100
		gpus[uuid] = gpu
	}
	c.Populate = func(dir string, claim ledger.Claim) error { return oci.Populate(dir, claim, c.Settings()) }
	c.Prepared, err = prepared.Open(dir)
	return c, err
}

// agentMain prints a line when the plugin is ready, and runs until it is killed.
func agentMain(dir string) error {
	c, err := agentConfig(dir)
	if err != nil {
		return err
	}
	c.RefusedChanged = nil
	plugin, err := nriplugin.New(c)
	if err != nil {
		return err
	}
	go func() {
		for plugin.Ready() != nil {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("ready")
	}()
	return plugin.Run(context.Background(), filepath.Join(dir, "socket"))
}

// claimedNode has containers with ResourceClaims, and an agent in a process that is killed.
type claimedNode struct {
	t       *testing.T
	random  *rand.Rand
	runtime *runtime
	dir     string
	agent   *exec.Cmd
	ledger  *ledger.Ledger
	gpus    map[string]grant.GPU
	store   *prepared.Store
	// live are the containers that have a share, by the UID of the ResourceClaim.
	live    map[string]map[string]*placedContainer
	records map[string]prepared.Record
	kills   int
	joined  int
}

type placedContainer struct {
	pod *api.PodSandbox
	ctr *api.Container
}

func newClaimedNode(t *testing.T) *claimedNode {
	n := &claimedNode{t: t, random: rand.New(rand.NewPCG(7, 11)), runtime: newRuntime(t, "v2.4.2"), dir: t.TempDir(), live: map[string]map[string]*placedContainer{}, records: map[string]prepared.Record{}}
	c, err := agentConfig(n.dir)
	require.NoError(t, err)
	n.ledger, n.store, n.gpus = c.Ledger, c.Prepared, c.GPUs()
	require.NoError(t, os.Symlink(n.runtime.socket, filepath.Join(n.dir, "socket")))
	n.startAgent()
	t.Cleanup(n.killAgent)
	return n
}

func (n *claimedNode) startAgent() {
	self, err := os.Executable()
	require.NoError(n.t, err)
	n.agent = exec.Command(self)
	n.agent.Env = append(os.Environ(), agentEnv+"="+n.dir)
	n.agent.Stderr = os.Stderr
	out, err := n.agent.StdoutPipe()
	require.NoError(n.t, err)
	require.NoError(n.t, n.agent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(n.t, err)
	require.Equal(n.t, "ready\n", line)
	n.runtime.BlockPluginSync().Unblock() // the runtime sends nothing to a plugin before it is in its list
}

func (n *claimedNode) killAgent() {
	_ = n.agent.Process.Kill() // it has ended if it was killed already
	_ = n.agent.Wait()
}

// prepare writes the record of a new ResourceClaim.
func (n *claimedNode) prepare(number int) string {
	uid := fmt.Sprintf("%08d-0000-4000-8000-000000000000", number)
	share := grant.Share{UUID: []string{gpuA, gpuB}[n.random.IntN(2)], MemoryMiB: int64(1 + n.random.IntN(900)), CorePercent: n.random.IntN(2)}
	r := prepared.Record{UID: uid, Namespace: "default", Name: "c", Requests: map[string][]grant.Share{"gpu": {share}}}
	require.NoError(n.t, n.store.Write(r))
	n.records[uid], n.live[uid] = r, map[string]*placedContainer{}
	return uid
}

// create makes a container of a pod, which the agent can miss: then it has no GPU, and is removed.
func (n *claimedNode) create(uid string) {
	pod, ctr := newPod(fmt.Sprint("p", n.random.IntN(3), "-", uid), nil), withClaim(n.store, uid)
	ctr.Name = fmt.Sprint("c", n.random.IntN(3))
	for _, other := range n.live[uid] {
		if other.pod.Name == pod.Name && other.ctr.Name == ctr.Name {
			return // it has not ended
		}
	}
	spec, err := n.runtime.create(pod, ctr)
	if err != nil {
		return
	}
	memory, limited := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
	if len(gpuNodes(spec)) == 0 {
		require.Zero(n.t, limited)
		n.runtime.remove(pod, ctr)
		return
	}
	share := n.records[uid].Requests["gpu"][0]
	require.Equal(n.t, fmt.Sprintf("%dm", share.MemoryMiB), memory)
	if len(n.live[uid]) > 0 {
		n.joined++
	}
	n.live[uid][ctr.Id] = &placedContainer{pod, ctr}
}

func (n *claimedNode) end(uid string, all bool) {
	for id, c := range n.live[uid] {
		if n.random.IntN(2) == 0 {
			n.runtime.stop(c.pod, c.ctr)
		}
		n.runtime.remove(c.pod, c.ctr)
		delete(n.live[uid], id)
		if !all {
			return
		}
	}
}

func (n *claimedNode) unprepare(uid string) {
	require.NoError(n.t, n.store.Remove(uid))
	delete(n.records, uid)
}

// differences compares the ledger, its directories and the limits with what runs.
func (n *claimedNode) differences() (all []string) {
	differ := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	snapshot, err := n.ledger.Snapshot(context.Background())
	require.NoError(n.t, err)
	want := map[string]ledger.Usage{}
	entries := map[string]ledger.Entry{}
	for _, e := range snapshot.Entries {
		entries[e.ContainerID] = e
	}
	expected := 0
	for uid, live := range n.live {
		id := ledger.CommonID([]string{uid + ".gpu"})
		e, there := entries[id]
		if len(live) == 0 {
			if there {
				differ("%s is in the ledger (%s), and nothing runs", uid, e.State)
			}
			continue
		}
		expected++
		if !there || e.State != ledger.StateActive || len(e.Members) != len(live) {
			differ("%s has %d containers, and the ledger has %v", uid, len(live), e)
			continue
		}
		for _, m := range e.Members {
			if c := live[m.ContainerID]; c == nil || c.pod.Uid != m.PodUID || c.ctr.Name != m.Container {
				differ("%s: container %s does not run", uid, m.ContainerID)
			}
		}
		limits, err := limiter.ReadLimitsOf(n.ledger.Dir(id), id)
		share := e.Shares[0]
		if err != nil || len(limits.Devices) != 1 || limits.Devices[0].MemoryLimitBytes != uint64(share.MemoryMiB)<<20 || limits.Devices[0].CorePercent != uint32(share.CorePercent) {
			differ("%s: limits %v of %v: %v", uid, limits, e.Shares, err)
		}
		if r, is := n.records[uid]; is && r.Requests["gpu"][0] != share {
			differ("%s: the ledger has %v of %v", uid, share, r)
		}
		u := want[share.UUID]
		want[share.UUID] = ledger.Usage{MemoryMiB: u.MemoryMiB + share.MemoryMiB, CorePercent: u.CorePercent + share.CorePercent, Replicas: u.Replicas + 1}
	}
	if len(entries) != expected {
		differ("%d claims with containers, and %d entries", expected, len(entries))
	}
	for uuid := range n.gpus {
		if want[uuid] != snapshot.GPUs[uuid] {
			differ("GPU %s: %v, and the ledger has %v", uuid, want[uuid], snapshot.GPUs[uuid])
		}
	}
	return all
}

// Many ResourceClaims, each with several containers of several pods that come and go, while the agent is killed: the
// ledger has what runs, each claim once, and no container has a GPU without the limits of its ResourceClaim.
// By hand: go test ./nri-plugin -run TestManyResourceClaims -claims 10000
func TestManyResourceClaims(t *testing.T) {
	const most = 60 // at a time
	n := newClaimedNode(t)
	made := 0
	var open []string
	for made < *manyClaims || len(open) > 0 {
		killed := make(chan struct{})
		kill := n.random.IntN(25) == 0
		if kill {
			agent := n.agent
			time.AfterFunc(time.Duration(n.random.IntN(1500))*time.Microsecond, func() { _ = agent.Process.Kill(); close(killed) })
		}
		for range 1 + n.random.IntN(4) {
			switch i, step := 0, n.random.IntN(10); {
			case made < *manyClaims && (len(open) == 0 || len(open) < most && step < 3):
				open = append(open, n.prepare(made))
				made++
				n.create(open[len(open)-1])
			case len(open) == 0:
			case step < 6:
				n.create(open[n.random.IntN(len(open))])
			case step < 8:
				n.end(open[n.random.IntN(len(open))], false)
			default: // its pods end; sometimes it is unprepared before, as after a forced deletion
				i = n.random.IntN(len(open))
				uid := open[i]
				early := n.random.IntN(4) == 0
				if early {
					n.unprepare(uid)
					n.create(uid)
				}
				n.end(uid, true)
				if !early {
					n.unprepare(uid)
				}
				open = append(open[:i], open[i+1:]...)
			}
		}
		if kill {
			<-killed
			n.killAgent()
			n.kills++
			n.startAgent()
			require.Empty(t, n.differences(), "after %d claims and %d kills", made, n.kills)
		}
	}
	require.Empty(t, n.differences())
	entries, err := os.ReadDir(filepath.Dir(n.ledger.Dir("x")))
	require.NoError(t, err)
	require.Empty(t, entries)
	require.NotZero(t, n.joined)
	t.Logf("%d ResourceClaims, %d containers joined, %d kills, 0 differences", made, n.joined, n.kills)
}
