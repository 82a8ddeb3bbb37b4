package verify

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// What the two containers get.
const (
	// LimitMiB has room for a CUDA context of any GPU, and for allocations beside it.
	LimitMiB = 2048
	chunkMiB = 16
	// beyondMiB is the most that a probe takes beyond its limit where the limit does not hold.
	beyondMiB = 256
)

// cores are the compute shares of the two containers, from the best to the smallest that the room on a GPU allows.
var cores = [][2]int{{30, 60}, {20, 40}, {10, 20}}

// shareBound is how far, in points of 100, what a container had of both's work can be from its share.
const shareBound = 8.0

// kinds are the kinds of device memory, as in gpuslice-probe's command "memory".
var kinds = []struct{ name, what string }{
	{"alloc", "cuMemAlloc"}, {"async", "cuMemAllocAsync"}, {"vmm", "cuMemCreate"}, {"managed", "cuMemAllocManaged"}, {"array", "cuArrayCreate"},
}

// room is a GPU with room for both containers.
type room struct {
	gpu   view.GPU
	cores [2]int
}

// choose chooses the GPU with the fewest containers that has room for both. Only what is free is taken.
func choose(n view.Node, uuid string) (room, error) {
	var best *room
	var full []string
	for _, gpu := range n.GPUs {
		if uuid != "" && gpu.UUID != uuid && strconv.Itoa(gpu.Index) != uuid {
			continue
		}
		shares, why := fits(gpu)
		switch {
		case why != "":
			full = append(full, fmt.Sprintf("GPU %d %s", gpu.Index, why))
		case best == nil || gpu.GrantedContainers < best.gpu.GrantedContainers:
			best = &room{gpu, shares}
		}
	}
	switch {
	case best != nil:
		return *best, nil
	case len(full) > 0:
		return room{}, fmt.Errorf("no GPU has room for two containers with %d MiB and %d and %d %% each: %s: run it again when containers have ended",
			LimitMiB, cores[len(cores)-1][0], cores[len(cores)-1][1], strings.Join(full, "; "))
	case uuid != "":
		return room{}, fmt.Errorf("there is no GPU %s: gpuslice status lists the GPUs", uuid)
	}
	return room{}, fmt.Errorf("this node has no GPU: check the driver with gpuslice doctor")
}

// fits returns the compute shares for which the GPU has room, or why it has none.
func fits(gpu view.GPU) (shares [2]int, why string) {
	freeMiB, freeCores := gpu.GrantableMiB-gpu.GrantedMemoryMiB, gpu.GrantableCores-gpu.GrantedCores
	switch {
	case gpu.MIG != nil || gpu.MIGProfile != "":
		return shares, "is a MIG device, of which a container gets all"
	case !gpu.Healthy:
		return shares, "is unhealthy: " + gpu.Unhealthy
	case gpu.Cordoned:
		return shares, "is cordoned"
	case gpu.GrantableReplicas-gpu.GrantedContainers < 2:
		return shares, fmt.Sprintf("has %d of %d containers", gpu.GrantedContainers, gpu.GrantableReplicas)
	case freeMiB < 2*LimitMiB:
		return shares, fmt.Sprintf("has %d MiB free", max(freeMiB, 0))
	}
	for _, shares := range cores {
		if freeCores >= shares[0]+shares[1] {
			return shares, ""
		}
	}
	return shares, fmt.Sprintf("has %d %% free", max(freeCores, 0))
}

// answers are the lines of a probe.
type answers map[string]string

