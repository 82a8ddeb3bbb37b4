package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/grantkeys"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
	"github.com/gpuslice/gpuslice/scheduler/webhook"
)

func subcommands() []*cobra.Command {
	commands := []*cobra.Command{extenderCommand(), webhookCommand(), grantKeysCommand()}
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
	c.clientFlags(fs)
}

func (c *common) clientFlags(fs *pflag.FlagSet) {
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

func (c *common) rest(agent string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags(c.master, c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("configure the API server client: %w: set --kubeconfig", err)
	}
	config.QPS, config.Burst = c.qps, c.burst
	config.UserAgent = agent
	return config, nil
}

func (c *common) client(agent string) (kubernetes.Interface, error) {
	config, err := c.rest(agent)
	if err != nil {
		return nil, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
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

func extenderCommand() *cobra.Command {
	var o common
	var elect bool
	election := extender.Election{Namespace: "kube-system", Name: "gpuslice-extender"}
	c := extender.Config{Version: version.String()}
	command := &cobra.Command{
		Use:   "extender",
		Short: "Serve the extender protocol for a stock kube-scheduler over HTTP",
		RunE: func(*cobra.Command, []string) error {
			args, err := o.args()
			if err != nil {
				return err
			}
			if c.Client, err = o.client("gpuslice-extender"); err != nil {
				return err
			}
			config, err := o.rest("gpuslice-extender")
			if err != nil {
				return err
			}
			if c.PodGroups, err = dynamic.NewForConfig(config); err != nil {
				return fmt.Errorf("read PodGroups: %w", err)
			}
			ctx, stop := untilSignal()
			defer stop()
			var tasks sync.WaitGroup
			defer tasks.Wait()
			defer stop()
			c.Log, c.GroupTopology = o.log(), args.GroupTopology
			c.Engine, c.HAMiMetrics, c.ScoreWithPreferences = args.Engine(), args.HAMiMetrics(), args.ScoreWithPreferences
			if args.GrantPrivateKeyFile != "" {
				keys := grant.OpenSigningKeys(args.GrantPrivateKeyFile, c.Log)
				if err := keys.Ready(); err != nil {
					return err
				}
				tasks.Go(func() { keys.Run(ctx) })
				c.Engine.Keys = keys
				c.Keys = keys
			}
			c.GPUQuota = cache.NewObjectName(args.GPUQuotaName())
			if elect {
				host, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("read the host name: %w", err)
				}
				election.Identity = cmp.Or(election.Identity, fmt.Sprintf("%s_%d_%d", host, os.Getpid(), time.Now().UnixNano()))
				c.Election = &election
			}
			return extender.Run(ctx, c)
		},
	}
	fs := command.Flags()
	o.flags(fs)
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:8080", "listen on this host:port")
	fs.StringVar(&c.DebugAddress, "debug-address", "", "also serve /, /debug/state, /debug/explain, /debug/pprof/ and /metrics on this "+
		"host:port, over plain HTTP; empty: only on --listen")
	fs.StringVar(&c.CertFile, "tls-cert-file", "", "serve TLS with this certificate; empty: plain HTTP, only for an "+
		"address that no other host can reach")
	fs.StringVar(&c.KeyFile, "tls-key-file", "", "private key of --tls-cert-file")
	fs.DurationVar(&c.ReservationTimeout, "reservation-timeout", extender.DefaultReservationTimeout,
		"release GPUs that filter reserved if the pod is not bound within this time")
	fs.DurationVar(&c.GroupTimeout, "group-timeout", extender.DefaultGroupTimeout,
		"how long the bind of a pod waits for its group; must be less than kube-scheduler's httpTimeout")
	fs.IntVar(&c.BestNodes, "best-nodes", extender.DefaultBestNodes, "how many nodes, the best by GPUs, filter returns for a "+
		"pod that prefers nodes by GPUs only; with more than 1 kube-scheduler's plugins choose among them")
	fs.StringVar(&c.LeaderLease, "leader-lease", "", "Lease of the kube-schedulers (NAMESPACE/NAME), if an extender "+
		"runs on each of their hosts; needs --leader-elect=false: only the extender on the leader's host grants GPUs")
	fs.BoolVar(&elect, "leader-elect", true, "elect one replica to answer, by a Lease")
	fs.StringVar(&election.Namespace, "leader-elect-resource-namespace", election.Namespace, "namespace of the Lease")
	fs.StringVar(&election.Name, "leader-elect-resource-name", election.Name, "name of the Lease")
	return command
}

func webhookCommand() *cobra.Command {
	var o common
	options := webhook.DefaultOptions()
	command := &cobra.Command{
		Use:   "webhook",
		Short: "Complete and validate new pods that request GPUs (admission webhook)",
		RunE: func(*cobra.Command, []string) error {
			args, err := o.args()
			if err != nil {
				return err
			}
			options.Request = args.Engine().Request
			options.Log = o.log()
			if options.CertFile == "" || len(options.ClaimNamespaces) > 0 {
				if options.Client, err = o.client("gpuslice-webhook"); err != nil {
					return err
				}
			}
			ctx, stop := untilSignal()
			defer stop()
			return webhook.Run(ctx, options)
		},
	}
	o.flags(command.Flags())
	options.AddFlags(command.Flags())
	return command
}

func grantKeysCommand() *cobra.Command {
	var o common
	var objects grantkeys.Objects
	command := &cobra.Command{
		Use:   "grant-keys",
		Short: "Create the Secret and the ConfigMap with the keys for grants, if they do not exist",
		RunE: func(*cobra.Command, []string) error {
			client, err := o.client("gpuslice-grant-keys")
			if err != nil {
				return err
			}
			ctx, stop := untilSignal()
			defer stop()
			return grantkeys.Ensure(ctx, client, objects, o.log())
		},
	}
	fs := command.Flags()
	o.clientFlags(fs)
	fs.StringVar(&objects.Namespace, "namespace", "", "namespace of both objects")
	fs.StringVar(&objects.Secret, "secret", "", "Secret with the private keys in private.pem, for the scheduler; an existing one is "+
		"never changed")
	fs.StringVar(&objects.ConfigMap, "config-map", "", "ConfigMap with the public keys in public.pem, for agents; changed only if it "+
		"lacks the public key of a private key")
	return command
}
