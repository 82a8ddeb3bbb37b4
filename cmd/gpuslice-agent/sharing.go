package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

type profile string

const (
	// profileHAMi is one resource with --device-split-count devices per GPU.
	profileHAMi profile = "hami"
	// profileTencent is gpu-manager's pair: compute time and memory.
	profileTencent profile = "tencent"
)

const (
	registerJSON = "json"
	registerCSV  = "csv"

	apiAuto = "auto"
	apiOn   = "on"
	apiOff  = "off"
)

func (o *options) validateOffer(c *checks) {
	c.want("resource-profile", slices.Contains([]profile{profileHAMi, profileTencent}, profile(o.ResourceProfile)), "hami or tencent", o.ResourceProfile)
	_, err := nvidia.ParseMIGStrategy(o.MIGStrategy)
	c.want("mig-strategy", err == nil && o.MIGStrategy != "", "none, single or mixed", o.MIGStrategy)
	c.want("mig-strategy", o.ResourceProfile != string(profileTencent) || o.MIGStrategy != string(nvidia.MIGSingle),
		"none or mixed with --resource-profile=tencent, which has no resource for whole devices", o.MIGStrategy)
	if o.NodeConfigFile != "" {
		c.absolute("node-config-file", o.NodeConfigFile)
	}
	c.want("kubernetes-api", slices.Contains([]string{apiAuto, apiOn, apiOff}, o.KubernetesAPI), "auto, on or off", o.KubernetesAPI)
	if o.Kubeconfig != "" {
		c.absolute("kubeconfig", o.Kubeconfig)
	}
	c.want("register-format", slices.Contains([]string{registerJSON, registerCSV}, o.RegisterFormat), "json or csv", o.RegisterFormat)
}

func (o *options) sharing(s nodeconfig.Settings) node.Sharing {
	sharing := node.Sharing{
		Replicas: o.SplitCount, Memory: o.MemoryScaling, Cores: o.CoresScaling,
		MIG: nvidia.MIGStrategy(o.MIGStrategy), Excludes: s.Excludes,
	}
	if o.ResourceProfile == string(profileTencent) {
		// The smallest share is 1 of 100 cores.
		sharing.Replicas = grant.MaxCorePercent
	} else if s.SplitCount != nil {
		sharing.Replicas = *s.SplitCount
	}
	if s.MemoryScaling != nil {
		sharing.Memory = *s.MemoryScaling
	}
	if s.CoresScaling != nil {
		sharing.Cores = *s.CoresScaling
	}
	if s.MemoryMiB != nil {
		sharing.MemoryMiB = *s.MemoryMiB
	}
	if s.MIGStrategy != "" {
		sharing.MIG = nvidia.MIGStrategy(s.MIGStrategy)
	}
	return sharing
}

func (o *options) checkSettings(s nodeconfig.Settings) error {
	sharing := o.sharing(s)
	var errs []error
	if s.OperatingMode == "mig" && sharing.MIG == nvidia.MIGNone {
		errs = append(errs, errors.New("operatingmode mig: gpuslice does not partition GPUs: create the instances (nvidia-smi mig) and set migstrategy to single or mixed"))
	}
	if o.ResourceProfile == string(profileTencent) && sharing.MIG == nvidia.MIGSingle {
		errs = append(errs, errors.New("migstrategy single: not with --resource-profile=tencent"))
	}
	if o.UnscheduledPolicy == "share" && int(grant.MaxCorePercent*sharing.Cores) < sharing.Replicas {
		errs = append(errs, fmt.Errorf("devicesplitcount %d: gives a share less than 1 %% of compute time, which --unscheduled-policy=share does not support", sharing.Replicas))
	}
	return errors.Join(errs...)
}

func unused(s nodeconfig.Settings) []string {
	var fields []string
	if s.OperatingMode == "mps" {
		fields = append(fields, "operatingmode mps (shared by limits, as hami-core)")
	}
	if s.LogLevel != nil {
		fields = append(fields, "libcudaloglevel (the limiter has no log but its errors)")
	}
	return fields
}
