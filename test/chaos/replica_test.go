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

// text is of a scheduler's configuration. Its election is short, so that rounds are, and its client uses JSON, so that the proxy can
// change the times in it.
func text(config *kube.SchedulerConfig) (string, error) {
	return config.Connect("@KUBECONFIG@").Elect("5s", "3s", "500ms").Set("application/json", "clientConnection", "contentType").Text()
}

var plugin = kind{
	name: "plugin", schedulerName: "gpuslice-scheduler", lease: "gpuslice-scheduler",
	manifests: []string{"scheduler/scheduler.yaml", "admission/policy.yaml"},
	programs: func(_ *lab, r *replica) ([]program, error) {
		config, err := text(kube.ShippedConfig(kube.PluginConfig))
		if err != nil {
			return nil, err
		}
		path, err := schedulerBinary()
		if err != nil {
			return nil, err
		}
		return []program{{name: "scheduler", path: path, user: account, files: map[string]string{"config.yaml": config},
			args: []string{"--config=@DIR@/config.yaml", "--secure-port=0", "--debug-address="}}}, nil
	},
}

// withExtender is a stock kube-scheduler on each host, with an extender beside it.
var withExtender = kind{
	name: "extender", schedulerName: "default-scheduler", lease: "kube-scheduler",
	manifests: []string{"scheduler/extender.yaml", "admission/policy.yaml"},
	programs: func(l *lab, r *replica) ([]program, error) {
		address := fmt.Sprintf("127.0.0.1:%d", 18200+10*l.number+r.number)
		ours, err := schedulerBinary()
		if err != nil {
			return nil, err
		}
		stock, err := kube.Tool("kube-scheduler")
		if err != nil {
			return nil, err
		}
		config, err := text(kube.ShippedConfig(kube.ExtenderConfig).Ask("http://" + address))
		if err != nil {
			return nil, err
		}
		return []program{
			{name: "extender", path: ours, user: account, args: []string{"extender", "--kubeconfig=@KUBECONFIG@", "--leader-elect=false",
				"--leader-lease=kube-system/kube-scheduler", "--listen=" + address}},
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
