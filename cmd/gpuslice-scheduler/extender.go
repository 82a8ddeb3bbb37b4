package main

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// extenderCommand is the door for a kube-scheduler that can't be replaced.
func extenderCommand() *cobra.Command {
	var o common
	var elect bool
	election := extender.Election{Namespace: "kube-system", Name: "gpuslice-extender"}
	c := extender.Config{Version: version.String()}
	command := &cobra.Command{
		Use:   "extender",
		Short: "Answer a stock kube-scheduler's calls of its extender, over HTTP",
		RunE: func(*cobra.Command, []string) error {
			args, err := o.args()
			if err != nil {
				return err
			}
			if c.Client, err = o.client("gpuslice-extender"); err != nil {
				return err
			}
			ctx, stop := untilSignal()
			defer stop()
			var tasks sync.WaitGroup
			defer tasks.Wait()
			defer stop()
			c.Log = o.log()
			c.Engine, c.HAMiMetrics = args.Engine(), args.HAMiMetrics()
			if args.GrantPrivateKeyFile != "" {
				keys := grant.OpenSigningKeys(args.GrantPrivateKeyFile, c.Log)
				if err := keys.Ready(); err != nil {
					return err
				}
				tasks.Go(func() { keys.Run(ctx) })
				c.Engine.Keys = keys
				c.Key = keys.Current
			}
			if namespace, name := args.GPUQuotaName(); name != "" {
				c.GPUQuota = &extender.GPUQuota{Namespace: namespace, Name: name, Labels: quota.DefaultLabels()}
			}
			if elect {
				host, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("name this replica: %w", err)
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
	fs.StringVar(&c.DebugAddress, "debug-address", "", "answer /, /debug/state, /debug/explain and /metrics on this host:port too, over plain HTTP; empty: on --listen alone")
	fs.StringVar(&c.CertFile, "tls-cert-file", "", "serve TLS with this certificate; empty: plain HTTP, for an address that nobody else reaches")
	fs.StringVar(&c.KeyFile, "tls-key-file", "", "the key of --tls-cert-file")
	fs.DurationVar(&c.Hold, "hold", 0, "keep what was filtered reserved for so long, until it is bound; 0: the default")
	fs.DurationVar(&c.GangTimeout, "group-timeout", extender.DefaultGangTimeout, "let a pod's bind wait for its group for so long: less than kube-scheduler's httpTimeout")
	fs.StringVar(&c.LeaderLease, "leader-lease", "", "where an extender is beside each kube-scheduler, without an election: their Lease, as NAMESPACE/NAME; requests to resize pods are answered by the one whose host holds it")
	fs.BoolVar(&elect, "leader-elect", true, "let replicas choose the one that answers, by a Lease")
	fs.StringVar(&election.Namespace, "leader-elect-resource-namespace", election.Namespace, "the Lease's namespace")
	fs.StringVar(&election.Name, "leader-elect-resource-name", election.Name, "the Lease's name")
	return command
}
