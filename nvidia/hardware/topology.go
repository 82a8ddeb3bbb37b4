package hardware

import "slices"

// Level is the PCIe distance of two GPUs: higher is nearer. The zero value is the farthest, also
// used for unknown.
type Level int

const (
	LevelSystem     Level = iota // SYS, SOC: across sockets
	LevelNode                    // NODE: across host bridges of a NUMA node
	LevelHostBridge              // PHB: across one host bridge
	LevelSwitches                // PXB: across several PCIe switches
	LevelSwitch                  // PIX: across one PCIe switch
	LevelBoard                   // PSB: on the same board
)

var levelWords = [...]string{"SYS", "NODE", "PHB", "PXB", "PIX", "PSB"}

// String returns nvidia-smi's word.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelWords) {
		return levelWords[LevelSystem]
	}
	return levelWords[l]
}

// MarshalText writes nvidia-smi's word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads nvidia-smi's word; an unknown one is the farthest level.
func (l *Level) UnmarshalText(text []byte) error {
	*l = Level(max(slices.Index(levelWords[:], string(text)), int(LevelSystem)))
	return nil
}

// Pair is the connection of two GPUs.
type Pair struct {
	// Level is by PCIe.
	Level Level `json:"level"`
	// NVLinks is the number of active links, direct or by switch.
	NVLinks int `json:"nvlinks,omitempty"`
}

// Score is 10 (across sockets) to 60 (same board) plus 100 per link, as in HAMi's node annotation
// hami.io/node-nvidia-score.
func (p Pair) Score() int { return 10*(int(p.Level)+1) + 100*p.NVLinks }

// PairOf returns the pair with a score; the zero Pair if there is none.
func PairOf(score int) Pair {
	level := score%100/10 - 1
	if score < 0 || level < int(LevelSystem) || level > int(LevelBoard) {
		return Pair{}
	}
	return Pair{Level: Level(level), NVLinks: score / 100}
}

// Topology has the connections of a node's GPUs.
type Topology struct {
	UUIDs []string `json:"uuids"`
	// Pairs has a row and a column per GPU, in the same order. It is symmetric; the diagonal is
	// zero.
	Pairs [][]Pair `json:"pairs"`
}

// NewTopology returns the topology of GPUs without known connections.
func NewTopology(uuids []string) Topology {
	t := Topology{UUIDs: slices.Clone(uuids), Pairs: make([][]Pair, len(uuids))}
	for i := range t.Pairs {
		t.Pairs[i] = make([]Pair, len(uuids))
	}
	return t
}

// Set sets the connection of the GPUs with these places.
func (t Topology) Set(i, j int, p Pair) { t.Pairs[i][j], t.Pairs[j][i] = p, p }

// Pair returns known = false for an unknown GPU, or the same one.
func (t Topology) Pair(a, b string) (p Pair, known bool) {
	i, j := slices.Index(t.UUIDs, a), slices.Index(t.UUIDs, b)
	if i < 0 || j < 0 || i == j {
		return Pair{}, false
	}
	return t.Pairs[i][j], true
}

// Link is the [Pair.Score] of two GPUs, 0 if unknown.
func (t Topology) Link(a, b string) int {
	p, known := t.Pair(a, b)
	if !known {
		return 0
	}
	return p.Score()
}
