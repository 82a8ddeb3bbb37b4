package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Component is the scheduler's component that places pods.
type Component string

const (
	// Framework is kube-scheduler with our plugin in it, gpuslice-scheduler, beside the cluster's own.
	Framework Component = "framework"
	// Extender is the cluster's kube-scheduler, which calls ours.
	Extender Component = "extender"
)

// Components are all of them.
var Components = []Component{Framework, Extender}

// GPUQuota is the ConfigMap of gpu-manager's quota, as namespace/name.
const GPUQuota = "kube-system/gpuquota"

// SchedulerName is which scheduler the webhook gives pods with GPUs to; empty leaves them
// with the stock one.
func (c Component) SchedulerName() string {
	if c == Extender {
		return ""
	}
	return "gpuslice-scheduler"
}

// StartScheduler starts the cluster's own kube-scheduler (again), and waits until it is healthy.
func (c *Cluster) StartScheduler(ctx context.Context) error {
	config, err := c.schedulerConfig()
	if err != nil {
		return err
	}
	// There is no other replica, so the lease of a killed one is deleted.
	err = c.API.CoordinationV1().Leases("kube-system").Delete(ctx, "kube-scheduler", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	args := []string{
		"--config=" + config, "--bind-address=" + c.ip, "--secure-port=10259", "--cert-dir=" + filepath.Join(c.Dir, "scheduler-pki"),
	}
	if c.options.Component == Extender {
		// As docs/SCHEDULER.md asks for.
		args = append(args, "--pod-max-in-unschedulable-pods-duration=30s")
	}
	c.Scheduler, err = c.startDaemon("kube-scheduler", args)
	if err != nil {
		return err
	}
	return await(ctx, c.Scheduler, 60*time.Second, func(ctx context.Context) error {
		return getInsecure(ctx, "https://"+c.ip+":10259/healthz") // before 1.31 there is no /readyz
	})
}

// getInsecure asks a program that has made its own certificate.
func getInsecure(ctx context.Context, url string) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	return getBy(ctx, client, url)
}

// schedulerConfig writes the configuration of the cluster's kube-scheduler: none of ours, or the one that is shipped
// for the extender.
func (c *Cluster) schedulerConfig() (path string, err error) {
	config := StockConfig()
	if c.options.Component == Extender {
		config = ShippedConfig(ExtenderConfig)
	}
	kubeconfig, err := c.Kubeconfig(StockScheduler)
	if err != nil {
		return "", err
	}
	// The extender reads which scheduler leads. A leader stays leader while the API server is unreachable for a
	// while.
	text, err := config.Connect(kubeconfig).Elect("120s", "90s", "2s").Text()
	if err != nil {
		return "", err
	}
	path = filepath.Join(c.Dir, "scheduler.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// RestartScheduler replaces our scheduler's pods; and, where it is the cluster's that asks them, that one.
func (c *Cluster) RestartScheduler(ctx context.Context) error {
	if err := c.replace(ctx, "scheduler"); err != nil || c.options.Component != Extender {
		return err
	}
	return errors.Join(stop(c.Scheduler), c.StartScheduler(ctx))
}

// KillScheduler kills what RestartScheduler stops, and waits until it is there again.
func (c *Cluster) KillScheduler(ctx context.Context) error {
	if c.options.Component == Extender {
		c.Scheduler.Kill()
	}
	if err := c.KillPods(ctx, "scheduler"); err != nil {
		return err
	}
	if c.options.Component == Extender {
		if err := c.StartScheduler(ctx); err != nil {
			return err
		}
	}
	return c.WaitRelease(ctx)
}
