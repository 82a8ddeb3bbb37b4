package main

import (
	"context"
	"fmt"
	"os"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"sigs.k8s.io/yaml"
)

const (
	// emulatedMinors is how many minor versions back kube-scheduler can emulate.
	emulatedMinors = 3
	serverInterval = 2 * time.Second
)

// emulation returns the version for --emulated-version: the API server's if it is older than binary, but at least the oldest that
// kube-scheduler can emulate; "": none. An API server doesn't have the APIs for which a newer kube-scheduler waits at its start.
func emulation(binary *utilversion.Version, server version.Info) (string, error) {
	text := server.GitVersion
	if server.EmulationMajor != "" {
		text = server.EmulationMajor + "." + server.EmulationMinor
	}
	v, err := utilversion.ParseGeneric(text)
	if err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	oldest := binary.SubtractMinor(emulatedMinors)
	switch {
	case !v.LessThan(utilversion.MajorMinor(binary.Major(), binary.Minor())):
		return "", nil
	case v.LessThan(oldest):
		v = oldest
	}
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor()), nil
}

// serverVersion waits until the API server reports its version.
func serverVersion(ctx context.Context, o *options.Options) (server version.Info, err error) {
	config, err := clientConfig(o)
	if err != nil {
		return server, err
	}
	config.Timeout = 10 * time.Second
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return server, err
	}
	var last string
	err = wait.PollUntilContextCancel(ctx, serverInterval, true, func(context.Context) (bool, error) {
		info, err := client.ServerVersion()
		if err == nil {
			server = *info
			return true, nil
		}
		if err.Error() != last {
			klog.Background().Error(err, "Failed to read the API server's version: retrying")
			last = err.Error()
		}
		return false, nil
	})
	return server, err
}

// clientConfig is the client's configuration as kube-scheduler will read it. options.LoadConfigFromFile would query feature gates,
// which the emulated version sets.
func clientConfig(o *options.Options) (*rest.Config, error) {
	kubeconfig := o.Deprecated.Kubeconfig
	if o.ConfigFile != "" {
		text, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			return nil, err
		}
		var config configv1.KubeSchedulerConfiguration
		if err := yaml.Unmarshal(text, &config); err != nil {
			return nil, fmt.Errorf("%s: %w", o.ConfigFile, err)
		}
		kubeconfig = config.ClientConnection.Kubeconfig
	}
	return clientcmd.BuildConfigFromFlags(o.Master, kubeconfig)
}
