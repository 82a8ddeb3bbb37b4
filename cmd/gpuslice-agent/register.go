package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

// apiServer says how to reach the API server; nil: there is none, or no way that works and
// the agent is to go on without.
func (o *options) apiServer(log *slog.Logger) (*noderegister.ClientConfig, error) {
	// What client-go calls being in a cluster (rest.InClusterConfig).
	inPod := os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
	switch {
	case o.KubernetesAPI == apiOff:
		return nil, nil
	case o.KubernetesAPI == apiAuto && o.Kubeconfig == "" && !inPod:
		log.Info("schedulers are not told of the GPUs: no --kubeconfig, and no service account of a pod")
		return nil, nil
	}
	config := &noderegister.ClientConfig{Kubeconfig: o.Kubeconfig, UserAgent: "gpuslice-agent/" + version.String()}
	_, err := config.Load()
	if err != nil && o.KubernetesAPI == apiAuto {
		// The node is guarded without.
		log.Warn("schedulers are not told of the GPUs; --kubernetes-api=off says that it is meant", "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-api=%s: %w", o.KubernetesAPI, err)
	}
	return config, nil
}

// register makes the publisher of the node's annotations and labels; nil: there is no
// API server to tell.
func (o *options) register(p *publisher, log *slog.Logger) (*noderegister.Publisher, error) {
	config, err := o.apiServer(log)
	if err != nil || config == nil {
		return nil, err
	}
	client, err := noderegister.NewClient(*config)
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-api=%s: %w", o.KubernetesAPI, err)
	}
	options := noderegister.Options{TencentModel: o.GaiaModelLabel}
	if !o.AnswerHandshake {
		options.Handshake = noderegister.HandshakeIgnore
	}
	if o.RegisterFormat == registerCSV {
		options.Register = noderegister.FormatCSV
	}
	return noderegister.New(noderegister.Config{
		Client: client, NodeName: o.NodeName, Options: options, Changed: p.changed, Log: log,
		Node: func() (noderegister.Node, bool) { return toldOf(p.now()) },
	})
}

// toldOf is what schedulers are told of an offer. Nothing is known before the GPUs were
// read once.
func toldOf(now *offer) (noderegister.Node, bool) {
	n := noderegister.Node{
		Topology:      now.GPUs.Topology,
		DriverVersion: now.GPUs.Node.DriverVersion,
		CUDAVersion:   now.GPUs.Node.CUDAVersion,
		MIGStrategy:   now.Sharing.MIG,
	}
	told := map[string]int{} // by GPU, its place in n.Devices
	for _, d := range now.Devices {
		gpu, known := now.GPUs.Node.GPU(d.GPU)
		if !known {
			continue
		}
		if i, again := told[d.GPU]; again { // another MIG device of the GPU
			n.Devices[i].Slots++
			n.Devices[i].MemoryMiB += d.MemoryMiB
			continue
		}
		told[d.GPU] = len(n.Devices)
		n.Devices = append(n.Devices, toldOfGPU(now, d, gpu))
	}
	return n, !now.GPUs.Taken.IsZero()
}

// toldOfGPU is what is told of a GPU, by the device that is it or is the first of it.
func toldOfGPU(now *offer, d node.Device, gpu nvidia.GPU) noderegister.Device {
	mode := noderegister.ModeShared
	if d.MIG() {
		mode = noderegister.ModeMIG
	}
	return noderegister.Device{
		GPU: gpu, Slots: d.Slots, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent,
		Mode: mode, MIGCapable: gpu.MIGCapable, Healthy: now.Guarded && now.Stale == nil && now.GPUs.Health[d.GPU].Healthy,
	}
}
