package wire

import (
	"fmt"
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

// decodeRegister reads HAMi's annotation: JSON, or the older list of fields.
func decodeRegister(value string) ([]scheduler.GPU, error) {
	if err := checkLength(value); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(strings.TrimSpace(value), "[") {
		return decodeCSV(value)
	}
	var list []api.HAMiGPU
	if err := decodeJSON(value, &list); err != nil {
		return nil, err
	}
	if len(list) > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: a node may have at most %d", len(list), MaxGPUs)
	}
	gpus := make([]scheduler.GPU, len(list))
	for i, r := range list {
		gpus[i] = gpuOf(r)
	}
	return gpus, nil
}

// decodeCSV reads uuid,count,devmem,devcore,type,numa,health and since HAMi 2.5 index,mode, with a colon
// after each device.
func decodeCSV(value string) ([]scheduler.GPU, error) {
	body, ended := strings.CutSuffix(value, ":")
	if !ended {
		return nil, fmt.Errorf(`%s: neither JSON nor a list in which each device ends with ":": it may be truncated`, quote.Short(value))
	}
	if n := strings.Count(body, ":") + 1; n > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: a node may have at most %d", n, MaxGPUs)
	}
	var gpus []scheduler.GPU
	for i, device := range strings.Split(body, ":") {
		r, err := decodeFields(strings.Split(device, ","), i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		gpus = append(gpus, gpuOf(r))
	}
	return gpus, nil
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

// decodeScore reads HAMi's links. If both directions are given, the lower counts; missing ones are 0.
func decodeScore(value string, gpus []scheduler.GPU) ([][]int, error) {
	var list []api.HAMiScore
	if err := decodeJSON(value, &list); err != nil {
		return nil, err
	}
	position := make(map[string]int, len(gpus))
	for i := range gpus {
		position[gpus[i].UUID] = i
	}
	links, known := table(len(gpus)), make(map[[2]int]bool)
	for _, row := range list {
		i, ok := position[row.UUID]
		if !ok {
			continue
		}
		for uuid, link := range row.Scores {
			j, ok := position[uuid]
			if !ok || i == j {
				continue
			}
			if link < 0 || link > maxLink {
				return nil, fmt.Errorf("score %d of %s and %s: must be from 0 to %d", link, row.UUID, uuid, maxLink)
			}
			pair := [2]int{min(i, j), max(i, j)}
			if !known[pair] || link < links[i][j] {
				links[i][j], links[j][i] = link, link
			}
			known[pair] = true
		}
	}
	return links, nil
}
