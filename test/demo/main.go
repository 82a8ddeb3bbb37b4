// Command demo shows gpuslice's main job on this machine: a real containerd, runc and NRI, a simulated GPU,
// and containers that share it inside their limits. It prints each step, shows what each container sees,
// checks every expectation, and removes everything. Its exit status is 0 only if all expectations held. With "keep" the
// node stays up, until it is called with "stop".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/loopback"
)

const usage = "usage: demo [keep|stop]"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string) error {
	d := &demo{}
	switch {
	case os.Geteuid() != 0:
		return errors.New("root is needed: a real containerd creates containers, with mounts and control groups")
	case len(args) == 1 && args[0] == "stop":
		return takeDown()
	case len(args) == 1 && args[0] == "keep":
		d.keep = true
		if where, err := os.Readlink(kept); err == nil {
			return fmt.Errorf("a node of the demo is up (%s): take it down first: make demo DEMO=stop", where)
		}
	case len(args) != 0:
		return errors.New(usage)
	}
	started := time.Now()
	if err := d.run(ctx); err != nil {
		return err
	}
	if d.failed > 0 {
		return fmt.Errorf("%d of %d expectations did NOT hold", d.failed, d.checked)
	}
	end := "Everything is stopped and removed"
	if d.keep {
		end = "The node is up"
	}
	fmt.Printf("\nAll %d expectations held. %s (%.0f s).\n", d.checked, end, time.Since(started).Seconds())
	if d.keep {
		fmt.Print(d.hints())
	}
	return nil
}

type demo struct {
	node            *harness.Node
	checked, failed int
	// keep leaves the node up; page is then the address of its page.
	keep bool
	page string
}

// expect checks one expectation and shows it.
func (d *demo) expect(ok bool, format string, args ...any) {
	d.checked++
	mark := "ok  "
	if !ok {
		d.failed++
		mark = "FAIL"
	}
	fmt.Printf("  %s %s\n", mark, fmt.Sprintf(format, args...))
}

func step(format string, args ...any) { fmt.Printf("\n"+format+"\n", args...) }

func (d *demo) run(ctx context.Context) (err error) {
	step("Bringing up a node with one simulated H200 …")
	options := harness.NodeOptions{
		Progress: func(format string, args ...any) { fmt.Printf("  … "+format+"\n", args...) },
	}
	if d.keep {
		if d.page, err = loopback.Address(); err != nil {
			return err
		}
		options.AgentArgs = []string{"--metrics-address=" + d.page}
	}
	d.node, err = harness.NewNode(ctx, options)
	defer func() {
		if d.keep && err == nil && d.failed == 0 {
			return
		}
		step("Taking everything down …")
		// Not ctx: after a Ctrl-C, too, everything has to go.
		closing, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if closeErr := d.node.Close(closing); closeErr != nil && err == nil {
			err = fmt.Errorf("take the node down: %w", closeErr)
		}
	}()
	if err != nil {
		return err
	}
	if err := d.show(ctx); err != nil || !d.keep || d.failed > 0 {
		return err
	}
	return d.leave()
}

// The demo's two tenants. Together they leave 20891 MiB of an H200's 143771.
const (
	trainMiB, trainCores = 40960, 30
	inferMiB, inferCores = 81920, 60
	// heldMiB is what each of them holds from its start on.
	heldMiB = 10000
	// contextMiB is what each of their CUDA processes takes besides: its context.
	contextMiB = 520
)

