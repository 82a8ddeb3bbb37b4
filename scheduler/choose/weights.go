package choose

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Weights weigh replicas, cores and memory in the use of a GPU or node. The zero value is HAMi's default:
// equal.
type Weights struct {
	Slot, Core, Memory int64
}

const maxWeight = 1_000_000

// ParseWeights reads HAMi's annotation hami.io/device-scoring-weights: "slot=1,core=1,memory=3". Empty: the
// default.
func ParseWeights(text string) (Weights, error) {
	var w Weights
	if strings.TrimSpace(text) == "" {
		return w, nil
	}
	fail := func(reason string) (Weights, error) {
		return Weights{}, fmt.Errorf("weights %q: %s: use slot=1,core=1,memory=3, with integers from 0 to %d, not all zero",
			text, reason, maxWeight)
	}
	fields := map[string]*int64{"slot": &w.Slot, "core": &w.Core, "memory": &w.Memory}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		value, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		switch {
		case err != nil || value < 0 || value > maxWeight:
			return fail(fmt.Sprintf("%q: invalid number", strings.TrimSpace(part)))
		case fields[name] == nil:
			return fail(fmt.Sprintf("unknown name %q", name))
		case seen[name]:
			return fail(name + " is specified more than once")
		}
		*fields[name], seen[name] = value, true
	}
	for _, name := range []string{"slot", "core", "memory"} {
		if !seen[name] {
			return fail(name + " is missing")
		}
	}
	if w == (Weights{}) {
		return fail("all are zero")
	}
	return w, nil
}

func (w Weights) orDefault() Weights {
	if w == (Weights{}) {
		return Weights{1, 1, 1}
	}
	return w
}

// scoreUnit is the score of full use per weight.
const scoreUnit = 1_000_000

// score is the weighted use, in integers to be equal on every machine.
func (w Weights) score(used, total scheduler.Use) int64 {
	return w.Slot*part(int64(used.Replicas), int64(total.Replicas)) +
		w.Core*part(int64(used.Cores), int64(total.Cores)) +
		w.Memory*part(used.MemoryMiB, total.MemoryMiB)
}

// part is used/total in scoreUnits; 0 if there is no total.
func part(used, total int64) int64 {
	switch {
	case used <= 0 || total <= 0:
		return 0
	case used >= total:
		return scoreUnit
	case used < 1<<40: // except for absurd claims of a node
		return used * scoreUnit / total
	}
	hi, lo := bits.Mul64(uint64(used), scoreUnit)
	quotient, _ := bits.Div64(hi, lo, uint64(total)) // hi < total, since used < total
	return int64(quotient)
}
