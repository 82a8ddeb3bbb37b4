// Package granttest has grants that a node must refuse.
package granttest

import (
	"fmt"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// Node is where a case is played: its name and the GPUs it names.
type Node struct {
	// Name is the node's name.
	Name string
	// GPU and Other are UUIDs of two of the node's GPUs.
	GPU, Other string
	// Missing is a well-formed UUID of a GPU that the node does not have.
	Missing string
	// GPUMiB is the memory of GPU, in MiB.
	GPUMiB int64
}

// Malformed is an annotation that must be refused for the container "main".
type Malformed struct {
	// Description of what is wrong.
	Description string
	Annotations map[string]string
	// Kind is the error's sentinel.
	Kind error
	// These parts must be in the message, beside the pod's and the container's names.
	Says []string
}

// MalformedCases returns annotations that are refused by grant.FromPod or, where
// the grant is well written but not this node's, by the ledger's Claim.
func MalformedCases(node Node) []Malformed {
	cases := append(hamiCases(node), namedCases(node)...)
	return append(cases, pairCases(node)...)
}

func hamiCases(node Node) []Malformed {
	device := func(fields ...string) string { return strings.Join(fields, ",") + ":;" }
	of := func(memory, cores string) string { return device(node.GPU, "NVIDIA", memory, cores) }
	table := []struct {
		description, value string
		kind               error
		says               string
	}{
		{"entry not ended", strings.TrimSuffix(of("1000", "30"), ";"), grant.ErrMalformed, `";"`},
		{"device not ended", node.GPU + ",NVIDIA,1000,30;", grant.ErrMalformed, `position 0`},
		{"cut short inside a number", node.GPU + ",NVIDIA,10", grant.ErrMalformed, `";"`},
		{"not the format at all", "all", grant.ErrMalformed, `";"`},
		{"only a colon", ":;", grant.ErrMalformed, "position 0 device 0"},
		{"empty device between two", node.GPU + ",NVIDIA,1,1::" + node.Other + ",NVIDIA,1,1:;", grant.ErrMalformed, "device 1"},
		{"three fields", device(node.GPU, "NVIDIA", "1000"), grant.ErrMalformed, "device 0"},
		{"five fields", device(node.GPU, "NVIDIA", "1000", "30", "1"), grant.ErrMalformed, "device 0"},
		{"placeholder beside a device", ",,0,0:" + of("1000", "30"), grant.ErrMalformed, "position 0 device 0 uuid"},
		{"no uuid", device("", "NVIDIA", "1000", "30"), grant.ErrMalformed, `uuid ""`},
		{"uuid is an index", device("0", "NVIDIA", "1000", "30"), grant.ErrMalformed, `uuid "0"`},
		{"uuid is all", device("all", "NVIDIA", "1000", "30"), grant.ErrMalformed, `uuid "all"`},
		{"uuid not hexadecimal", device("GPU-aaa", "NVIDIA", "1000", "30"), grant.ErrMalformed, `uuid "GPU-aaa"`},
		{"uuid in upper case", device(upper(node.GPU), "NVIDIA", "1000", "30"), grant.ErrMalformed, "uuid"},
		{"uuid without its prefix", device(node.GPU[4:], "NVIDIA", "1000", "30"), grant.ErrMalformed, "uuid"},
		{"uuid of another prefix", device("TPU"+node.GPU[3:], "NVIDIA", "1000", "30"), grant.ErrMalformed, "uuid"},
		{"uuid with a space", device(" "+node.GPU, "NVIDIA", "1000", "30"), grant.ErrMalformed, "uuid"},
		{"uuid with a MIG template of old HAMi", device(node.GPU+"[0-1]", "NVIDIA", "1000", "30"), grant.ErrMalformed, "uuid"},
		{"uuid that is a path", device("GPU-../../../../../../../../../etc/passwd", "NVIDIA", "1000", "30"), grant.ErrMalformed, "uuid"},
		{"unknown GPU", device(node.Missing, "NVIDIA", "1000", "30"), grant.ErrUnknownGPU, node.Missing},
		{"another vendor", device(node.GPU, "Ascend910", "1000", "30"), grant.ErrMalformed, `type "Ascend910"`},
		{"no type", device(node.GPU, "", "1000", "30"), grant.ErrMalformed, `type ""`},
		{"type in lower case", device(node.GPU, "nvidia", "1000", "30"), grant.ErrMalformed, `type "nvidia"`},
		{"no memory", of("", "30"), grant.ErrMalformed, `memory ""`},
		{"no memory at all", of("0", "30"), grant.ErrMalformed, `memory "0"`},
		{"negative memory", of("-5", "30"), grant.ErrMalformed, `position 0 device 0 memory "-5"`},
		{"memory with a sign", of("+1000", "30"), grant.ErrMalformed, `memory "+1000"`},
		{"memory with a leading zero", of("01000", "30"), grant.ErrMalformed, `memory "01000"`},
		{"memory with a space", of(" 1000", "30"), grant.ErrMalformed, `memory " 1000"`},
		{"memory with a unit", of("1000Mi", "30"), grant.ErrMalformed, `memory "1000Mi"`},
		{"memory with a fraction", of("1000.5", "30"), grant.ErrMalformed, `memory "1000.5"`},
		{"memory with an exponent", of("1e3", "30"), grant.ErrMalformed, `memory "1e3"`},
		{"memory in hexadecimal", of("0x10", "30"), grant.ErrMalformed, `memory "0x10"`},
		{"memory is not a number", of("NaN", "30"), grant.ErrMalformed, `memory "NaN"`},
		{"memory with other digits", of("١٠", "30"), grant.ErrMalformed, "memory"},
		{"memory beyond an int64", of("9223372036854775808", "30"), grant.ErrMalformed, "memory"},
		{"memory that overflows an int64 in bytes", of("8796093022208", "30"), grant.ErrMalformed, "memory"},
		{"memory that wraps to a small number", of("18446744073709551617", "30"), grant.ErrMalformed, "memory"},
		{"more memory than the GPU has", of(fmt.Sprint(node.GPUMiB+1), "30"), grant.ErrOverbooked, "memory"},
		{"no cores", of("1000", ""), grant.ErrMalformed, `cores ""`},
		{"negative cores", of("1000", "-1"), grant.ErrMalformed, `cores "-1"`},
		{"cores above a whole GPU", of("1000", "101"), grant.ErrMalformed, `cores "101"`},
		{"cores with a percent sign", of("1000", "30%"), grant.ErrMalformed, `cores "30%"`},
		{"a GPU twice", strings.Repeat(node.GPU+",NVIDIA,1000,30:", 2) + ";", grant.ErrMalformed, "position 0 device 1 uuid"},
		{"more GPUs than a container may have", manyDevices(grant.MaxShares+1) + ";", grant.ErrMalformed, "position 0"},
		{"more positions than a pod may have", strings.Repeat(";", grant.MaxContainers+1), grant.ErrMalformed, "positions"},
		{"longer than an annotation can be", strings.Repeat(";", grant.MaxAnnotationBytes+1), grant.ErrMalformed, "bytes"},
		{"a fault in another container's entry", of("1000", "30") + of("-5", "30"), grant.ErrMalformed, `position 1 device 0 memory "-5"`},
		{"a line feed", of("1000\n", "30"), grant.ErrMalformed, `memory "1000\n"`},
		{"a NUL", of("1000\x00", "30"), grant.ErrMalformed, "memory"},
	}
	cases := make([]Malformed, 0, len(table))
	for _, t := range table {
		says := []string{t.says}
		if t.kind == grant.ErrMalformed {
			says = append(says, api.AnnotationHAMiToAllocate)
		}
		cases = append(cases, Malformed{"hami: " + t.description, map[string]string{api.AnnotationHAMiToAllocate: t.value}, t.kind, says})
	}
	return cases
}

func namedCases(node Node) []Malformed {
	share := func(uuid, memory, cores string) string {
		return fmt.Sprintf(`{"uuid":%s,"memoryMiB":%s,"cores":%s}`, uuid, memory, cores)
	}
	gpu := `"` + node.GPU + `"`
	good := share(gpu, "1000", "30")
	pod := func(shares ...string) string {
		return `{"version":1,"containers":{"main":[` + strings.Join(shares, ",") + `]}}`
	}
	table := []struct {
		description, value string
		kind               error
		says               string
	}{
		{"empty", ``, grant.ErrMalformed, "JSON"},
		{"cut short", pod(good)[:40], grant.ErrMalformed, "JSON"},
		{"data after it", pod(good) + `{}`, grant.ErrMalformed, "JSON"},
		{"not UTF-8", strings.Replace(pod(good), "main", "m\xffain", 1), grant.ErrMalformed, "UTF-8"},
		{"an array", `[]`, grant.ErrMalformed, "object"},
		{"null", `null`, grant.ErrMalformed, "null"},
		{"nested without an end", strings.Repeat(`[`, 100000), grant.ErrMalformed, "JSON"},
		{"no version", `{"containers":{"main":[` + good + `]}}`, grant.ErrMalformed, "version"},
		{"another version", `{"version":2,"containers":{"main":[` + good + `]}}`, grant.ErrMalformed, "version"},
		{"version as text", `{"version":"1","containers":{"main":[` + good + `]}}`, grant.ErrMalformed, "version"},
		{"unknown field", `{"version":1,"admin":true,"containers":{"main":[` + good + `]}}`, grant.ErrMalformed, `"admin"`},
		{"field in another case", `{"Version":1,"containers":{"main":[` + good + `]}}`, grant.ErrMalformed, `"Version"`},
		{"key twice", `{"version":1,"containers":{"main":[` + good + `]},"containers":{}}`, grant.ErrMalformed, "twice"},
		{"container twice", `{"version":1,"containers":{"main":[` + good + `],"main":[` + good + `]}}`, grant.ErrMalformed, "twice"},
		{"key twice, once escaped", pod(`{"uuid":` + gpu + `,"memoryMiB":1,"cores":1,"\u0063ores":2}`), grant.ErrMalformed, "twice"},
		{"no containers", `{"version":1}`, grant.ErrMalformed, "containers"},
		{"containers empty", `{"version":1,"containers":{}}`, grant.ErrMalformed, "containers"},
		{"containers null", `{"version":1,"containers":null}`, grant.ErrMalformed, "containers"},
		{"container name that is a path", `{"version":1,"containers":{"../main":[` + good + `]}}`, grant.ErrMalformed, "containers"},
		{"empty container name", `{"version":1,"containers":{"":[` + good + `]}}`, grant.ErrMalformed, "containers"},
		{"no share", pod(), grant.ErrMalformed, `containers "main"`},
		{"share null", pod(`null`), grant.ErrMalformed, "share 0"},
		{"share is text", pod(`"` + node.GPU + `"`), grant.ErrMalformed, "share 0"},
		{"share with an unknown field", pod(`{"uuid":` + gpu + `,"memoryMiB":1000,"cores":1,"priority":0}`), grant.ErrMalformed, `"priority"`},
		{"share without uuid", pod(`{"memoryMiB":1000,"cores":30}`), grant.ErrMalformed, "uuid"},
		{"share without memory", pod(`{"uuid":` + gpu + `,"cores":30}`), grant.ErrMalformed, "memoryMiB"},
		{"share without cores", pod(`{"uuid":` + gpu + `,"memoryMiB":1000}`), grant.ErrMalformed, "cores"},
		{"uuid not hexadecimal", pod(share(`"GPU-aaa"`, "1000", "30")), grant.ErrMalformed, "uuid"},
		{"uuid is a number", pod(share(`0`, "1000", "30")), grant.ErrMalformed, "uuid"},
		{"memory as text", pod(share(gpu, `"1000"`, "30")), grant.ErrMalformed, "share 0: memoryMiB"},
		{"memory zero", pod(share(gpu, "0", "30")), grant.ErrMalformed, "memoryMiB"},
		{"memory negative", pod(share(gpu, "-5", "30")), grant.ErrMalformed, "memoryMiB"},
		{"memory with an exponent", pod(share(gpu, "1e3", "30")), grant.ErrMalformed, "memoryMiB"},
		{"memory with a fraction", pod(share(gpu, "1000.0", "30")), grant.ErrMalformed, "memoryMiB"},
		{"memory huge", pod(share(gpu, "99999999999999999999", "30")), grant.ErrMalformed, "memoryMiB"},
		{"memory null", pod(share(gpu, "null", "30")), grant.ErrMalformed, "memoryMiB"},
		{"cores above a whole GPU", pod(share(gpu, "1000", "101")), grant.ErrMalformed, "cores"},
		{"cores negative", pod(share(gpu, "1000", "-1")), grant.ErrMalformed, "cores"},
		{"cores true", pod(share(gpu, "1000", "true")), grant.ErrMalformed, "cores"},
		{"a GPU twice", pod(good, good), grant.ErrMalformed, "share 1"},
		{"a fault in another container", `{"version":1,"containers":{"main":[` + good + `],"side":[{}]}}`, grant.ErrMalformed, `containers "side"`},
		{"another node", strings.Replace(pod(good), `{"version":1`, `{"version":1,"node":"elsewhere"`, 1), grant.ErrWrongNode, `"elsewhere"`},
		{"node empty", strings.Replace(pod(good), `{"version":1`, `{"version":1,"node":""`, 1), grant.ErrMalformed, "node"},
		{"longer than an annotation can be", pod(good) + strings.Repeat(" ", grant.MaxAnnotationBytes), grant.ErrMalformed, "bytes"},
		{"unknown GPU", pod(share(`"`+node.Missing+`"`, "1000", "30")), grant.ErrUnknownGPU, node.Missing},
	}
	cases := make([]Malformed, 0, len(table))
	for _, t := range table {
		says := []string{t.says}
		if t.kind != grant.ErrUnknownGPU {
			says = append(says, api.AnnotationGrant)
		}
		cases = append(cases, Malformed{"named: " + t.description, map[string]string{api.AnnotationGrant: t.value}, t.kind, says})
	}
	return cases
}

func pairCases(node Node) []Malformed {
	good := node.GPU + ",NVIDIA,1000,30:;"
	return []Malformed{
		{"pair: a malformed grant of ours beside a good one of HAMi",
			map[string]string{api.AnnotationGrant: `{}`, api.AnnotationHAMiToAllocate: good},
			grant.ErrMalformed, []string{api.AnnotationGrant}},
		{"pair: HAMi's two annotations contradict",
			map[string]string{api.AnnotationHAMiToAllocate: good, api.AnnotationHAMiAllocated: node.Other + ",NVIDIA,1000,30:;"},
			grant.ErrMalformed, []string{api.AnnotationHAMiToAllocate, api.AnnotationHAMiAllocated}},
		{"pair: HAMi's pending annotation has another number of entries",
			map[string]string{api.AnnotationHAMiToAllocate: good + ";", api.AnnotationHAMiAllocated: good},
			grant.ErrMalformed, []string{api.AnnotationHAMiToAllocate}},
		{"pair: a malformed pending annotation beside a good one",
			map[string]string{api.AnnotationHAMiToAllocate: "x", api.AnnotationHAMiAllocated: good},
			grant.ErrMalformed, []string{api.AnnotationHAMiToAllocate}},
		{"pair: a malformed allocated annotation beside a good one",
			map[string]string{api.AnnotationHAMiToAllocate: good, api.AnnotationHAMiAllocated: "x"},
			grant.ErrMalformed, []string{api.AnnotationHAMiAllocated}},
		{"pair: chosen on another node",
			map[string]string{api.AnnotationHAMiToAllocate: good, api.AnnotationHAMiNode: "elsewhere"},
			grant.ErrWrongNode, []string{api.AnnotationHAMiNode, `"elsewhere"`}},
	}
}

// upper writes a UUID's digits in upper case, and one of them as a letter, so
// that the case shows.
func upper(uuid string) string {
	return uuid[:4] + "A" + strings.ToUpper(uuid[5:])
}

func manyDevices(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "GPU-%08x-0000-0000-0000-000000000000,NVIDIA,1000,1:", i)
	}
	return b.String()
}
