package nvidia

import (
	"fmt"
	"slices"
)

// Level is how near two GPUs are to each other by PCIe: the nearer, the higher.
// The zero value is the farthest, and what everything unknown is.
type Level int

// The levels, with the words of `nvidia-smi topo -m`.
const (
	LevelSystem     Level = iota // SYS, SOC: across the sockets
	LevelNode                    // NODE: across the host bridges of a NUMA node
	LevelHostBridge              // PHB: across one host bridge, the CPU's
	LevelSwitches                // PXB: across several PCIe switches
	LevelSwitch                  // PIX: across one PCIe switch
	LevelBoard                   // PSB: on the same board
)

// levelWords are nvidia-smi's words by level.
var levelWords = [...]string{"SYS", "NODE", "PHB", "PXB", "PIX", "PSB"}

// String is nvidia-smi's word.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelWords) {
		return levelWords[LevelSystem]
	}
	return levelWords[l]
}

// MarshalText writes nvidia-smi's word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads nvidia-smi's word; one that is unknown is the farthest level.
func (l *Level) UnmarshalText(text []byte) error {
	*l = levelOf(string(text))
	return nil
}

func levelOf(word string) Level {
	return Level(max(slices.Index(levelWords[:], word), int(LevelSystem)))
}

// Pair is how two GPUs are connected.
type Pair struct {
	// Level is by PCIe. nvidia-smi's text doesn't tell it for GPUs that have NVLink:
	// there it is the nearest that the text proves.
	Level Level `json:"level"`
	// NVLinks is the number of active links between them, direct or by switch.
	NVLinks int `json:"nvlinks,omitempty"`
}

// Score is higher the better the connection: 10 a level from 10 (across sockets) to
// 60 (same board), and 100 a link, so that one link outweighs all of PCIe. The
// numbers are those of HAMi's node annotation hami.io/node-nvidia-score.
func (p Pair) Score() int { return 10*(int(p.Level)+1) + 100*p.NVLinks }

// PairOf is the pair that has a score; the zero Pair where none has.
func PairOf(score int) Pair {
	level := score%100/10 - 1
	if score < 0 || level < int(LevelSystem) || level > int(LevelBoard) {
		return Pair{}
	}
	return Pair{Level: Level(level), NVLinks: score / 100}
}

// Topology is how the GPUs of a node are connected, each with each.
type Topology struct {
	// UUIDs are the GPUs', in order of NVML's index.
	UUIDs []string `json:"uuids"`
	// Pairs has a row and a column for each GPU, in the same order. It is symmetric;
	// a GPU with itself is the zero Pair.
	Pairs [][]Pair `json:"pairs"`
}

func newTopology(uuids []string) Topology {
	t := Topology{UUIDs: slices.Clone(uuids), Pairs: make([][]Pair, len(uuids))}
	for i := range t.Pairs {
		t.Pairs[i] = make([]Pair, len(uuids))
	}
	return t
}

// set gives a pair in both directions.
func (t Topology) set(i, j int, p Pair) { t.Pairs[i][j], t.Pairs[j][i] = p, p }

// Pair is how two GPUs are connected; known is false if either isn't in the
// topology, or if they are the same.
func (t Topology) Pair(a, b string) (p Pair, known bool) {
	i, j := slices.Index(t.UUIDs, a), slices.Index(t.UUIDs, b)
	if i < 0 || j < 0 || i == j {
		return Pair{}, false
	}
	return t.Pairs[i][j], true
}

// Link is the [Pair.Score] of two GPUs; 0 for a GPU with itself, and for GPUs that
// are not in the topology.
func (t Topology) Link(a, b string) int {
	p, known := t.Pair(a, b)
	if !known {
		return 0
	}
	return p.Score()
}

// check looks at a topology that comes from outside.
func (t Topology) check() error {
	for i, uuid := range t.UUIDs {
		if uuid == "" || slices.Contains(t.UUIDs[:i], uuid) {
			return fmt.Errorf("topology: GPU %d: its UUID %q is empty or another's too", i, uuid)
		}
	}
	return nil
}