func (d *demo) show(ctx context.Context) error {
	status, err := d.node.Status(ctx)
	if err != nil {
		return err
	}
	if len(status.GPUs) != 1 {
		return fmt.Errorf("the agent found %d GPUs, not 1", len(status.GPUs))
	}
	gpu := status.GPUs[0].UUID

	step("Two pods share the GPU, annotated as HAMi's scheduler does it:")
	train, err := d.start(ctx, "train", gpu, trainMiB, trainCores)
	if err != nil {
		return err
	}
	infer, err := d.start(ctx, "infer", gpu, inferMiB, inferCores)
	if err != nil {
		return err
	}

	step("A third asks for all GPUs by its image (NVIDIA_VISIBLE_DEVICES=all) and has no grant:")
	none, err := d.node.RunPod(ctx, harness.Pod{Name: "no-grant"})
	if err != nil {
		return err
	}
	noneID, err := none.Start(ctx, harness.Container{Name: "main", Image: harness.GreedyImage})
	if err != nil {
		return err
	}
	_, _, code, err := d.node.Exec(ctx, noneID, harness.WorkloadDir+"/meminfo")
	if err != nil {
		return err
	}
	d.expect(code == 4, "it runs, and finds no driver and no GPU")

	step("A fourth asks for 30000 MiB, more than is left:")
	late, err := d.node.RunPod(ctx, gpuPod("late", gpu, 30000, 5))
	if err != nil {
		return err
	}
	_, err = late.Start(ctx, harness.Container{Name: "main"})
	d.expect(err != nil && strings.Contains(err.Error(), "default/late"), "it is refused, and the pod's event states the reason:")
	if err != nil {
		fmt.Printf("       %s\n", reason(err))
	}

	step("What each container sees of the GPU (asked inside it):")
	if err := d.views(ctx, train, infer); err != nil {
		return err
	}

	step("\"train\" allocates until it is refused, while \"infer\" computes:")
	if err := d.pressure(ctx, train, infer); err != nil {
		return err
	}

	step("Both compute without a pause, and divide the GPU's time by their shares:")
	if err := d.compute(ctx, train, infer); err != nil {
		return err
	}

	if d.node.HasCtr() {
		step("A container without Kubernetes (ctr run, as docker run), resized while it runs:")
		if err := d.resize(ctx); err != nil {
			return err
		}
	}

	step("The node's own view (gpuslice status):")
	table, err := d.node.CLI(ctx, "status")
	if err != nil {
		return err
	}
	fmt.Print(indent(table))
	if d.keep {
		return nil
	}

	step("What is granted after each is removed:")
	return d.remove(ctx, []*harness.Sandbox{infer.sandbox, train.sandbox, none, late})
}

// tenant is a running pod with one container.
type tenant struct {
	name    string
	id      string
	sandbox *harness.Sandbox
	mib     int64
	cores   int
}

func gpuPod(name, gpu string, mib, cores int) harness.Pod {
	return harness.Pod{Name: name, Annotations: map[string]string{
		"hami.io/vgpu-devices-to-allocate": fmt.Sprintf("%s,NVIDIA,%d,%d:;", gpu, mib, cores),
	}}
}

func (d *demo) start(ctx context.Context, name, gpu string, mib, cores int) (tenant, error) {
	pod := gpuPod(name, gpu, mib, cores)
	for key, value := range pod.Annotations {
		fmt.Printf("  pod %-6s %s: %s\n", name, key, value)
	}
	sandbox, err := d.node.RunPod(ctx, pod)
	if err != nil {
		return tenant{}, err
	}
	// What it holds from its start on, so that there is something to see.
	main := harness.Container{
		Name: "main", Image: harness.GreedyImage,
		Command: []string{harness.WorkloadDir + "/hold", "--mib=" + strconv.Itoa(heldMiB)},
		Env:     []string{harness.BusyEnv(cores)},
	}
	id, err := sandbox.Start(ctx, main)
	if err != nil {
		return tenant{}, err
	}
	err = harness.Until(ctx, time.Minute, func(context.Context) error {
		log, err := sandbox.Logs(main)
		if err == nil && harness.KeyValues(log)["ready"] != "1" {
			err = fmt.Errorf("its workload has not started: %s", log)
		}
		return err
	})
	return tenant{name: name, id: id, sandbox: sandbox, mib: int64(mib), cores: cores}, err
}

