package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// kubeletConfig does not change the machine: its iptables, its kernel, its swap. Nothing is evicted, and no
// image is collected, because none could be pulled again.
var kubeletConfig = template.Must(template.New("kubelet.yaml").Parse(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {{.IP}}
healthzBindAddress: {{.IP}}
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://{{.Dir}}/c/c.sock
cgroupDriver: cgroupfs
cgroupRoot: /{{.Cgroup}}
failCgroupV1: false
failSwapOn: false
resolvConf: {{.Dir}}/resolv.conf
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
volumePluginDir: /var/lib/kubelet/volume-plugins
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 10Mi, nodefs.available: 0.1%, nodefs.inodesFree: 0.1%, imagefs.available: 0.1%, imagefs.inodesFree: 0.1%}
maxPods: 250
# There is no DNS, and no pod needs it.
clusterDNS: [10.96.0.10]
# A container that a test kills is started again at once.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 1m
kubeAPIQPS: 200
kubeAPIBurst: 400
featureGates:
  # What needs a capability that this machine may not have is not insisted on.
  KubeletInUserNamespace: true
`))

// kubeletRoot is the kubelet's directory, /var/lib/kubelet, as seen from outside its namespace.
func (c *Cluster) kubeletRoot() string { return filepath.Join(c.Dir, "private/var/lib/kubelet") }

// DevicePluginDir is the kubelet's directory of device plugins, as seen from outside its namespace.
func (c *Cluster) DevicePluginDir() string {
	return filepath.Join(c.kubeletRoot(), "device-plugins")
}

// StartKubelet starts the kubelet (again) and waits until it is healthy.
func (c *Cluster) StartKubelet(ctx context.Context) error {
	if err := errors.Join(makeCgroups(c.cgroup()), os.MkdirAll(c.kubeletRoot(), 0o755)); err != nil {
		return err
	}
	kubeconfig, err := c.Kubeconfig(KubeletOf(c.name))
	if err != nil {
		return err
	}
	// The machine's may be of a program that the cluster can't reach.
	if err := os.WriteFile(filepath.Join(c.Dir, "resolv.conf"), []byte("nameserver "+c.network.host+"\n"), 0o644); err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "kubelet.yaml")
	file, err := os.Create(config)
	if err != nil {
		return err
	}
	err = kubeletConfig.Execute(file, map[string]string{"IP": c.ip, "Dir": c.Dir, "Cgroup": c.cgroup()})
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	c.Kubelet, err = c.startDaemon("kubelet", []string{
		"--config=" + config, "--kubeconfig=" + kubeconfig, "--hostname-override=" + c.name, "--node-ip=" + c.ip,
	})
	if err != nil {
		return err
	}
	return await(ctx, c.Kubelet, 60*time.Second, func(ctx context.Context) error { return get(ctx, "http://"+c.ip+":10248/healthz") })
}

// WaitNode waits until the node is ready, and offers its GPUs.
func (c *Cluster) WaitNode(ctx context.Context) error { return c.WaitOffered(ctx, "nvidia.com/gpu", 0) }

// WaitOffered waits until the node is ready, the kubelet can give out so many of a resource (0: any number),
// and the Node's annotations have the GPUs.
func (c *Cluster) WaitOffered(ctx context.Context, resource corev1.ResourceName, want int64) error {
	return harness.Until(ctx, patience, func(ctx context.Context) error {
		node, err := c.API.CoreV1().Nodes().Get(ctx, c.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("the node is not ready: %s", condition.Message)
			}
		}
		quantity := node.Status.Allocatable[resource]
		offered := quantity.Value()
		if offered == 0 || want != 0 && offered != want {
			return fmt.Errorf("the node offers %d %s", offered, resource)
		}
		// The Node object is seconds old.
		if healthy, err := c.healthyDevices(ctx, string(resource)); err != nil || int64(healthy) != offered {
			return errors.Join(fmt.Errorf("the kubelet has %d healthy %s of %d", healthy, resource, offered), err)
		}
		if gpus := node.Annotations["gpuslice.io/node-gpus"]; gpus == "" || strings.Contains(gpus, `"healthy":false`) {
			return fmt.Errorf("the node's annotation has GPUs %q", gpus)
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("the node has taints: %v", node.Spec.Taints)
		}
		return nil
	})
}
