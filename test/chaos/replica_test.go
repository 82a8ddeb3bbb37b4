//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// kind is how a replica schedules.
type kind struct {
	name, schedulerName, lease string
	manifests                  []string // of install/
	// programs are a replica's, in the order of their start.
	programs func(l *lab, r *replica) ([]program, error)
}

type program struct {
	name, path string
	user       string
	args       []string // "@KUBECONFIG@": that of the user through the proxy
	files      map[string]string
}

const account = "system:serviceaccount:kube-system:gpuslice-scheduler"

// election is short, so that rounds are.
const election = `leaderElection:
  leaderElect: true
  resourceNamespace: kube-system
  leaseDuration: 5s
  renewDeadline: 3s
  retryPeriod: 500ms
`

var plugin = kind{
	name: "plugin", schedulerName: "gpuslice-scheduler", lease: "gpuslice-scheduler",
	manifests: []string{"scheduler/scheduler.yaml", "admission/policy.yaml"},
	programs: func(_ *lab, r *replica) ([]program, error) {
		root, err := harness.Repository()
		if err != nil {
			return nil, err
		}
		shipped, err := os.ReadFile(filepath.Join(root, "install", "scheduler", "config.yaml"))
		if err != nil {
			return nil, err
		}
		text := strings.Replace(string(shipped), "leaderElection:\n  leaderElect: true\n  resourceNamespace: kube-system\n", election, 1)
		if !strings.Contains(text, "leaseDuration") {
			return nil, fmt.Errorf("install/scheduler/config.yaml has no leaderElection as it is expected here")
		}
		// As JSON, so that the proxy can change the times in it.
		text = strings.Replace(text, "application/vnd.kubernetes.protobuf", "application/json", 1)
		text = strings.Replace(text, "clientConnection:\n", "clientConnection:\n  kubeconfig: @KUBECONFIG@\n", 1)
		path, err := schedulerBinary()
		if err != nil {
			return nil, err
		}
		return []program{{name: "scheduler", path: path, user: account, files: map[string]string{"config.yaml": text},
			args: []string{"--config=@DIR@/config.yaml", "--secure-port=0", "--debug-address="}}}, nil
	},
}

// withExtender is a stock kube-scheduler on each host, with an extender beside it.
var withExtender = kind{
	name: "extender", schedulerName: "default-scheduler", lease: "kube-scheduler",
	manifests: []string{"scheduler/extender.yaml", "admission/policy.yaml"},
	programs: func(_ *lab, r *replica) ([]program, error) {
		port := 18200 + r.number
		ours, err := schedulerBinary()
		if err != nil {
			return nil, err
		}
		stock, err := kube.Tool("kube-scheduler")
		if err != nil {
			return nil, err
		}
		config := `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "@KUBECONFIG@", qps: 5000, burst: 10000, contentType: application/json}
` + election + `  resourceName: kube-scheduler
extenders:
- urlPrefix: http://127.0.0.1:` + fmt.Sprint(port) + `
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  preemptVerb: preempt
  weight: 5
  nodeCacheCapable: true
  httpTimeout: 30s
  managedResources:
  - {name: nvidia.com/gpu}
  - {name: nvidia.com/gpumem, ignoredByScheduler: true}
  - {name: nvidia.com/gpumem-percentage, ignoredByScheduler: true}
  - {name: nvidia.com/gpucores, ignoredByScheduler: true}
`
		return []program{
			{name: "extender", path: ours, user: account, args: []string{"extender", "--kubeconfig=@KUBECONFIG@", "--leader-elect=false",
				"--leader-lease=kube-system/kube-scheduler", fmt.Sprintf("--listen=127.0.0.1:%d", port)}},
			{name: "kube-scheduler", path: stock, user: kube.StockScheduler.Name, files: map[string]string{"config.yaml": config},
				args: []string{"--config=@DIR@/config.yaml", "--secure-port=0", "--pod-max-in-unschedulable-pods-duration=30s"}},
		}, nil
	},
}

func schedulerBinary() (string, error) {
	if *binary != "" {
		return *binary, nil
	}
	return harness.Artefact("bin", "gpuslice-scheduler")
}

// replica is one host of the scheduler. Programs that end are started again, as the kubelet does.
type replica struct {
	number  int
	host    string
	dir     string
	proxies map[string]*proxy // by program
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu        sync.Mutex
	processes map[string]*harness.Process
	starts    int
}

func (l *lab) newReplica(ctx context.Context, number int) (*replica, error) {
	r := &replica{number: number, host: fmt.Sprintf("chaos-%d", number), proxies: map[string]*proxy{}, processes: map[string]*harness.Process{}}
	r.dir = filepath.Join(l.cluster.Dir, r.host)
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	programs, err := l.kind.programs(l, r)
	if err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(ctx)
	for _, p := range programs {
		if r.proxies[p.name], err = newProxy(l.admin, p.user); err != nil {
			return nil, err
		}
		kubeconfig := filepath.Join(r.dir, p.name+".kubeconfig")
		if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
`, r.proxies[p.name].address()), 0o600); err != nil {
			return nil, err
		}
		replace := strings.NewReplacer("@KUBECONFIG@", kubeconfig, "@DIR@", r.dir)
		for name, text := range p.files {
			if err := os.WriteFile(filepath.Join(r.dir, name), []byte(replace.Replace(text)), 0o600); err != nil {
				return nil, err
			}
		}
		// A name of its own, by which holders of Leases are known.
		args := []string{"--uts", "sh", "-c", `hostname "$0" && exec "$@"`, r.host, p.path}
		for _, arg := range p.args {
			args = append(args, replace.Replace(arg))
		}
		r.tasks.Go(func() { r.keep(l.cluster.Dir, p.name, args) })
	}
	return r, nil
}

// keep runs a program until the replica is closed.
func (r *replica) keep(dir, name string, args []string) {
	for r.ctx.Err() == nil {
		p, err := harness.StartProcess(dir, r.host+"-"+name, nil, "unshare", args...)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.processes[name] = p
		r.starts++
		r.mu.Unlock()
		select {
		case <-r.ctx.Done():
			_ = p.Signal(syscall.SIGCONT)
			p.Kill()
			return
		case <-p.Exited():
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (r *replica) close() {
	for _, p := range r.proxies {
		p.heal()
	}
	r.cancel()
	r.tasks.Wait()
	for _, p := range r.proxies {
		_ = p.listener.Close()
	}
}

func (r *replica) each(do func(*harness.Process) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.processes {
		if err := do(p); err != nil {
			return err
		}
	}
	return nil
}

func (r *replica) freeze(ctx context.Context) error {
	return r.each(func(p *harness.Process) error { return p.Suspend(ctx) })
}

func (r *replica) thaw() error {
	return r.each(func(p *harness.Process) error { return p.Signal(syscall.SIGCONT) })
}

func (r *replica) kill() error {
	return r.each(func(p *harness.Process) error { p.Kill(); return nil })
}
