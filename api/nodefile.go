package api

// NodeFileName is the file in StateDir with the node's GPUs (package monitor/node). The agent writes it.
const NodeFileName = "node.json"

// NodeCacheName is gpuslice-runtime's cache for a node without an agent: it has the same under "node".
const NodeCacheName = "gpus.json"

// NodeFileVersion changes with the meaning of a field.
const NodeFileVersion = 2
