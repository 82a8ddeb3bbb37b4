package main

import (
	"log/slog"

	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/agent/podwatch"
	"github.com/gpuslice/gpuslice/agent/resized"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/audit/podevents"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
)

// resizeFailed is the reason of the event on a pod that could not be resized.
const resizeFailed = "GPUSliceNotResized"

// keep must run before the plugin is created.
func (o *options) keep(config *nriplugin.Config, log *slog.Logger) (*resized.Keeper, error) {
	keeper, err := resized.Open(resized.Config{
		StateDir: o.StateDir, NodeName: o.NodeName, Ledger: config.Ledger, Keys: config.Keys, GPUs: config.GPUs, Log: log,
		Apply: func(dir string, claim ledger.Claim) error {
			return oci.ResizeOrPopulate(dir, claim, func(error) error { return config.Populate(dir, claim) })
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
