// Command gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, and with the subcommands
// extender and webhook. It is a separate module because it imports k8s.io/kubernetes.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const manual = `gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, which assigns shares of
GPUs to pods. It has kube-scheduler's flags and this one:

  --debug-address   serve / (a page of the cluster's GPUs, their pods and pending pods) and
                    /debug/state (the same as text or JSON) on this host:port, over plain
                    HTTP (default 127.0.0.1:10261); empty: disabled

install/scheduler/config.yaml, a configuration of kube-scheduler (--config), enables the
plugin. Without it, gpuslice-scheduler is a plain kube-scheduler.

  gpuslice-scheduler extender   for a kube-scheduler that cannot be replaced
  gpuslice-scheduler webhook    completes and validates new pods`

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	var debugAddress string
	root := app.NewSchedulerCommand(withPlugin(&debugAddress))
	root.Use = "gpuslice-scheduler"
	root.Short = "kube-scheduler with GPU memory and compute time"
	root.Long = manual
	root.Flags().StringVar(&debugAddress, "debug-address", "127.0.0.1:10261", "serve / and /debug/state on this host:port; empty: disabled")
	root.AddCommand(subcommands()...)
	return root
}
