package kube

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// StartEtcd starts etcd (again).
func (c *Cluster) StartEtcd(ctx context.Context) (err error) {
	client, peer := "http://"+c.ip+":2379", "http://"+c.ip+":2380"
	c.Etcd, err = c.startDaemon("etcd", []string{
		"--data-dir=" + filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
	})
	if err != nil {
		return err
	}
	return await(ctx, c.Etcd, harness.StartPatience, func(ctx context.Context) error { return get(ctx, client+"/health") })
}

func get(ctx context.Context, url string) error { return getBy(ctx, http.DefaultClient, url) }

func getBy(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// StartAPIServer starts kube-apiserver (again) and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	if c.identities == nil {
		c.identities, err = newIdentities(filepath.Join(c.Dir, "pki"), c.ip, "https://"+c.ip+":6443",
			Admin, ControllerManager, StockScheduler, KubeProxy, KubeletOf(harness.NodeName), KubeletOf(SecondNode), Tenant)
		if err != nil {
			return err
		}
	}
	reconciler := "lease" // which makes it the Service that pods reach it by
	if c.namespaces == nil {
		reconciler = "none" // there are no pods, nor may a loopback address be an endpoint
	}
	c.APIServer, err = c.startDaemon("kube-apiserver", append([]string{
		"--etcd-servers=http://" + c.ip + ":2379",
		"--bind-address=" + c.ip, "--secure-port=6443", "--endpoint-reconciler-type=" + reconciler,
		"--kubelet-preferred-address-types=InternalIP",
		"--cert-dir=" + c.identities.dir,
		"--tls-cert-file=" + c.identities.path("apiserver.crt"), "--tls-private-key-file=" + c.identities.path("apiserver.key"),
		"--token-auth-file=" + c.identities.path("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.identities.path("service-accounts.key"),
		"--service-account-signing-key-file=" + c.identities.path("service-accounts.key"),
		"--service-cluster-ip-range=" + services,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
	}, c.apiServerArgs...))
	if err != nil {
		return err
	}
	if c.API == nil {
		if c.API, err = c.Client(Admin); err != nil {
			return err
		}
	}
	return await(ctx, c.APIServer, 90*time.Second, func(ctx context.Context) error {
		return c.API.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// StartControllerManager starts kube-controller-manager (again).
func (c *Cluster) StartControllerManager(ctx context.Context) error {
	kubeconfig, err := c.Kubeconfig(ControllerManager)
	if err != nil {
		return err
	}
	c.ControllerManager, err = c.startDaemon("kube-controller-manager", []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--use-service-account-credentials",
		"--bind-address=" + c.ip, "--secure-port=10257", "--cert-dir=" + c.identities.dir,
		"--service-account-private-key-file=" + c.identities.path("service-accounts.key"),
		"--root-ca-file=" + c.identities.path("ca.crt"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	})
	return err
}