func (a answers) number(key string) float64 {
	n, err := strconv.ParseFloat(a[key], 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// bytes returns -1 for a value that is none.
func (a answers) bytes(key string) int64 {
	n, err := strconv.ParseInt(a[key], 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

const (
	// tooLate is the key of answers that did not come in time. No probe can answer it.
	tooLate = "late"
	// endedByAlarm is the status of a command that had no time left: 128 and SIGALRM.
	endedByAlarm = "142"
)

// late reports that the machine was too slow for the command: its check is not run, and did not fail.
func (a answers) late() bool { return a[tooLate] != "" || a["end"] == endedByAlarm }

// problem is why a command did not do what it was for; empty: it did.
func (a answers) problem() string {
	switch {
	case a["end"] == "0":
		return ""
	case a.late():
		return "no answer in time"
	case a["failed"] != "":
		return a["failed"] + ": " + a["error"]
	case a["end"] == "":
		return "the probe ended"
	}
	return "the probe's command ended with status " + a["end"]
}

const mib = 1 << 20

func judged(check string, ok bool, expected, found string) verification.Row {
	r := verification.Row{Check: check, State: verification.Failed, Expected: expected, Found: found}
	if ok {
		r.State = verification.OK
	}
	return r
}

// inTime returns the row as not run if the answers that it needs did not come in time.
func inTime(a answers, r verification.Row) verification.Row {
	if r.State == verification.Failed && a.late() {
		r.State, r.Found = verification.NotRun, a.problem()
	}
	return r
}

// worse returns the row of two containers that is farther from a passed check, and names the second container where it has that.
func worse(first, second verification.Row) verification.Row {
	bad := map[verification.State]int{verification.NotRun: 1, verification.Failed: 2}
	if bad[second.State] <= bad[first.State] {
		return first
	}
	second.Found = "second container: " + second.Found
	return second
}

// judgeBoth judges what both containers have.
func judgeBoth(inside [2]answers) []verification.Row {
	first, second := judgeInside(inside[0]), judgeInside(inside[1])
	for i := range first {
		first[i] = worse(first[i], second[i])
	}
	return first
}

// judgeEnforcement judges how the limits of both containers are enforced, as the ledger has it.
func judgeEnforcement(containers []view.Container) verification.Row {
	var how []string
	ok := len(containers) == 2
	for _, c := range containers {
		how = append(how, c.Enforcement)
		ok = ok && c.Enforcement != "" && c.Enforcement != "none"
	}
	slices.Sort(how)
	found := strings.Join(slices.Compact(how), ", ")
	if len(containers) != 2 {
		found = fmt.Sprintf("%d of 2 containers have a share in the ledger", len(containers))
	}
	return judged("enforcement", ok, "both containers have a share with a limiter", found)
}

// judgeInside judges what a container has of the limiter.
func judgeInside(a answers) []verification.Row {
	expected := "the limiter is loaded into a program of the container"
	loaded := judged("limiter", a["limiter"] != "" && a.problem() == "", expected, a["limiter"])
	if loaded.Found == "" {
		loaded.Found = "it is not"
	}
	if why := a.problem(); why != "" {
		loaded.Found = why
	}
	files := judged("limits-file", a.bytes("limits_bytes") > 0 && a.bytes("usage_bytes") > 0, "the container has its limits and usage files", "both")
	if files.State == verification.Failed {
		files.Found = fmt.Sprintf("limits: %s bytes, usage: %s bytes", a["limits_bytes"], a["usage_bytes"])
	}
	return []verification.Row{inTime(a, loaded), inTime(a, files)}
}

const cdiExpected = "a container gets the files of its GPU, and of no other one (CDI, or NVIDIA's runtime)"

// judgeDevices judges which GPUs' device nodes a container with one GPU has.
func judgeDevices(a answers) verification.Row {
	return inTime(a, judged("cdi", a["device_nodes"] == "1", cdiExpected, a["device_nodes"]+" device nodes of GPUs"))
}

// judgeHost judges doctor's check of the CDI specs. Only containers need them.
func judgeHost(ok bool, found string) verification.Row {
	row := judged("cdi", ok, cdiExpected, found)
	if !ok {
		row.State, row.Optional = verification.NotRun, true
	}
	return row
}

// judgeGPU judges which GPUs a container sees, of the one that it was granted.
func judgeGPU(a answers, uuid, driver string) verification.Row {
	row := judged("gpu", a.problem() == "" && a["gpus"] == "1" && (uuid == "" || a["uuid"] == uuid) && (driver == "" || a["driver"] == "" || a["driver"] == driver),
		fmt.Sprintf("CUDA shows one GPU, %s, with driver %s", cmp.Or(uuid, "of any UUID"), cmp.Or(driver, "of any version")),
		fmt.Sprintf("%s GPUs, the first is %s, driver %s", cmp.Or(a["gpus"], "no"), cmp.Or(a["uuid"], "not known"), cmp.Or(a["driver"], "not known")))
	if why := a.problem(); why != "" {
		row.Found = why
	}
	return inTime(a, row)
}

// judgeView judges what CUDA and NVML show of the GPU in a container.
func judgeView(a answers, limitMiB int64) []verification.Row {
	limit := limitMiB * mib
	cuda := judged("cuda-memory", a.problem() == "" && a.bytes("device_total_bytes") == limit && a.bytes("cuda_total_bytes") == limit &&
		a.bytes("cuda_free_bytes") >= 0 && a.bytes("cuda_free_bytes")+a.bytes("held_bytes") <= limit,
		fmt.Sprintf("CUDA shows %d MiB in total, and less free than that by what is allocated", limitMiB),
		fmt.Sprintf("%s in total, %s free with %s allocated", inMiB(a.bytes("cuda_total_bytes")), inMiB(a.bytes("cuda_free_bytes")), inMiB(a.bytes("held_bytes"))))
	nvml := judged("nvml-memory", a.problem() == "" && a["nvml_error"] == "" && a.bytes("nvml_total_bytes") == limit &&
		a.bytes("nvml_used_bytes") >= a.bytes("held_bytes") && a.bytes("nvml_used_bytes") <= limit,
		fmt.Sprintf("NVML (nvidia-smi) shows %d MiB in total, and in use what the container uses", limitMiB),
		fmt.Sprintf("%s in total, %s used with %s allocated", inMiB(a.bytes("nvml_total_bytes")), inMiB(a.bytes("nvml_used_bytes")), inMiB(a.bytes("held_bytes"))))
	if why := a.problem(); why != "" {
		cuda.Found, nvml.Found = why, why
	} else if a["nvml_error"] != "" {
		nvml.Found = a["nvml_error"]
	}
	return []verification.Row{inTime(a, cuda), inTime(a, nvml)}
}

func inMiB(bytes int64) string {
	if bytes < 0 {
		return "nothing"
	}
	return fmt.Sprintf("%d MiB", bytes/mib)
}

// judgeMemory judges the allocations of one kind. The context is part of the limit.
func judgeMemory(kind, what string, a answers, limitMiB int64) verification.Row {
	least := limitMiB / 2
	expected := fmt.Sprintf("%s: %d to %d MiB, then CUDA_ERROR_OUT_OF_MEMORY", what, least, limitMiB)
	got := a.bytes("allocated_mib")
	row := judged("memory-"+kind, a.problem() == "" && a["result"] == "CUDA_ERROR_OUT_OF_MEMORY" && got >= least && got <= limitMiB,
		expected, fmt.Sprintf("%d MiB, then %s", got, a["result"]))
	switch {
	case a.problem() != "":
		row.Found = a.problem()
	case a["result"] == "CUDA_SUCCESS":
		row.Found = fmt.Sprintf("%d MiB, not refused", got)
	case got == 0 && a["result"] == "CUDA_ERROR_NOT_SUPPORTED":
		row.State, row.Optional, row.Found = verification.NotRun, true, "the driver does not support it on this GPU"
	}
	return inTime(a, row)
}

// partOf returns which part of both's work the first container had, in percent.
func partOf(first, second answers) float64 {
	a, b := first.number("kernels"), second.number("kernels")
	if first.problem() != "" || second.problem() != "" || !(a > 0) || !(b > 0) {
		return math.NaN()
	}
	return 100 * a / (a + b)
}

// divided reports whether the first container had its part.
func divided(part float64, shares [2]int) bool {
	return math.Abs(part-expectedPart(shares)) <= shareBound
}

// crashed reports that a program did not do its work, and not because of the time.
func crashed(a answers) bool { return a.problem() != "" && !a.late() }

func expectedPart(shares [2]int) float64 {
	return 100 * float64(shares[0]) / float64(shares[0]+shares[1])
}

// The measurement of shares: what two rounds have in common counts, of mostRounds at most.
const (
	mostRounds   = 5
	roundSeconds = 3
	enoughRounds = 2
	// leastBusy is which part of their shares both must have together, or the machine did not keep the GPU busy.
	leastBusy = 0.8
)

// judgeShares judges the work of two containers that both want all of the GPU: rounds have the answers of both. What no container has
// is divided by the shares too, so that only the parts count. decided: more rounds would change nothing.
func judgeShares(rounds [][2]answers, shares [2]int) (row verification.Row, decided bool) {
	want := expectedPart(shares)
	row = verification.Row{Check: "shares", State: verification.NotRun, Expected: fmt.Sprintf("with %d and %d %%, the first has %.0f to %.0f %% of both's work, in %d of %d rounds",
		shares[0], shares[1], math.Ceil(want-shareBound), math.Floor(want+shareBound), enoughRounds, mostRounds)}
	var seen []string
	good, bad := 0, 0
	for _, r := range rounds {
		part := partOf(r[0], r[1])
		busy := r[0].number("had_percent") + r[1].number("had_percent")
		found := fmt.Sprintf("%.1f %% (%s and %s %% of the GPU)", part, r[0]["had_percent"], r[1]["had_percent"])
		switch {
		case crashed(r[0]) || crashed(r[1]):
			bad++
			found = r[0].problem()
			if !crashed(r[0]) {
				found = r[1].problem()
			}
		case r[0].problem() != "" || r[1].problem() != "":
			found = cmp.Or(r[0].problem(), r[1].problem())
		case !(busy >= leastBusy*float64(shares[0]+shares[1])):
			found += ", not busy"
		case divided(part, shares):
			good++
		default:
			bad++
		}
		seen = append(seen, found)
	}
	row.Found = strings.Join(seen, "; ")
	switch {
	case good >= enoughRounds:
		row.State = verification.OK
	case bad >= enoughRounds:
		row.State = verification.Failed
	}
	return row, row.State != verification.NotRun || len(rounds) >= mostRounds
}

const auditExpected = "the agent's audit reports a process that uses the GPU beside the shares"

// judgeAudit judges whether the audit reported the process in the time that it has.
func judgeAudit(kind, reported string, waited fmt.Stringer) verification.Row {
	row := judged("audit", reported != "", auditExpected+", as "+kind, reported)
	if reported == "" {
		row.Found = "not reported within " + waited.String()
	}
	return row
}

// reportOf returns the audit's report of the process: one that names it, or its container.
func reportOf(n view.Node, kind, pid, container string) string {
	for _, v := range n.Violations {
		names := strings.FieldsFunc(v.Detail, func(r rune) bool { return r < '0' || r > '9' })
		if v.Kind == kind && (container != "" && v.Container == container || container == "" && slices.Contains(names, pid)) {
			return v.Kind + ": " + v.Detail
		}
	}
	return ""
}
