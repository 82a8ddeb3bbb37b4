package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// network is the cluster's: a network namespace that a pair of interfaces joins to the
// machine, pods behind it, and services by kube-proxy. Of the machine only one interface
// with an address of its own is new.
type network struct {
	link string // the machine's end
	// host and node are the addresses of the ends; pods is what pods' addresses are of.
	host, node, pods string
}

// services is what services' addresses are of, and apiService the API server's.
const services, apiService = "10.96.0.0/16", "10.96.0.1"

// newNetwork chooses addresses by a random name, so that two clusters don't meet; of
// 100.64.0.0/10, the address space that no machine has of its own (RFC 6598).
func newNetwork(dir string) network {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	sum := h.Sum32()
	a, b := 64+sum>>8%64, sum&0xfe
	return network{
		link: fmt.Sprintf("gs%08x", sum),
		host: fmt.Sprintf("100.%d.%d.1", a, b+1), node: fmt.Sprintf("100.%d.%d.2", a, b+1),
		pods: fmt.Sprintf("100.%d.%d.0/24", a, b),
	}
}

// join joins the namespace to the machine, or to where outside starts a program. The interfaces go with the namespace.
func (n network) join(ctx context.Context, s *namespaces, outside []string) error {
	pid := strconv.Itoa(s.holder.PID())
	inside := s.enter()
	for _, command := range [][]string{
		slices.Concat(outside, []string{"ip", "link", "add", n.link, "type", "veth", "peer", "name", "eth0", "netns", pid}),
		slices.Concat(outside, []string{"ip", "address", "add", n.host + "/30", "dev", n.link}),
		slices.Concat(outside, []string{"ip", "link", "set", n.link, "up"}),
		append(inside, "ip", "link", "set", "lo", "up"),
		append(inside, "ip", "address", "add", n.node+"/30", "dev", "eth0"),
		append(inside, "ip", "link", "set", "eth0", "up"),
		// To services, before kube-proxy has its rules; nothing is forwarded.
		append(inside, "ip", "route", "add", "default", "via", n.host),
	} {
		if _, err := harness.Run(ctx, nil, command[0], command[1:]...); err != nil {
			return fmt.Errorf("make the cluster's network (as root): %w", err)
		}
	}
	return nil
}

// leave takes the machine's end away, and waits until it is gone. It may go with the namespace at any moment.
func (n network) leave(ctx context.Context) error {
	_, err := harness.Run(ctx, nil, "ip", "link", "delete", n.link)
	if err != nil && (strings.Contains(err.Error(), "Cannot find device") || strings.Contains(err.Error(), "No such device")) {
		return nil
	}
	return err
}

// writeCNI gives pods an interface and an address each, and a way to the node and to
// other pods.
func (c *Cluster) writeCNI() error {
	dir := filepath.Join(c.Dir, "c", "cni")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "10-ptp.conflist"), fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"pods","plugins":[
{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`, c.network.pods), 0o644)
}

// kubeProxyConfig does not change conntrack's limits, which are the machine's.
var kubeProxyConfig = template.Must(template.New("kube-proxy.yaml").Parse(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
bindAddress: {{.Node}}
healthzBindAddress: {{.Node}}:10256
metricsBindAddress: {{.Node}}:10249
hostnameOverride: {{.Name}}
clusterCIDR: {{.Pods}}
clientConnection: {kubeconfig: {{.Kubeconfig}}}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 100ms}
featureGates: { {{- .Gates -}} }
`))

// StartKubeProxy starts kube-proxy (again) and waits until it is healthy: then services
// have a way.
func (c *Cluster) StartKubeProxy(ctx context.Context) error {
	kubeconfig, err := c.Kubeconfig(KubeProxy)
	if err != nil {
		return err
	}
	gates := "NFTablesProxyMode: true" // which newer versions don't know
	if has, err := c.Has(NFTables); err != nil {
		return err
	} else if has {
		gates = ""
	}
	config := filepath.Join(c.Dir, "kube-proxy.yaml")
	file, err := os.Create(config)
	if err != nil {
		return err
	}
	err = kubeProxyConfig.Execute(file, map[string]string{"Node": c.ip, "Name": c.name, "Pods": c.network.pods, "Kubeconfig": kubeconfig, "Gates": gates})
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if c.KubeProxy, err = c.startDaemon("kube-proxy", []string{"--config=" + config}); err != nil {
		return err
	}
	return await(ctx, c.KubeProxy, 60*time.Second, func(ctx context.Context) error { return get(ctx, "http://"+c.ip+":10256/healthz") })
}
