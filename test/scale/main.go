package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/test/kube"
)

func main() {
	nodes := flag.Int("nodes", 1000, "nodes, with 8 GPUs each")
	pods := flag.Int("pods", 3000, "pods of each row")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *nodes, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// row is one way of binding pods.
type row struct {
	name string
	gpus bool
	bind func(ctx context.Context, l *lab) error
}

var rows = []row{
	{"no GPUs", false, schedulerProcess("Binding")},
	{"plugin, Binding", true, schedulerProcess("Binding")},
	{"plugin, Patch", true, schedulerProcess("Patch")},
	{"extender", true, stockWithExtender},
	{"extender, 1 call", true, callers(1)},
	{"extender, 8 calls", true, callers(8)},
}

func run(ctx context.Context, nodes, pods int) (err error) {
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	say("starting etcd and kube-apiserver")
	cluster, err := kube.NewControlPlane(ctx)
	if cluster != nil {
		defer func() { err = errors.Join(err, cluster.Close(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return err
	}
	l := &lab{cluster: cluster, nodes: nodes, pods: pods}
	say("making %d nodes", nodes)
	if err := l.makeNodes(ctx); err != nil {
		return err
	}
	fmt.Printf("%d nodes with 8 GPUs, %d pods a row\n\n", nodes, pods)
	fmt.Println("| | pods/s | of no GPUs | first to last bind | CPU s of the scheduler |")
	fmt.Println("|---|---|---|---|---|")
	ceiling := 0.0
	for _, r := range rows {
		say("%s: making %d pods", r.name, pods)
		if err := l.makePods(ctx, r.gpus); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		say("%s: binding", r.name)
		seen, err := l.measure(ctx, r.bind)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if r.gpus {
			if err := l.audit(ctx); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
		if ceiling == 0 {
			ceiling = seen.rate()
		}
		fmt.Printf("| %s | %.0f | %.2f | %v | %.1f |\n", r.name, seen.rate(), seen.rate()/ceiling, seen.took.Round(10*time.Millisecond), seen.cpu.Seconds())
		if err := l.deletePods(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}
