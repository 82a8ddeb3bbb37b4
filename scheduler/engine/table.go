package engine

import (
	"hash/maphash"
	"maps"
)

// chunkSize is how many nodes share a chunk of the table: about the square root of a large
// cluster, so that an event copies few pointers (one chunk, and the list of chunks).
const chunkSize = 64

// chunk is a part of the table. It is not changed once it is published.
type chunk struct {
	version uint64 // no other chunk has it
	nodes   [chunkSize]*node
}

// table has the nodes by their slot. It is a value: with returns another one, which shares
// all chunks but one. A node keeps its slot as long as it is known, so that two tables can be
// compared chunk by chunk: what has the same version has not changed.
type table []*chunk

// at is the node in a slot, or nil.
func (t table) at(slot int) *node {
	if c := slot / chunkSize; c < len(t) {
		return t[c].nodes[slot%chunkSize]
	}
	return nil
}

// with is the table with another node in the slot; the version is the changed chunk's.
func (t table) with(slot int, n *node, version uint64) table {
	c := slot / chunkSize
	next := make(table, max(len(t), c+1))
	copy(next, t)
	changed := new(chunk)
	if next[c] != nil {
		*changed = *next[c]
	}
	changed.version, changed.nodes[slot%chunkSize] = version, n
	next[c] = changed
	return next
}

// shards is a map by name that is not changed once it is published: with copies one of its
// parts. The zero value is empty.
type shards[V any] struct{ parts *[shardCount]map[string]V }

const shardCount = 128

// seed is one for all maps of the process: their order shows nowhere.
var seed = maphash.MakeSeed()

func shardOf(name string) uint64 { return maphash.String(seed, name) % shardCount }

func (s shards[V]) get(name string) (V, bool) {
	if s.parts == nil {
		var none V
		return none, false
	}
	v, ok := s.parts[shardOf(name)][name]
	return v, ok
}

func (s shards[V]) with(name string, v V) shards[V] {
	next, part := s.copied(name)
	part[name] = v
	return next
}

func (s shards[V]) without(name string) shards[V] {
	if _, ok := s.get(name); !ok {
		return s
	}
	next, part := s.copied(name)
	delete(part, name)
	return next
}

func (s shards[V]) copied(name string) (shards[V], map[string]V) {
	next := new([shardCount]map[string]V)
	if s.parts != nil {
		*next = *s.parts
	}
	i := shardOf(name)
	part := maps.Clone(next[i])
	if part == nil {
		part = map[string]V{}
	}
	next[i] = part
	return shards[V]{next}, part
}
