// Package node is what the agent publishes of its node in the state folder, so
// that the CLI and the runtime wrapper know the cards without asking NVML or a
// daemon: <state-dir>/node.json, replaced by a rename whenever it changes.
package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
)

// fileName is the file's name in the state folder.
const fileName = "node.json"

// fileVersion is the version of the format.
const fileVersion = 1

// File is node.json.
type File struct {
	Version      int       `json:"version"`
	Name         string    `json:"name"`
	AgentVersion string    `json:"agentVersion"`
	WrittenAt    time.Time `json:"writtenAt"`
	// Scaling is how much of a card may be booked.
	Scaling Scaling  `json:"scaling"`
	Node    gpu.Node `json:"node"`
}

// Scaling is how much of a card may be booked, and by how many.
type Scaling struct {
	// Slots is the number of containers that may share one card.
	Slots int `json:"slots"`
	// Memory and Cores are multiples of what the card has.
	Memory float64 `json:"memory"`
	Cores  float64 `json:"cores"`
}

// Capacity is what may be booked of a card.
func (s Scaling) Capacity(c gpu.Card) grant.Card {
	return grant.Card{
		UUID:        c.UUID,
		MemoryMiB:   int64(float64(c.MemoryMiB) * s.Memory),
		CorePercent: int(grant.MaxCorePercent * s.Cores),
		Slots:       s.Slots,
	}
}

// Capacities is what may be booked of each card of a node, by UUID.
func (s Scaling) Capacities(n gpu.Node) map[string]grant.Card {
	cards := make(map[string]grant.Card, len(n.Cards))
	for _, c := range n.Cards {
		cards[c.UUID] = s.Capacity(c)
	}
	return cards
}

// Write publishes the file. Readers see the old one or the new one, never a part.
func Write(stateDir string, f File) (err error) {
	f.Version = fileVersion
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", fileName, err)
	}
	temp, err := os.CreateTemp(stateDir, "."+fileName+"-")
	if err != nil {
		return fmt.Errorf("write %s: %w", fileName, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
			err = fmt.Errorf("write %s: %w", fileName, err)
		}
	}()
	_, err = temp.Write(append(data, '\n'))
	if err := errors.Join(err, temp.Chmod(0o644), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), filepath.Join(stateDir, fileName))
}

// Read reads the file.
func Read(stateDir string) (File, error) {
	path := filepath.Join(stateDir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, fmt.Errorf("%w: has gpuslice-agent run on this node with --state-dir %s?", err, stateDir)
	}
	if err != nil {
		return File{}, err
	}
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, fmt.Errorf("read %s: %w", path, err)
	}
	if f.Version != fileVersion {
		return File{}, fmt.Errorf("read %s: its version is %d, and this program knows %d: use the agent's own version", path, f.Version, fileVersion)
	}
	return f, nil
}
