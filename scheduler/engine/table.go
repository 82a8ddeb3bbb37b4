package engine

import (
	"hash/maphash"
	"maps"
)

// chunkSize is about the square root of a large cluster's nodes.
const chunkSize = 64

type chunk struct {
	version uint64 // unique
	nodes   [chunkSize]*node
}

// table is a persistent array of nodes by row. A node keeps its row, so chunks with equal versions are
// equal.
type table []*chunk

func (t table) at(row int) *node {
	if c := row / chunkSize; c < len(t) {
		return t[c].nodes[row%chunkSize]
	}
	return nil
}

func (t table) with(row int, n *node, version uint64) table {
	c := row / chunkSize
	next := make(table, max(len(t), c+1))
	copy(next, t)
	changed := new(chunk)
	if next[c] != nil {
		*changed = *next[c]
	}
	changed.version, changed.nodes[row%chunkSize] = version, n
	next[c] = changed
	return next
}

// shards is a persistent map by name. The zero value is empty.
type shards[V any] struct{ parts *[shardCount]map[string]V }

const shardCount = 128

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
