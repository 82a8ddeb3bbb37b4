package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/status"
	"github.com/gpuslice/gpuslice/grant"
)

func statusCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show this node's cards: what is granted, and what is in use",
		Long: `Shows this node's cards and the containers that have a share of them.

The numbers come from the agent's state folder and the containers' own
accounting; no daemon is asked. Memory is what containers account for, rounded
up to MiB, beside what they are granted.

A container is "active" while its share is booked, "released" when it has ended
and its runtime has not removed it yet, and "corrupt" when its record can't be
read: what is known of it is shown with its container's id, and why is printed
below. It is "blocking" when it is there and its grant can't be found out: as
long as it is, nothing more is granted on the cards that it may hold.

To look changes nothing and keeps no container waiting.

Exit status: 0 it is shown (what could not be read is among the problems);
1 nothing could be read; 2 the call is wrong.`,
		Example: `  gpuslice status
  gpuslice status -o json | jq '.containers[] | {pod, container, shares}'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			print, known := outputs[output]
			if !known {
				return fmt.Errorf("--output: want table or json, not %q", output)
			}
			stateDir, err := c.Flags().GetString("state-dir")
			if err != nil {
				return err
			}
			n, err := status.Read(c.Context(), stateDir)
			if err != nil {
				return work(err)
			}
			return work(print(c.OutOrStdout(), n))
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "`form` of the output: table or json")
	return c
}

// outputs are the forms of --output.
var outputs = map[string]func(io.Writer, status.Node) error{"table": table, "json": asJSON}

// asJSON prints a status for programs.
func asJSON(out io.Writer, n status.Node) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(n)
}

// table prints a status for people.
func table(out io.Writer, n status.Node) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tMODEL\tUUID\tCONTAINERS\tMEMORY GRANTED\tCORES GRANTED\tMEMORY USED")
	for _, c := range n.Cards {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%d/%d MiB\t%d/%d %%\t%d MiB\n", label(c), c.Model, c.UUID,
			c.GrantedContainers, c.GrantableSlots, c.GrantedMemoryMiB, c.GrantableMiB, c.GrantedCores, c.GrantableCores, mebibytes(c.UsedBytes))
	}
	if len(n.Cards) == 0 {
		fmt.Fprintln(w, "(no cards)")
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "POD\tCONTAINER\tSTATE\tGPU\tMEMORY USED\tCORES\tPROCESSES\tENFORCEMENT")
	labels := map[string]string{}
	for _, c := range n.Cards {
		labels[c.UUID] = label(c)
	}
	for _, c := range n.Containers {
		for _, s := range c.Shares {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%d MiB\t%s\t%d\t%s\n", orDash(c.Pod), name(c), c.State, card(s.UUID, labels),
				mebibytes(s.UsedBytes), s.MemoryMiB, cores(s.CorePercent), s.Processes, orDash(c.Enforcement))
		}
		if len(c.Shares) == 0 {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t-\t-\t-\t%s\n", orDash(c.Pod), name(c), c.State, blocked(c, labels), orDash(c.Enforcement))
		}
	}
	if len(n.Containers) == 0 {
		fmt.Fprintln(w, "(none)")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range n.Problems {
		if _, err := fmt.Fprintf(out, "\nproblem: %s\n", p); err != nil {
			return err
		}
	}
	return nil
}

// name is a container's name, or its id where its record doesn't tell the name.
func name(c status.Container) string {
	if c.Name == "" {
		return c.ContainerID
	}
	return c.Name
}

// label is a card's index, with the profile of a MIG device.
func label(c status.Card) string {
	if c.MIGProfile == "" {
		return fmt.Sprint(c.Index)
	}
	return fmt.Sprintf("%d/%s", c.Index, c.MIGProfile)
}

// card is a card's label, or its UUID where the node has no such card.
func card(uuid string, labels map[string]string) string {
	if l, ok := labels[uuid]; ok {
		return l
	}
	return uuid
}

// blocked are the cards that a container without known shares keeps from others.
func blocked(c status.Container, labels map[string]string) string {
	if c.State != string(grant.StateBlocking) {
		return "-"
	}
	if len(c.Blocks) == 0 {
		return "all"
	}
	var cards []string
	for _, uuid := range c.Blocks {
		cards = append(cards, card(uuid, labels))
	}
	return strings.Join(cards, ",")
}

// mebibytes rounds up: a byte too much must not look like none.
func mebibytes(bytes uint64) uint64 { return bytes/(1<<20) + min(bytes%(1<<20), 1) }

// cores is a share of compute time; 0 is one that is not limited.
func cores(percent int) string {
	if percent == 0 {
		return "-"
	}
	return fmt.Sprintf("%d %%", percent)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
