package main

import (
	"fmt"
	"log/slog"
	"os"

	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/agent/podwatch"
	"github.com/gpuslice/gpuslice/agent/resized"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/audit/podevents"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/verification"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// apiServer returns nil if there is none, or no usable one with --kubernetes-api=auto.
func (o *options) apiServer(log *slog.Logger) (*rest.Config, error) {
	inPod := os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
	switch {
	case o.KubernetesAPI == apiOff:
		return nil, nil
	case o.KubernetesAPI == apiAuto && o.Kubeconfig == "" && !inPod:
		log.Info("GPUs are not published to schedulers: no --kubeconfig, and no service account of a pod")
		return nil, nil
	}
	config, err := noderegister.LoadConfig(o.Kubeconfig)
	if err != nil && o.KubernetesAPI == apiAuto {
		// The agent works without.
		log.Warn("GPUs are not published to schedulers; set --kubernetes-api=off if this is intended", "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-api=%s: %w", o.KubernetesAPI, err)
	}
	config.UserAgent = "gpuslice-agent/" + version.String()
	return config, nil
}

// register returns nil without an API server.
func (o *options) register(api *rest.Config, p *publisher, log *slog.Logger) (*noderegister.Publisher, error) {
	if api == nil {
		return nil, nil
	}
	client, err := noderegister.NewClient(api, noderegister.FieldManager)
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-api=%s: %w", o.KubernetesAPI, err)
	}
	var conditions func() []noderegister.Condition
	if o.NodeCondition {
		conditions = func() []noderegister.Condition {
			return []noderegister.Condition{isolation(o.LibraryDir, p.now().GPUs.Node.DriverVersion), p.native.condition(o.dra())}
		}
	}
	return noderegister.New(noderegister.Config{
		Conditions: conditions,
		Client:     client, NodeName: o.NodeName, Changed: p.changed, Log: log,
		Options: noderegister.Options{TencentModel: o.GaiaModelLabel, NVIDIALabels: o.NVIDIALabels, IgnoreHandshake: !o.AnswerHandshake, HAMiGrants: o.hamiGrants(), Volcano: o.VolcanoRegister, CSV: o.RegisterFormat == registerCSV, Capacity: o.capacity()},
		Node: func() (noderegister.Node, bool) {
			n, known := registeredNode(p.now())
			n.MemoryEnforcement = p.native.enforcement()
			if o.dra() { // kube-scheduler has them by the ResourceSlices, and no other scheduler may
				n.Devices, n.MemoryEnforcement = nil, p.native.ofResourceClaims()
			}
			n.Refused = p.refused()
			return n, known
		},
	})
}

// hamiGrants reports whether HAMi's scheduler can place pods on the node: it does not sign its grants.
func (o *options) hamiGrants() bool { return o.GrantPublicKeyFile == "" && !o.dra() }

// isolation is the node's condition by the last report of gpuslice verify.
func isolation(libraryDir, driver string) noderegister.Condition {
	report, err := verification.Read(libraryDir)
	v := verification.Judge(report, err, driver)
	return noderegister.Condition{Type: verification.Condition, Status: v.Status, Reason: v.Reason, Message: v.Message, At: v.At}
}

// capacity is valid: the options were checked.
func (o *options) capacity() noderegister.Capacity {
	c, _ := noderegister.ParseCapacity(o.NodeCapacity)
	return c
}

// registeredNode returns false before the first reading of the GPUs.
func registeredNode(now *offer) (noderegister.Node, bool) {
	n := noderegister.Node{
		Topology:      now.GPUs.Topology,
		DriverVersion: now.GPUs.Node.DriverVersion,
		CUDAVersion:   now.GPUs.Node.CUDAVersion,
		MIGStrategy:   now.Sharing.MIG,
	}
	index := map[string]int{}
	for _, d := range now.Devices {
		gpu, known := now.GPUs.Node.GPU(d.GPU)
		if !known {
			continue
		}
		if i, again := index[d.GPU]; again {
			n.Devices[i].Replicas++
			n.Devices[i].MemoryMiB += d.MemoryMiB
			continue
		}
		index[d.GPU] = len(n.Devices)
		n.Devices = append(n.Devices, registeredGPU(now, d, gpu))
	}
	return n, !now.GPUs.Taken.IsZero()
}

func registeredGPU(now *offer, d node.Device, gpu nvidia.GPU) noderegister.Device {
	mode := api.ModeShared
	if d.MIG() {
		mode = api.ModeMIG
	}
	others := now.Others[d.UUID]
	return noderegister.Device{
		GPU: gpu, Replicas: d.Replicas, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent,
		Others: api.NodeUse{MemoryMiB: others.MemoryMiB, Cores: others.CorePercent, Replicas: others.Replicas},
		Mode:   mode, Healthy: now.Connected && now.Stale == nil && now.GPUs.Health[d.GPU].Healthy,
	}
}

// resizeFailed is the reason of the event on a pod that could not be resized.
const resizeFailed = "GPUSliceNotResized"

// keep must run before the plugin is created.
func (o *options) keep(config *nriplugin.Config, limits *nativeLimits, log *slog.Logger) (*resized.Keeper, error) {
	keeper, err := resized.Open(resized.Config{
		StateDir: o.StateDir, NodeName: o.NodeName, Ledger: config.Ledger, Keys: config.Keys, GPUs: config.GPUs, Log: log,
		Apply: func(dir string, claim ledger.Claim) error {
			err := oci.ResizeOrPopulate(dir, claim, func(error) error { return config.Populate(dir, claim) })
			if err == nil {
				err = limits.resize(dir, claim)
			}
			return err
		},
	})
	if err == nil {
		config.Newest = keeper.Newest
	}
	return keeper, err
}

// followPods watches the pods, if there is an API server. Failures become events of the pods.
func (o *options) followPods(api *rest.Config, events *podevents.Recorder, keeper *resized.Keeper, then *background, log *slog.Logger) error {
	*then = append(*then, keeper.Run)
	if api == nil {
		return nil
	}
	keeper.Failed = func(c ledger.Claim, message string) {
		events.Warn(audit.Container{ID: c.ContainerID, Namespace: c.PodNamespace, Pod: c.PodName, PodUID: c.PodUID, Name: c.Container}, resizeFailed, message)
	}
	watch, err := podwatch.New(api, o.NodeName, keeper, log)
	if err != nil {
		return err
	}
	*then = append(*then, watch.Run)
	return nil
}