// views shows and checks what the driver and NVML report inside each container.
func (d *demo) views(ctx context.Context, tenants ...tenant) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  POD\tGPU\tcuDeviceTotalMem\tcuMemGetInfo free\tNVML total\tNVML used")
	views := map[string]map[string]string{}
	for _, t := range tenants {
		v, err := d.workload(ctx, t, "meminfo")
		if err != nil {
			return err
		}
		views[t.name] = v
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", t.name, v["device.0.name"],
			mib(v["device.0.total_bytes"]), mib(v["device.0.info_free_bytes"]), mib(v["nvml.0.total_bytes"]), mib(v["nvml.0.used_bytes"]))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range tenants {
		v, limit := views[t.name], strconv.FormatInt(t.mib<<20, 10)
		d.expect(v["device_count"] == "1" && v["device.0.total_bytes"] == limit && v["nvml.0.total_bytes"] == limit,
			"%q sees one GPU of %d MiB", t.name, t.mib)
		// Two processes: the one that holds memory, and the one that looks.
		used := strconv.FormatInt((heldMiB+2*contextMiB)<<20, 10)
		d.expect(v["nvml.0.used_bytes"] == used, "%q sees its own %d MiB and two contexts in use, and nothing of its neighbour's", t.name, heldMiB)
	}
	return nil
}

// pressure runs one container into its limit while the other computes.
func (d *demo) pressure(ctx context.Context, train, infer tenant) error {
	type answer struct {
		values map[string]string
		err    error
	}
	computing := make(chan answer, 1)
	go func() {
		v, err := d.workload(ctx, infer, "launch", "--seconds=3")
		computing <- answer{v, err}
	}()
	v, err := d.workload(ctx, train, "alloc", "--chunk-mib=64")
	if err != nil {
		return err
	}
	got, _ := strconv.ParseInt(v["allocated_bytes"], 10, 64)
	fmt.Printf("       train: %d MiB held + %s allocated + two contexts of %d MiB, then %s\n", heldMiB, mib(v["allocated_bytes"]), contextMiB, v["result"])
	d.expect(v["result"] == "CUDA_ERROR_OUT_OF_MEMORY", "\"train\" gets CUDA_ERROR_OUT_OF_MEMORY")
	all := got + (heldMiB+2*contextMiB)<<20
	d.expect(all <= train.mib<<20 && all > (train.mib-64)<<20, "it got its %d MiB (to less than a chunk of 64 MiB) and not a byte more", train.mib)

	neighbour := <-computing
	if neighbour.err != nil {
		return neighbour.err
	}
	launches, _ := strconv.Atoi(neighbour.values["launches"])
	fmt.Printf("       infer: %d kernels in 3 s\n", launches)
	d.expect(launches > 0, "\"infer\" went on without an error")

	return nil
}

// compute starts a program that keeps the GPU busy in each container, and measures how they divide it.
func (d *demo) compute(ctx context.Context, tenants ...tenant) error {
	shares := map[int]int{}
	for _, t := range tenants {
		shares[t.cores] = t.cores // the simulated GPU counts each under this number
		command := []string{"/bin/sh", "-c", strings.Join(harness.Busy, " ") + " >/dev/null 2>&1 &"}
		if _, stderr, code, err := d.node.Exec(ctx, t.id, command...); err != nil || code != 0 {
			return errors.Join(err, fmt.Errorf("start a program in %s: exit status %d: %s", t.name, code, stderr))
		}
	}
	const within = 5
	has, err := d.node.MeasureShares(ctx, 0, shares, within)
	var names, parts []string
	for _, t := range tenants {
		names, parts = append(names, strconv.Quote(t.name)), append(parts, strconv.Itoa(t.cores))
		if err == nil {
			fmt.Printf("       %s: %.1f %% of the GPU\n", t.name, has[t.cores])
		}
	}
	d.expect(err == nil, "%s divide what they had %s (to %d points of 100)", strings.Join(names, " and "), strings.Join(parts, " : "), within)
	if err != nil {
		fmt.Printf("       %v\n", err)
	}
	return nil
}

