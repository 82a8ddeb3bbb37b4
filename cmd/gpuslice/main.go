// Command gpuslice shows the GPUs of a node or a cluster and their use, checks and installs a node, and resizes,
// cordons and drains.
package main

import "github.com/gpuslice/gpuslice/cmd/internal/cli"

func main() { cli.Main(cli.Node()) }
