package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/test/kube"
)

func main() {
	nodes := flag.Int("nodes", 1000, "nodes, with 8 GPUs each")
	pods := flag.Int("pods", 3000, "pods of each row")
	only := flag.String("rows", "", "only these rows, separated by semicolons; the first is what the others are compared with")
	rounds := flag.Int("rounds", 1, "how often, one row after the other")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *nodes, *pods, *rounds, *only); err != nil {
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
	{"no GPUs", false, schedulerProcess(nil)},
	{"no GPUs, 10 %", false, schedulerProcess(10, "percentageOfNodesToScore")},
	{"plugin, Binding", true, schedulerProcess(nil)},
	{"plugin, Patch", true, schedulerProcess("Patch", "profiles", 0, "pluginConfig", 0, "args", "annotate")},
	{"extender", true, stockWithExtender(nil)},
	{"extender, 10 %", true, stockWithExtender(10, "percentageOfNodesToScore")},
	{"extender, 1 call", true, callers(1)},
	{"extender, 8 calls", true, callers(8)},
}

// chosen are the rows to measure.
func chosen(only string, rounds int) (some []row, err error) {
	all := rows
	if only != "" {
		all = nil
		for name := range strings.SplitSeq(only, ";") {
			i := slices.IndexFunc(rows, func(r row) bool { return r.name == strings.TrimSpace(name) })
			if i < 0 {
				return nil, fmt.Errorf("there is no row %q", name)
			}
			all = append(all, rows[i])
		}
	}
	for range rounds {
		some = append(some, all...)
	}
	return some, nil
}

func run(ctx context.Context, nodes, pods, rounds int, only string) (err error) {
	some, err := chosen(only, rounds)
	if err != nil {
		return err
	}
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
	fmt.Printf("| | pods/s | of %s | first to last bind | CPU ms a pod: scheduler | API server and etcd | nodes used |\n", some[0].name)
	fmt.Println("|---|---|---|---|---|---|---|")
	ceiling := 0.0
	for i, r := range some {
		say("%s: making %d pods", r.name, pods)
		if err := l.makePods(ctx, r.gpus); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		say("%s: binding", r.name)
		seen, err := l.measure(ctx, r.bind)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		used, err := l.audit(ctx, r.gpus)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if i%(len(some)/rounds) == 0 { // of this round
			ceiling = seen.rate()
		}
		fmt.Printf("| %s | %.0f | %.2f | %v | %.2f | %.2f | %d |\n", r.name, seen.rate(), seen.rate()/ceiling, seen.took.Round(10*time.Millisecond),
			seen.perPod(seen.scheduler), seen.perPod(seen.server), used)
		if err := l.deletePods(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}
