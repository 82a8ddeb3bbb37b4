package config

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Manual sets the help of a command and its subcommands.
func Manual(c *cobra.Command, aliases Aliases) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		out := c.OutOrStderr()
		use := c.UseLine()
		if c.HasAvailableSubCommands() {
			use = c.CommandPath() + " COMMAND [flags]"
		}
		fmt.Fprintf(out, "Usage:\n  %s\n", use)
		if c.HasAvailableSubCommands() {
			fmt.Fprintln(out, "\nCommands:")
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					fmt.Fprintf(out, "  %-12s %s\n", sub.Name(), sub.Short)
				}
			}
		}
		if c.Example != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", strings.TrimRight(c.Example, "\n"))
		}
		fmt.Fprintf(out, "\nOptions:\n%s", Usage(c.Flags(), aliases))
		return nil
	})
}
