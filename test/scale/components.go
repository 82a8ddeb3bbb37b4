package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

const extenderAddress = "127.0.0.1:18181"

// schedulerProcess binds by gpuslice-scheduler, with the configuration that is shipped, but for a field.
func schedulerProcess(value any, path ...any) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		config := kube.ShippedConfig(kube.PluginConfig)
		if len(path) > 0 {
			config.Set(value, path...)
		}
		return l.process(ctx, "gpuslice-scheduler", config)
	}
}

// stockWithExtender binds by the stock kube-scheduler, which asks our extender, with the configuration that is shipped, but for a
// field.
func stockWithExtender(value any, path ...any) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		stop, err := l.startExtender(ctx)
		if err != nil {
			return err
		}
		defer stop()
		config := kube.ShippedConfig(kube.ExtenderConfig).Ask("http://" + extenderAddress)
		if len(path) > 0 {
			config.Set(value, path...)
		}
		return l.process(ctx, "kube-scheduler", config)
	}
}

// process runs a scheduler with that configuration until ctx ends.
func (l *lab) process(ctx context.Context, name string, config *kube.SchedulerConfig) error {
	kubeconfig, err := l.cluster.Kubeconfig(kube.Admin)
	if err != nil {
		return err
	}
	text, err := config.Connect(kubeconfig).NoElection().Text()
	if err != nil {
		return err
	}
	file := filepath.Join(l.cluster.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	path, err := program(name)
	if err != nil {
		return err
	}
	env := []string{}
	if name == "gpuslice-scheduler" {
		env = append(env, "GOGC=200") // as in its Deployment
	}
	p, err := harness.StartProcess(l.cluster.Dir, name, env, path, "--config="+file, "--secure-port=0")
	if err != nil {
		return err
	}
	stop := l.measured(p)
	select {
	case <-ctx.Done():
		return stop()
	case <-p.Exited():
		return fmt.Errorf("%s has ended:\n%s", name, p.LogTail(20))
	}
}

func program(name string) (string, error) {
	if name == "gpuslice-scheduler" {
		return harness.Artefact("bin", name)
	}
	return kube.Tool(name)
}

func (l *lab) startExtender(ctx context.Context) (stop func(), err error) {
	kubeconfig, err := l.cluster.Kubeconfig(kube.Admin)
	if err != nil {
		return nil, err
	}
	path, err := harness.Artefact("bin", "gpuslice-scheduler")
	if err != nil {
		return nil, err
	}
	p, err := harness.StartProcess(l.cluster.Dir, "extender", nil, path, "extender", "--kubeconfig="+kubeconfig,
		"--leader-elect=false", "--listen="+extenderAddress)
	if err != nil {
		return nil, err
	}
	end := l.measured(p)
	stop = func() { _ = end() }
	err = harness.Until(ctx, time.Minute, func(context.Context) error {
		response, err := http.Get("http://" + extenderAddress + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("the extender is not ready: %w\n%s", err, p.LogTail(20))
	}
	return stop, nil
}

// callers bind by calling the extender as so many schedulers at once would, with all nodes' names.
func callers(n int) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		stop, err := l.startExtender(ctx)
		if err != nil {
			return err
		}
		defer stop()
		pods, err := l.cluster.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(n)
		for i := range pods.Items {
			g.Go(func() error { return place(ctx, client, &pods.Items[i], l.names) })
		}
		return g.Wait()
	}
}

// place filters, prioritizes and binds one pod.
func place(ctx context.Context, client *http.Client, p *v1.Pod, nodes []string) error {
	var filtered extenderv1.ExtenderFilterResult
	if err := post(ctx, client, "filter", extenderv1.ExtenderArgs{Pod: p, NodeNames: &nodes}, &filtered); err != nil {
		return err
	}
	if filtered.NodeNames == nil || len(*filtered.NodeNames) == 0 {
		return fmt.Errorf("pod %s fits nowhere: %v", p.Name, filtered.Error)
	}
	var list extenderv1.HostPriorityList
	if err := post(ctx, client, "prioritize", extenderv1.ExtenderArgs{Pod: p, NodeNames: filtered.NodeNames}, &list); err != nil {
		return err
	}
	best := slices.MaxFunc(list, func(a, b extenderv1.HostPriority) int { return int(a.Score - b.Score) })
	var bound extenderv1.ExtenderBindingResult
	err := post(ctx, client, "bind", extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: best.Host}, &bound)
	if err == nil && bound.Error != "" {
		err = errors.New(bound.Error)
	}
	return err
}

func post(ctx context.Context, client *http.Client, verb string, args, answer any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+extenderAddress+"/"+verb, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", verb, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// cpuOf is the time that a process has computed.
func cpuOf(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0 // it has ended
	}
	_, after, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	const ticksPerSecond = 100 // USER_HZ, the same on all of Linux
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}
