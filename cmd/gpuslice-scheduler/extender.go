package main

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/extender"
)

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
	fs.StringVar(&c.DebugAddress, "debug-address", "", "also serve /, /debug/state, /debug/explain and /metrics on this "+
		"host:port, over plain HTTP; empty: only on --listen")
	fs.StringVar(&c.CertFile, "tls-cert-file", "", "serve TLS with this certificate; empty: plain HTTP, only for an "+
		"address that no other host can reach")
	fs.StringVar(&c.KeyFile, "tls-key-file", "", "private key of --tls-cert-file")
	fs.DurationVar(&c.ReservationTimeout, "reservation-timeout", extender.DefaultReservationTimeout,
		"release GPUs that filter reserved if the pod is not bound within this time")
	fs.DurationVar(&c.GroupTimeout, "group-timeout", extender.DefaultGroupTimeout,
		"how long the bind of a pod waits for its group; must be less than kube-scheduler's httpTimeout")
	fs.StringVar(&c.LeaderLease, "leader-lease", "", "Lease of the kube-schedulers (NAMESPACE/NAME), if an extender "+
		"runs on each of their hosts without --leader-elect: only the extender on the leader's host answers resize requests")
	fs.BoolVar(&elect, "leader-elect", true, "elect one replica to answer, by a Lease")
	fs.StringVar(&election.Namespace, "leader-elect-resource-namespace", election.Namespace, "namespace of the Lease")
	fs.StringVar(&election.Name, "leader-elect-resource-name", election.Name, "name of the Lease")
	return command
}
