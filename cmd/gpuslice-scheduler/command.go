package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// schedulerCommand is app.NewSchedulerCommand of kube-scheduler, with configured called between Setup and Run: the command
// does not show how it is configured, and the fence needs the lock of the leader election.
func schedulerCommand(configured func(*config.CompletedConfig), registry ...app.Option) *cobra.Command {
	o := options.NewOptions()
	cmd := &cobra.Command{
		Use:               "kube-scheduler", // in the help of the flags
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return setVersion(cmd, o) },
		RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, o, configured, registry) },
		Args:              noArguments,
	}
	flags := o.Flags
	verflag.AddFlags(flags.FlagSet("global"))
	globalflag.AddGlobalFlags(flags.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range flags.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, *flags, columns)
	_ = cmd.MarkFlagFilename("config", "yaml", "yml", "json") // fails if there is no such flag
	return cmd
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q does not take any arguments, got %q", cmd.CommandPath(), args)
	}
	return nil
}

// setVersion sets the feature gates, for the version of the API server unless the flags name one.
func setVersion(cmd *cobra.Command, o *options.Options) error {
	if flag := cmd.Flags().Lookup("version"); flag != nil && flag.Value.String() == string(verflag.VersionTrue) {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "gpuslice-scheduler version %s\n", version.String()); err != nil {
			return err
		}
	}
	verflag.PrintAndExitIfRequested() // Kubernetes' version
	if flag := cmd.Flags().Lookup("emulated-version"); flag != nil && !flag.Changed && o.WriteConfigTo == "" {
		server, err := serverVersion(cmd.Context(), o)
		if err != nil {
			return err
		}
		binary := o.ComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent).BinaryVersion()
		emulated, err := emulation(binary, server)
		if err != nil {
			return err
		}
		if emulated != "" {
			if err := flag.Value.Set(emulated); err != nil {
				return err
			}
		}
	}
	return o.ComponentGlobalsRegistry.Set()
}

func run(cmd *cobra.Command, o *options.Options, configured func(*config.CompletedConfig), registry []app.Option) error {
	gate := o.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(o.Logs, gate); err != nil {
		return err
	}
	cliflag.PrintFlags(cmd.Flags())
	effective := o.ComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	klog.Background().Info("Starting gpuslice-scheduler", "version", version.String(), "kube-scheduler", effective.BinaryVersion(), "emulated", effective.EmulationVersion())
	ctx, cancel := context.WithCancel(genericapiserver.SetupSignalContext())
	defer cancel()
	c, scheduler, err := app.Setup(ctx, o, registry...)
	if err != nil {
		return err
	}
	if gate, is := gate.(featuregate.MutableFeatureGate); is {
		gate.AddMetrics()
	}
	o.ComponentGlobalsRegistry.AddMetrics()
	configured(c)
	return app.Run(ctx, c, scheduler)
}

// fenceOf returns the fence of this process; nil: there is no leader election. A process ends at once when another
// one has become the leader: kube-scheduler would end only after its deadline for renewals.
func fenceOf(c *config.CompletedConfig) *fence.Fence {
	if c.LeaderElection == nil {
		return nil
	}
	e := c.ComponentConfig.LeaderElection
	lock, leads := fence.NewLock(c.LeaderElection.Lock, c.Client, e.ResourceNamespace, e.ResourceName, func(err error) {
		klog.Background().Error(err, "Leader election lost: ending")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	})
	c.LeaderElection.Lock = lock
	return leads
}
