// Command kubectl-gpuslice is the kubectl plugin for people: it shows a cluster's GPUs and their use, explains why pods
// wait, and resizes, cordons and drains. It is pure Go, for Linux, macOS and Windows. With the name
// kubectl_complete-gpuslice it completes for kubectl.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cli"
)

func main() {
	os.Args = arguments(os.Args)
	cli.Main(cli.Plugin())
}

// arguments makes the call of a completion of one by kubectl, which runs kubectl_complete-NAME with the words so far.
func arguments(args []string) []string {
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") != "kubectl_complete-gpuslice" {
		return args
	}
	return append([]string{args[0], cobra.ShellCompRequestCmd}, args[1:]...)
}
