package kube

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Door is the way by which our scheduler is asked.
type Door string

const (
	// Framework is kube-scheduler with our plugin in it, gpuslice-scheduler.
	Framework Door = "framework"
	// Extender is the stock kube-scheduler, which calls ours.
	Extender Door = "extender"
)

// Doors are all of them.
var Doors = []Door{Framework, Extender}

// CardQuota is the ConfigMap of gpu-manager's quota, as namespace/name.
const CardQuota = "kube-system/gpuquota"

// SchedulerName is which scheduler the webhook gives pods with cards to; empty leaves them
// with the stock one.
func (d Door) SchedulerName() string {
	if d == Extender {
		return ""
	}
	return "gpuslice-scheduler"
}

// StartScheduler starts the scheduler by the cluster's door (again), and waits until it is
// healthy.
func (c *Cluster) StartScheduler(ctx context.Context) (err error) {
	if c.options.Door == Extender {
		if err := c.startExtender(ctx); err != nil {
			return err
		}
		c.Scheduler, err = c.startStock()
	} else {
		c.Scheduler, err = c.startOurs()
	}
	if err != nil {
		return err
	}
	return await(ctx, c.Scheduler, 60*time.Second, func(ctx context.Context) error {
		return getInsecure(ctx, "https://"+c.ip+":10259/readyz")
	})
}

// getInsecure asks a program that has made its own certificate.
func getInsecure(ctx context.Context, url string) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	return getBy(ctx, client, url)
}

// StopScheduler ends the scheduler and, where there is one, the extender.
func (c *Cluster) StopScheduler(ctx context.Context) error {
	if err := stop(c.Scheduler); err != nil {
		return err
	}
	return stop(c.Extender)
}

// KillScheduler ends them with SIGKILL.
func (c *Cluster) KillScheduler() {
	for _, p := range []*harness.Process{c.Scheduler, c.Extender} {
		if p != nil {
			p.Kill()
		}
	}
}

// schedulerArgs are what any kube-scheduler is told here.
func (c *Cluster) schedulerArgs(config string) []string {
	return []string{"--config=" + config, "--bind-address=" + c.ip, "--secure-port=10259", "--cert-dir=" + filepath.Join(c.Dir, "scheduler-pki")}
}

// startOurs starts gpuslice-scheduler with the configuration that is shipped.
func (c *Cluster) startOurs() (*harness.Process, error) {
	path, err := harness.Artefact("bin", "gpuslice-scheduler")
	if err != nil {
		return nil, err
	}
	shipped, err := shipped("scheduler", "config.yaml")
	if err != nil {
		return nil, err
	}
	config, err := c.schedulerConfig(shipped, Scheduler)
	if err != nil {
		return nil, err
	}
	return c.startInside("gpuslice-scheduler", append([]string{path}, c.schedulerArgs(config)...)...)
}

// schedulerConfig writes a KubeSchedulerConfiguration for this cluster: another API
// server, and nobody to elect a leader with.
func (c *Cluster) schedulerConfig(text []byte, user User) (path string, err error) {
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return "", err
	}
	kubeconfig, err := c.Kubeconfig(user)
	if err != nil {
		return "", err
	}
	connection, _ := config["clientConnection"].(map[string]any)
	if connection == nil {
		connection = map[string]any{}
	}
	connection["kubeconfig"] = kubeconfig
	config["clientConnection"] = connection
	config["leaderElection"] = map[string]any{"leaderElect": false}
	for _, profile := range mapsIn(config["profiles"]) {
		for _, plugin := range mapsIn(profile["pluginConfig"]) {
			if args, ours := plugin["args"].(map[string]any); ours && plugin["name"] == "GPUSlice" {
				args["cardQuota"], args["grantKeyFile"] = CardQuota, c.GrantKeyFile()
			}
		}
	}
	if text, err = yaml.Marshal(config); err != nil {
		return "", err
	}
	path = filepath.Join(c.Dir, "scheduler.yaml")
	return path, os.WriteFile(path, text, 0o600)
}

// GrantKeyFile has the key that the scheduler signs grants with. The agent asks for no
// signatures unless it is told to.
func (c *Cluster) GrantKeyFile() string { return c.identities.path("grant-key") }

// mapsIn are the elements of a list that are maps.
func mapsIn(list any) (found []map[string]any) {
	elements, _ := list.([]any)
	for _, e := range elements {
		if m, is := e.(map[string]any); is {
			found = append(found, m)
		}
	}
	return found
}

// shipped reads a file that is installed with gpuslice.
func shipped(elem ...string) ([]byte, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(append([]string{root, "install"}, elem...)...))
}

// extenderAddress is where the extender listens.
func (c *Cluster) extenderAddress() string { return c.ip + ":8888" }

// startExtender starts the extender and waits until it knows the cluster.
func (c *Cluster) startExtender(ctx context.Context) error {
	path, err := harness.Artefact("bin", "gpuslice-scheduler")
	if err != nil {
		return err
	}
	kubeconfig, err := c.Kubeconfig(Scheduler)
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "extender.yaml")
	settings := "apiVersion: gpuslice.io/v1\nkind: GPUSliceArgs\ncardQuota: " + CardQuota + "\ngrantKeyFile: " + c.GrantKeyFile() + "\n"
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return err
	}
	c.Extender, err = c.startInside("gpuslice-extender", path,
		"extender", "--config="+config, "--kubeconfig="+kubeconfig, "--listen="+c.extenderAddress(), "--leader-elect=false", "--verbose")
	if err != nil {
		return err
	}
	return await(ctx, c.Extender, 60*time.Second, func(ctx context.Context) error {
		return get(ctx, "http://"+c.extenderAddress()+"/readyz")
	})
}

// startStock starts the stock kube-scheduler, told of the extender.
func (c *Cluster) startStock() (*harness.Process, error) {
	shipped, err := shipped("scheduler", "extender-config.yaml")
	if err != nil {
		return nil, err
	}
	var text map[string]any
	if err := yaml.Unmarshal(shipped, &text); err != nil {
		return nil, err
	}
	for _, extender := range mapsIn(text["extenders"]) {
		extender["urlPrefix"] = "http://" + c.extenderAddress()
	}
	if shipped, err = yaml.Marshal(text); err != nil {
		return nil, err
	}
	config, err := c.schedulerConfig(shipped, StockScheduler)
	if err != nil {
		return nil, err
	}
	return c.startDaemon("kube-scheduler", c.schedulerArgs(config))
}
