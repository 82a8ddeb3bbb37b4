package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

func subcommands() []*cobra.Command {
	commands := []*cobra.Command{extenderCommand(), webhookCommand()}
	for _, c := range commands {
		// Without these, kube-scheduler's help lists its own flags.
		bare := &cobra.Command{}
		c.SetUsageFunc(bare.UsageFunc())
		c.SetHelpFunc(bare.HelpFunc())
		c.Args = cobra.NoArgs
		c.SilenceUsage = true
	}
	return commands
}

type common struct {
	config, kubeconfig, master string
	qps                        float32
	burst                      int
	verbose                    bool
}

func (c *common) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.config, "config", "", "read GPUSliceArgs, the settings that plugin, extender and webhook share, from this file")
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: use the pod's service account")
	fs.StringVar(&c.master, "master", "", "address of the API server; overrides the kubeconfig")
	// High limits: the API server has priority and fairness of its own.
	fs.Float32Var(&c.qps, "kube-api-qps", 5000, "maximum requests per second to the API server")
	fs.IntVar(&c.burst, "kube-api-burst", 10000, "maximum burst of requests to the API server")
	fs.BoolVar(&c.verbose, "verbose", false, "log each decision")
}

func (c *common) args() (*plugin.Args, error) {
	if c.config == "" {
		return plugin.ParseArgs(nil)
	}
	return plugin.ReadArgs(c.config)
}

func (c *common) client(agent string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags(c.master, c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("configure the API server client: %w: set --kubeconfig", err)
	}
	config.QPS, config.Burst = c.qps, c.burst
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.UserAgent = agent
	return kubernetes.NewForConfig(config)
}

func (c *common) log() *slog.Logger {
	level := slog.LevelInfo
	if c.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// untilSignal ends at the first signal; a second one kills the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
