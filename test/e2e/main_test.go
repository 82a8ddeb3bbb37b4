//go:build e2e

package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// cluster serves all tests.
var cluster *kube.Cluster

// takeDown is how long it may take to end a cluster.
const takeDown = 2 * time.Minute

// followed are all pods of the cluster.
var followed *reservations

// component is the scheduler's component that places pods.
var component = kube.Framework

func init() {
	flag.Func("component", fmt.Sprintf("the scheduler's component that places pods, of %q", kube.Components), func(name string) error {
		component = kube.Component(name)
		if !slices.Contains(kube.Components, component) {
			return fmt.Errorf("must be one of %q", kube.Components)
		}
		return nil
	})
}

var keep = flag.Bool("keep", false, "after a failure, leave the cluster until Ctrl-C")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	// Ctrl-C ends the tests' processes by their closing, in order.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Nor does -timeout end the process with the cluster left behind.
	if timeout, set := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); set && timeout > 2*takeDown {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout-takeDown)
		defer cancel()
	}
	began := time.Now()
	var err error
	cluster, err = kube.New(ctx, kube.Options{Component: component, Progress: func(format string, args ...any) {
		fmt.Printf("%6.1fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}})
	done := make(chan int, 1)
	if err != nil {
		fmt.Fprintf(os.Stderr, "bring the cluster up: %v\n", err)
		done <- 1
	} else {
		go func() { done <- runTests(m) }()
	}
	select {
	case code = <-done:
	case <-ctx.Done():
		fmt.Fprintf(os.Stderr, "--- FAIL: the tests were ended: %v\n", context.Cause(ctx))
		code = 130
	}
	if code != 0 {
		saveLogs()
		if *keep {
			fmt.Printf("the cluster is kept: KUBECONFIG=%s/pki/admin.kubeconfig; Ctrl-C ends it\n", cluster.Dir)
			<-ctx.Done()
		}
	}
	closing, cancel := context.WithTimeout(context.Background(), takeDown)
	defer cancel()
	if err := cluster.Close(closing); err != nil {
		fmt.Fprintf(os.Stderr, "take the cluster down: %v\n", err)
		code = max(code, 1)
	}
	return code
}

// runTests runs the tests while all that is granted is followed.
func runTests(m *testing.M) int {
	var err error
	followed, err = followReservations(cluster.API)
	if err != nil {
		fmt.Fprintf(os.Stderr, "follow the pods: %v\n", err)
		return 1
	}
	code := m.Run()
	for _, wrong := range followed.close() {
		fmt.Fprintf(os.Stderr, "--- FAIL: Reservations/%s\n", strings.ReplaceAll(wrong, " ", "_"))
		code = 1
	}
	return code
}

// saveLogs keeps the logs of all programs where `make clean` finds them.
func saveLogs() {
	root, err := harness.Repository()
	if err == nil {
		dir := filepath.Join(root, "build", "e2e-logs", time.Now().Format("20060102-150405-")+string(component))
		if err = cluster.SaveLogs(dir); err == nil {
			fmt.Printf("the logs of all programs are in %s\n", dir)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "keep the logs: %v\n", err)
}

// schedulerRestarts are restarts of the scheduler, in the same words as the others.
var schedulerRestarts = []restart{
	{"scheduler", func(ctx context.Context) error { return cluster.RestartScheduler(ctx) }},
	{"scheduler, killed", func(ctx context.Context) error { return cluster.KillScheduler(ctx) }},
}
