package audit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

func finding(kind Kind, container string, pids ...int) Finding {
	f := Finding{Kind: kind, Container: Container{ID: container}, Detail: "x"}
	for _, pid := range pids {
		f.Offenders = append(f.Offenders, Offender{Process: orphans.Process{PID: pid, Start: 1}})
	}
	return f
}

func pidsOf(all []Violation) (pids []int) {
	for _, v := range all {
		for _, o := range v.Offenders {
			pids = append(pids, o.PID)
		}
	}
	return pids
}

func TestHistory(t *testing.T) {
	start := time.Unix(1000, 0)
	looks := 0
	var h *History
	step := func(f ...Finding) Step {
		looks++
		return h.Step(start.Add(time.Duration(looks)*5*time.Second), f)
	}
	begin := func() { h, looks = NewHistory(30*time.Second), 0 }

	begin()
	assert.Empty(t, step(finding(NoLimiter, "a", 1)).Began, "one look proves nothing")
	assert.Empty(t, h.Now())
	s := step(finding(NoLimiter, "a", 1))
	assert.Len(t, s.Began, 1)
	assert.Equal(t, start.Add(5*time.Second), s.Began[0].Since)
	for range 4 {
		assert.Empty(t, step(finding(NoLimiter, "a", 1)).Due, "the grace is not over")
	}
	s = step(finding(NoLimiter, "a", 1, 2))
	assert.Equal(t, []int{1}, pidsOf(s.Due), "the other may be just loading its libraries")
	assert.Equal(t, []int{2}, pidsOf(step(finding(NoLimiter, "a", 2)).Due), "it goes on with another process")
	assert.Empty(t, step().Over)
	assert.Len(t, h.Now(), 1)
	assert.Empty(t, step(finding(NoLimiter, "a", 2)).Due, "it was away")
	for range overAfter - 1 {
		assert.Empty(t, step().Over)
	}
	assert.Len(t, step().Over, 1)
	assert.Empty(t, h.Now())
	assert.Empty(t, h.entries)

	// One look now and then is no violation.
	begin()
	for range 10 {
		assert.Empty(t, step(finding(OverLimit, "a", 1)).Began)
		assert.Empty(t, step().Over)
	}

	// A process that comes and goes does not begin a new violation.
	begin()
	step(finding(UngrantedProcess, "a", 1))
	for pid := range 5 {
		step(finding(UngrantedProcess, "a", pid+2))
	}
	step()
	for _, kind := range []Kind{UngrantedProcess, OverLimit, DamagedUsageFile} {
		begin()
		for range 8 {
			step(finding(kind, "a", 1))
		}
		assert.Equal(t, []int{1}, pidsOf(step(finding(kind, "a", 1, 9)).Due), "one look proves nothing of a container's next process")
		assert.Equal(t, []int{9}, pidsOf(step(finding(kind, "a", 9)).Due), "two do, after the container's grace")
		assert.Empty(t, step(finding(kind, "a", 10)).Due)
		assert.Empty(t, step().Due)
		assert.Empty(t, step(finding(kind, "a", 10)).Due, "not in two looks running")
	}

	// A spared process is reported and not killed.
	begin()
	spared := finding(UngrantedProcess, "a", 1, 2)
	spared.Offenders[0].Spared = "why"
	for range 7 {
		s = step(spared)
	}
	assert.Equal(t, []int{2}, pidsOf(s.Due))
	assert.Len(t, h.Now()[0].Offenders, 2)

	// Processes of the host are one by one.
	begin()
	step(finding(HostProcess, "", 1), finding(HostProcess, "", 2))
	assert.Len(t, step(finding(HostProcess, "", 2)).Began, 1)
}

// For any findings: no process is due before the grace time, without two passes in a row, or if it
// was not found in this very look; and nothing is remembered of what is long gone.
func TestHistoryHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		grace := time.Duration(rapid.IntRange(0, 40).Draw(t, "grace")) * time.Second
		h := NewHistory(grace)
		now := time.Unix(0, 0)
		pids, before := map[string]int{}, map[string]int{}
		first, last, run := map[string]time.Time{}, map[string]int{}, map[string]int{}
		for look := 1; look < 40; look++ {
			now = now.Add(5 * time.Second)
			var all []Finding
			present := map[string]bool{}
			for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, fmt.Sprint("look", look)) {
				pids[id] = rapid.IntRange(1, 2).Draw(t, fmt.Sprint("process", look))
				all = append(all, finding(UngrantedProcess, id, pids[id]))
				present[id] = true
				if look-last[id] > overAfter || run[id] < confirming && last[id] != look-1 || last[id] == 0 {
					first[id] = now
				}
				if last[id] == look-1 {
					run[id]++
				} else if look-last[id] > overAfter || run[id] < confirming {
					run[id] = 1
				}
				last[id] = look
			}
			for _, v := range h.Step(now, all).Due {
				id := v.Container.ID
				if !present[id] || run[id] < confirming || now.Sub(first[id]) < grace || v.Offenders[0].PID != pids[id] || before[id] != pids[id] {
					t.Fatalf("look %d: %s is due, found %v times, since %v", look, id, run[id], first[id])
				}
			}
			before = map[string]int{}
			for id := range present {
				before[id] = pids[id]
			}
		}
		for range overAfter {
			now = now.Add(5 * time.Second)
			h.Step(now, nil)
		}
		if len(h.entries) > 0 {
			t.Fatalf("%d entries are left", len(h.entries))
		}
	})
}
