package main

import "github.com/spf13/cobra"

// addClusterCommands adds what changes things, on the node or in the cluster.
func addClusterCommands(c *cobra.Command) {
	c.AddCommand(resizeCommand(), cordonCommand(), uncordonCommand())
}
