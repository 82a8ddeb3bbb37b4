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

// subcommands are the doors that are not kube-scheduler's.
func subcommands() []*cobra.Command {
	doors := []*cobra.Command{extenderCommand(), webhookCommand()}
	for _, c := range doors {
		// kube-scheduler's help lists its own flags, whatever the command.
		bare := &cobra.Command{}
		c.SetUsageFunc(bare.UsageFunc())
		c.SetHelpFunc(bare.HelpFunc())
		c.Args = cobra.NoArgs
		c.SilenceUsage = true
	}
	return doors
}

// common is what both doors are told.
type common struct {
	config, kubeconfig, master string
	qps                        float32
	burst                      int
	verbose                    bool
}

func (c *common) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.config, "config", "", "read the settings that all doors share from this file: the GPUSliceArgs that the plugin has as args")
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "reach the API server by this file; empty: as a pod does")
	fs.StringVar(&c.master, "master", "", "the API server's address, in place of the kubeconfig's")
	// The API server has fair queueing of its own: a client that holds itself back is the
	// bottleneck long before it.
	fs.Float32Var(&c.qps, "kube-api-qps", 5000, "send the API server at most so many requests a second")
	fs.IntVar(&c.burst, "kube-api-burst", 10000, "send the API server at most so many requests at once")
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
		return nil, fmt.Errorf("reach the API server: %w: name it by --kubeconfig", err)
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

// untilSignal ends with SIGTERM or SIGINT; a second one ends the process at once.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
