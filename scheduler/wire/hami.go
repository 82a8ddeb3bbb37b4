package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

func gpuOf(r api.HAMiGPU) scheduler.GPU {
	return scheduler.GPU{
		UUID: r.ID, Model: r.Type, Index: r.Index, NUMA: r.NUMA,
		MemoryMiB: r.Memory, Cores: r.Core, Replicas: r.Count, Mode: r.Mode, Healthy: r.Health,
	}
}

// entry is one of a list.
type entry[T any] struct {
	place int
	value T
}

// skips are the entries of a list that can't be read, which are skipped: one of them must not cost a node.
type skips struct {
	first error
	n     int
}

func (s *skips) add(place int, err error) {
	if s.n++; s.first == nil {
		s.first = fmt.Errorf("GPU %d: %w", place, err)
	}
}

// err is nil if none was skipped.
func (s *skips) err() error {
	switch s.n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%w: skipped", s.first)
	}
	return fmt.Errorf("%w: skipped, and %d more", s.first, s.n-1)
}

// decodeRegister reads HAMi's annotation: JSON, or the older list of fields. The GPUs are valid and ordered. It fails
// if no entry can be read.
func decodeRegister(value string) (_ []scheduler.GPU, skipped, err error) {
	if err := checkLength(value); err != nil {
		return nil, nil, err
	}
	decode := decodeList[api.HAMiGPU]
	if !strings.HasPrefix(strings.TrimSpace(value), "[") {
		decode = decodeCSV
	}
	var wrong skips
	list, err := decode(value, &wrong)
	if err != nil {
		return nil, nil, err
	}
	gpus := make([]scheduler.GPU, 0, len(list))
	seen := make(map[string]struct{}, len(list))
	for _, e := range list {
		gpu := gpuOf(e.value)
		if err := check(&gpu); err != nil {
			wrong.add(e.place, err)
			continue
		}
		if _, ok := seen[gpu.UUID]; ok {
			wrong.add(e.place, fmt.Errorf("%s is listed more than once", gpu.UUID))
			continue
		}
		seen[gpu.UUID] = struct{}{}
		gpus = append(gpus, gpu)
	}
	if len(gpus) == 0 && wrong.n > 0 {
		return nil, nil, wrong.first
	}
	order(gpus)
	return gpus, wrong.err(), nil
}

// decodeList reads a JSON list.
func decodeList[T any](value string, wrong *skips) ([]entry[T], error) {
	var raw []json.RawMessage
	if err := decodeJSON(value, &raw); err != nil {
		return nil, err
	}
	if len(raw) > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: a node may have at most %d", len(raw), MaxGPUs)
	}
	list := make([]entry[T], 0, len(raw))
	for i := range raw {
		e := entry[T]{place: i}
		if err := decodeJSON(string(raw[i]), &e.value); err != nil {
			wrong.add(i, err)
			continue
		}
		list = append(list, e)
	}
	return list, nil
}

// decodeCSV reads uuid,count,devmem,devcore,type,numa,health and since HAMi 2.5 index,mode, with a colon
// after each device.
func decodeCSV(value string, wrong *skips) ([]entry[api.HAMiGPU], error) {
	body, ended := strings.CutSuffix(value, ":")
	if !ended {
		return nil, fmt.Errorf(`%s: neither JSON nor a list in which each device ends with ":": it may be truncated`, quote.Short(value))
	}
	if n := strings.Count(body, ":") + 1; n > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: a node may have at most %d", n, MaxGPUs)
	}
	var list []entry[api.HAMiGPU]
	for i, device := range strings.Split(body, ":") {
		r, err := decodeFields(strings.Split(device, ","), i)
		if err != nil {
			wrong.add(i, err)
			continue
		}
		list = append(list, entry[api.HAMiGPU]{i, r})
	}
	return list, nil
}

func decodeFields(fields []string, place int) (r api.HAMiGPU, err error) {
	if len(fields) != 7 && len(fields) != 9 {
		return r, fmt.Errorf("%d fields: expected uuid,count,devmem,devcore,type,numa,health and optionally index,mode", len(fields))
	}
	number := func(name string, i int) (n int) {
		if err == nil {
			if n, err = strconv.Atoi(fields[i]); err != nil {
				err = fmt.Errorf("%s %s: must be a number", name, quote.Short(fields[i]))
			}
		}
		return n
	}
	r = api.HAMiGPU{ID: fields[0], Type: fields[4], Index: place}
	r.Count, r.Memory, r.Core, r.NUMA = number("count", 1), int64(number("devmem", 2)), number("devcore", 3), number("numa", 5)
	if len(fields) == 9 {
		r.Index, r.Mode = number("index", 7), fields[8]
	}
	if err != nil {
		return r, err
	}
	if r.Health, err = strconv.ParseBool(fields[6]); err != nil {
		return r, fmt.Errorf("health %s: must be true or false", quote.Short(fields[6]))
	}
	return r, nil
}

// decodeScore reads HAMi's links. If both directions are given, the lower counts; missing ones are 0, and so are
// negative ones, which HAMi accepts.
func decodeScore(value string, gpus []scheduler.GPU) (_ [][]int, skipped, err error) {
	var wrong skips
	list, err := decodeList[api.HAMiScore](value, &wrong)
	if err != nil {
		return nil, nil, err
	}
	position := make(map[string]int, len(gpus))
	for i := range gpus {
		position[gpus[i].UUID] = i
	}
	links, known := table(len(gpus)), make(map[[2]int]bool)
	for _, e := range list {
		i, ok := position[e.value.UUID]
		if !ok {
			continue
		}
		for _, uuid := range slices.Sorted(maps.Keys(e.value.Scores)) {
			j, ok := position[uuid]
			if !ok || i == j {
				continue
			}
			link := max(e.value.Scores[uuid], 0)
			if link > maxLink {
				wrong.add(e.place, fmt.Errorf("score %d of %s and %s: must be at most %d", link, e.value.UUID, uuid, maxLink))
				continue
			}
			pair := [2]int{min(i, j), max(i, j)}
			if !known[pair] || link < links[i][j] {
				links[i][j], links[j][i] = link, link
			}
			known[pair] = true
		}
	}
	return links, wrong.err(), nil
}
