package upgrade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// What version 1 reads, as it reads it: fields that it knows, and whether it takes others. It is not to follow the code:
// what a version has read once, it reads for as long as nodes may have it.

// Share1 is one GPU of a grant.
type Share1 struct {
	UUID      string `json:"uuid"`
	MemoryMiB *int64 `json:"memoryMiB"`
	Cores     *int   `json:"cores"`
}

// Grant1 is gpuslice.io/grant. It takes no field that it doesn't know.
type Grant1 struct {
	Version    int                 `json:"version"`
	Node       string              `json:"node"`
	Containers map[string][]Share1 `json:"containers"`
}

// ReadGrant1 reads gpuslice.io/grant as version 1 does.
func ReadGrant1(text string) (Grant1, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	var g Grant1
	if err := decoder.Decode(&g); err != nil {
		return g, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return g, errors.New("there is more behind it")
	}
	if g.Version != 1 {
		return g, fmt.Errorf("version %d", g.Version)
	}
	for name, shares := range g.Containers {
		for _, s := range shares {
			if s.UUID == "" || s.MemoryMiB == nil || s.Cores == nil {
				return g, fmt.Errorf("container %s: a share lacks a field", name)
			}
		}
	}
	return g, nil
}

// GPUs1 is gpuslice.io/node-gpus. It passes over fields that it doesn't know.
type GPUs1 struct {
	Version int     `json:"version"`
	GPUs    []GPU1  `json:"gpus"`
	Links   [][]int `json:"links"`
}

// GPU1 is a GPU of a node.
type GPU1 struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	Index     int    `json:"index"`
	NUMA      *int   `json:"numa"`
	MemoryMiB *int64 `json:"memoryMiB"`
	Cores     *int   `json:"cores"`
	Replicas  *int   `json:"replicas"`
	Mode      string `json:"mode"`
	Healthy   *bool  `json:"healthy"`
}

// ReadGPUs1 reads gpuslice.io/node-gpus as version 1 does.
func ReadGPUs1(text string) (GPUs1, error) {
	var g GPUs1
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return g, err
	}
	if g.Version != 1 {
		return g, fmt.Errorf("version %d", g.Version)
	}
	for _, gpu := range g.GPUs {
		if gpu.UUID == "" || gpu.MemoryMiB == nil || gpu.Cores == nil || gpu.Replicas == nil || gpu.Healthy == nil {
			return g, fmt.Errorf("GPU %q lacks a field", gpu.UUID)
		}
		if gpu.Mode != "hami-core" && gpu.Mode != "mig" && gpu.Mode != "mps" {
			return g, fmt.Errorf("GPU %q: mode %q", gpu.UUID, gpu.Mode)
		}
	}
	if g.Links != nil && len(g.Links) != len(g.GPUs) {
		return g, fmt.Errorf("%d rows of links", len(g.Links))
	}
	return g, nil
}

// Prepared1 is what a prepared ResourceClaim has. It passes over fields that it doesn't know.
type Prepared1 struct {
	Version   int                 `json:"version"`
	UID       string              `json:"uid"`
	Namespace string              `json:"namespace"`
	Name      string              `json:"name"`
	Requests  map[string][]Share1 `json:"requests"`
}

// ReadPrepared1 reads a prepared ResourceClaim's record as version 1 does.
func ReadPrepared1(data []byte) (Prepared1, error) {
	var p Prepared1
	if err := json.Unmarshal(data, &p); err != nil {
		return p, err
	}
	if p.Version != 1 || p.UID == "" || p.Namespace == "" || p.Name == "" || len(p.Requests) == 0 {
		return p, fmt.Errorf("not a record of version 1: %s", data)
	}
	return p, nil
}

// Record1 is a ledger's grant.json. It passes over fields that it doesn't know.
type Record1 struct {
	Version      int      `json:"version"`
	Sequence     uint64   `json:"sequence"`
	ContainerID  string   `json:"containerID"`
	Owner        string   `json:"owner"`
	PodUID       string   `json:"podUID"`
	PodNamespace string   `json:"podNamespace"`
	PodName      string   `json:"podName"`
	Container    string   `json:"container"`
	Shares       []Share1 `json:"shares"`
	CoreCeiling  int      `json:"coreCeiling"`
	HighPriority bool     `json:"highPriority"`
}

// ReadRecord1 reads grant.json as version 1 does.
func ReadRecord1(data []byte) (Record1, error) {
	var r Record1
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Version != 1 || r.ContainerID == "" || r.Owner == "" || r.Container == "" || len(r.Shares) == 0 {
		return r, fmt.Errorf("not a record of version 1: %s", data)
	}
	return r, nil
}