// resize changes the share of a container of ctr, which has no scheduler.
func (d *demo) resize(ctx context.Context) (err error) {
	const name, firstMiB, thenMiB, firstCores, thenCores = "notebook", 8192, 12288, 5, 10
	if err := d.node.WriteRuntimeConfig(""); err != nil {
		return err
	}
	wrapper, err := harness.Wrapper()
	if err != nil {
		return err
	}
	request := []string{"--env", fmt.Sprintf("GPUSLICE_MEMORY=%dMiB", firstMiB), "--env", fmt.Sprintf("GPUSLICE_CORES=%d", firstCores)}
	run := slices.Concat([]string{"run", "--detach", "--runc-binary", wrapper}, request, []string{harness.WorkloadImage, name, "/bin/sleep", "100000"})
	if _, err := d.node.Ctr(ctx, run...); err != nil {
		return err
	}
	defer func() {
		for _, command := range [][]string{{"tasks", "delete", "--force", name}, {"containers", "delete", name}} {
			_, removeErr := d.node.Ctr(ctx, command...)
			err = errors.Join(err, removeErr)
		}
	}()
	sees := func(mib int) error {
		out, err := d.node.Ctr(ctx, "tasks", "exec", "--exec-id", "look", name, harness.WorkloadDir+"/meminfo")
		d.expect(err == nil && harness.KeyValues(out)["device.0.total_bytes"] == strconv.Itoa(mib<<20), "%q sees a GPU of %d MiB", name, mib)
		return err
	}
	if err := sees(firstMiB); err != nil {
		return err
	}
	out, err := d.node.CLI(ctx, "resize", name, "--memory", fmt.Sprintf("%dMiB", thenMiB), "--cores", strconv.Itoa(thenCores))
	if err != nil {
		return err
	}
	fmt.Printf("       gpuslice resize: %s", out)
	if err := sees(thenMiB); err != nil {
		return err
	}
	status, err := d.node.Status(ctx)
	if err != nil {
		return err
	}
	gpu := status.GPUs[0]
	d.expect(gpu.GrantedMemoryMiB == trainMiB+inferMiB+thenMiB && gpu.GrantedCores == trainCores+inferCores+thenCores,
		"%d MiB and %d %% of the GPU are granted", gpu.GrantedMemoryMiB, gpu.GrantedCores)
	_, tooMuch := d.node.CLI(ctx, "resize", name, "--memory", "100GiB")
	d.expect(tooMuch != nil, "100 GiB are refused: the GPU does not have them free")
	return nil
}

// remove removes the pods one after the other and shows what stays granted.
func (d *demo) remove(ctx context.Context, pods []*harness.Sandbox) error {
	shares := map[string]int64{"train": trainMiB, "infer": inferMiB}
	granted := int64(trainMiB + inferMiB)
	for _, p := range pods {
		if err := p.Remove(ctx); err != nil {
			return err
		}
		status, err := d.node.Status(ctx)
		if err != nil {
			return err
		}
		c := status.GPUs[0]
		granted -= shares[p.Pod.Name]
		d.expect(c.GrantedMemoryMiB == granted && len(status.Containers) == c.Containers,
			"%-8s removed: %6d MiB and %2d %% of the GPU granted, %d containers in the ledger",
			p.Pod.Name, c.GrantedMemoryMiB, c.GrantedCores, len(status.Containers))
	}
	d.expect(granted == 0, "the ledger is empty")
	return nil
}

// workload runs a CUDA workload in a container and returns its key=value lines.
func (d *demo) workload(ctx context.Context, t tenant, name string, args ...string) (map[string]string, error) {
	stdout, stderr, code, err := d.node.Exec(ctx, t.id, append([]string{harness.WorkloadDir + "/" + name}, args...)...)
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("%s in %s: exit status %d: %s", name, t.name, code, stderr)
	}
	return harness.KeyValues(stdout), nil
}

// reason is a refusal without the CRI's frame around it.
func reason(err error) string {
	text := err.Error()
	if i := strings.Index(text, "pod default/"); i >= 0 {
		return text[i:]
	}
	return text
}

// mib formats a number of bytes.
func mib(bytes string) string {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return bytes
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return b.String()
}
