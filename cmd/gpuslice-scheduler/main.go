// Command gpuslice-scheduler is kube-scheduler with the plugin GPUSlice (package
// scheduler/plugin). It has all of kube-scheduler's flags, its configuration, leader
// election, health and metrics; install/scheduler has a configuration that turns the
// plugin on. Its subcommands are the other doors: extender and webhook.
//
// It is a module of its own, for it is the only thing here that imports k8s.io/kubernetes.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the client's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version's metric
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const manual = `gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, which gives pods their
shares of GPUs. It has kube-scheduler's flags, and one more:

  --debug-address   answer / (a page of the cluster's GPUs, who has them and who waits) and
                    /debug/state (the same as text, or JSON) on this host:port, over plain
                    HTTP (default 127.0.0.1:10261); empty: nowhere

Its configuration is kube-scheduler's (--config): install/scheduler/config.yaml turns
the plugin on. Without that it is kube-scheduler and no more.

  gpuslice-scheduler extender   is for a kube-scheduler that can't be replaced
  gpuslice-scheduler webhook    completes and checks pods when they are made`

func main() { os.Exit(cli.Run(command())) }

// command is kube-scheduler's, by our name, with the other doors as subcommands.
func command() *cobra.Command {
	var debugAddress string
	root := app.NewSchedulerCommand(withPlugin(&debugAddress))
	root.Use = "gpuslice-scheduler"
	root.Short = "kube-scheduler that knows GPUs, their memory and compute time"
	root.Long = manual
	root.Flags().StringVar(&debugAddress, "debug-address", "127.0.0.1:10261", "answer / and /debug/state on this host:port; empty: nowhere")
	root.AddCommand(subcommands()...)
	return root
}
