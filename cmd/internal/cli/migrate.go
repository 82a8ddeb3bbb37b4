package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/migrate"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

func migrateCommand(node local) *cobra.Command {
	c := parent(&cobra.Command{
		Use:   "migrate",
		Short: "Move a cluster from HAMi or gpu-manager to gpuslice",
		Long: `Reads an installation of HAMi or gpu-manager, prints how to configure gpuslice
like it, and switches nodes one by one. docs/MIGRATING.md has the steps.`,
	})
	c.AddCommand(
		migrateFrom(node, migrate.HAMi, "hami", "HAMi's DaemonSet has the label\napp.kubernetes.io/component=hami-device-plugin, in any namespace."),
		migrateFrom(node, migrate.Tencent, "tencent", "gpu-manager's DaemonSet is gpu-manager-daemonset, in any namespace."),
	)
	return c
}

type migration struct {
	call
	source             migrate.Source
	out                *output
	node               string
	all, undo          bool
	yes, values, plans bool
	timeout            time.Duration
	grace              seconds
}

func migrateFrom(node local, source migrate.Source, word, where string) *cobra.Command {
	m := &migration{source: source, grace: seconds{-1}}
	c := &cobra.Command{
		Use:   word,
		Short: fmt.Sprintf("Move a cluster from %s to gpuslice", source),
		Long: fmt.Sprintf(`Without --node and --all it changes nothing. It prints values for gpuslice's
chart, settings without a counterpart, running pods that gpuslice would refuse,
what is different for users, and the nodes with the pods to evict.
%[2]s

With --node or --all it switches nodes, one after the other: it cordons the
node, evicts its pods with GPUs, which respects PodDisruptionBudgets, changes
the labels by which the two DaemonSets select it, waits until gpuslice offers
its GPUs, and uncordons it. A pod without a controller is not created again.
The state is the Node's annotation gpuslice.io/migration: the same command
continues after an interruption. --undo switches nodes back; before that,
upgrade gpuslice with webhook.enabled=false.

It switches no node if gpuslice or its webhook is not installed, if its agents
select other nodes or offer other resources, if no label of nodes belongs only
to %[1]s, or if webhooks or schedulers of both would handle the same pods.

Exit status: 0 the plan is printed, or the nodes are switched; 1 failure, or it
was not confirmed; 2 invalid usage.`, source, where),
		Example: fmt.Sprintf(`  kubectl gpuslice migrate %[1]s
  kubectl gpuslice migrate %[1]s --values > values.yaml
  kubectl gpuslice migrate %[1]s --node node-1
  kubectl gpuslice migrate %[1]s --node node-1 --undo`, word),
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return m.run() },
	}
	m.call = componentFlags(c, node)
	m.out = outputFlag(c, node, true, formTable)
	c.Flags().Lookup("namespace").Usage = fmt.Sprintf("Search %s in `NAMESPACE`; default: in all.", source)
	c.Flags().BoolVar(&m.plans, "plan", false, "Print the plan, and change nothing. This is the default.")
	c.Flags().BoolVar(&m.values, "values", false, "Print only the values for gpuslice's chart, as YAML.")
	c.Flags().StringVar(&m.node, "node", "", "Switch the node `NODE`.")
	_ = c.RegisterFlagCompletionFunc("node", m.completeNodes) // the flag exists
	c.Flags().BoolVar(&m.all, "all", false, "Switch all nodes, one after the other, and end at the first that fails.")
	c.Flags().BoolVar(&m.undo, "undo", false, "Switch back, with --node or --all.")
	c.Flags().BoolVarP(&m.yes, "yes", "y", false, "Switch nodes without a confirmation.")
	graceFlag(c, &m.grace)
	c.Flags().DurationVar(&m.timeout, "timeout", 10*time.Minute, "Wait `TIME` for each node: for evictions that a budget delays, and until its GPUs are offered.")
	c.MarkFlagsMutuallyExclusive("plan", "values", "node", "all")
	c.MarkFlagsMutuallyExclusive("plan", "undo")
	c.MarkFlagsMutuallyExclusive("values", "undo")
	return c
}

func (m *migration) run() error {
	if m.undo && m.node == "" && !m.all {
		return errors.New("--undo needs --node or --all")
	}
	connection, err := m.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.Context(), requestTimeout)
	defer cancel()
	in, err := connection.Inventory(ctx)
	if err != nil {
		return work(err)
	}
	where := migrate.Where{Ours: connection.SystemNamespaces()}
	if f := m.Flags().Lookup("namespace"); f.Changed {
		where.Theirs = f.Value.String()
	}
	plan, err := migrate.Make(m.source, in, where)
	if err != nil {
		return work(err)
	}
	if m.values && plan.Gone {
		return work(fmt.Errorf("%s is not installed any more", m.source))
	}
	if m.values {
		text, err := yaml.Marshal(plan.Values)
		if err == nil {
			_, err = m.OutOrStdout().Write(text)
		}
		return work(err)
	}
	if m.node == "" && !m.all {
		var names []string
		for _, n := range plan.Nodes {
			names = append(names, "node/"+n.Name)
		}
		return work(m.out.print(m.Command, plan, names, func(p page) error { return migrationPage(p, plan) }))
	}
	return work(m.switchNodes(connection, in, where, plan))
}

func (m *migration) switchNodes(connection *cluster.Cluster, in *migrate.Inventory, where migrate.Where, plan *migrate.Plan) error {
	how, err := migrate.Prepare(m.source, in, where, m.undo)
	if err != nil {
		return err
	}
	report := func(format string, args ...any) {
		fmt.Fprintln(m.OutOrStdout(), term.Clean(fmt.Sprintf(format, args...)))
	}
	nodes, err := m.chosen(plan)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		report("there is no node to switch")
		return nil
	}
	for _, warning := range how.Warnings {
		fmt.Fprintln(m.ErrOrStderr(), term.Clean("warning: "+warning))
	}
	if !m.yes {
		if plan.Release != "" {
			fmt.Fprintln(m.ErrOrStderr(), term.Clean(fmt.Sprintf("%s: DaemonSet %s", m.source, plan.Release)))
		}
		for _, n := range nodes {
			fmt.Fprintln(m.ErrOrStderr(), term.Clean(nodeLine(n)))
		}
		if !confirmed(m.Command) {
			return errors.New("not confirmed, no node was changed: answer yes, or use --yes")
		}
	}
	for _, n := range nodes {
		ctx, cancel := context.WithTimeout(m.Context(), m.timeout)
		err := connection.Switch(ctx, n.Name, how, m.undo, cluster.Evictions{GracePeriod: m.grace.Duration, Report: report})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// chosen are the nodes of --node or --all.
func (m *migration) chosen(plan *migrate.Plan) ([]migrate.Node, error) {
	if !m.all {
		n, err := plan.Node(m.node)
		return []migrate.Node{n}, err
	}
	nodes, passed, err := plan.ToSwitch(m.undo)
	if err != nil {
		return nil, err
	}
	for _, n := range passed {
		fmt.Fprintln(m.ErrOrStderr(), term.Clean(fmt.Sprintf("node %s is passed over, it is %s: use --node %s", n.Name, stateOf(n), n.Name)))
	}
	return nodes, nil
}

// nodeLine describes a node before it is switched.
func nodeLine(n migrate.Node) string {
	var pods []string
	for _, p := range n.Pods {
		name := p.Name
		if !p.Recreated {
			name += " (not created again)"
		}
		pods = append(pods, name)
	}
	line := fmt.Sprintf("node %s: %s", n.Name, stateOf(n))
	if len(pods) == 0 {
		return line + ", no pod to evict"
	}
	return line + ", to evict: " + strings.Join(pods, ", ")
}

func stateOf(n migrate.Node) string {
	if n.Unserved && n.State != migrate.StateUnserved {
		return n.State + " (no device plugin)"
	}
	return n.State
}

func migrationPage(p page, plan *migrate.Plan) error {
	values, err := yaml.Marshal(plan.Values)
	if err != nil {
		return err
	}
	print := func(format string, args ...any) { fmt.Fprintln(p, term.Clean(fmt.Sprintf(format, args...))) }
	list := func(head string, lines []string) {
		if len(lines) == 0 {
			return
		}
		print("")
		print("%s", head)
		for _, line := range lines {
			print("- %s", line)
		}
	}
	head := fmt.Sprintf("%s: DaemonSet %s", plan.From, plan.Release)
	if plan.Gone {
		head = fmt.Sprintf("%s is not installed any more. Nodes that are being switched can be finished, and no node can go back.", plan.From)
	}
	if plan.Version != "" {
		head += ", version " + plan.Version
	}
	print("%s", head)
	if !plan.Gone {
		print("")
		print("Values for gpuslice's chart (--values):")
		for line := range strings.Lines(string(values)) {
			print("  %s", strings.TrimRight(line, "\n"))
		}
	}
	list("Not in the values:", plan.Notes)
	var refused, differences []string
	for _, r := range plan.Refused {
		refused = append(refused, fmt.Sprintf("%s: %s", r.Pod, r.Reason))
	}
	list("Pods that gpuslice refuses as they are:", refused)
	for _, d := range plan.Differences {
		differences = append(differences, differenceLine(plan.From, d))
	}
	list("Different for users (docs/MIGRATING.md):", differences)
	print("")
	table := p.table(columns("NODE", "STATE", "GPUS", "PODS TO EVICT", "NOT CREATED AGAIN")...)
	table.Empty = "no node"
	for _, n := range plan.Nodes {
		alone := 0
		for _, pod := range n.Pods {
			if !pod.Recreated {
				alone++
			}
		}
		table.Row(n.Name, stateOf(n), n.GPUs, len(n.Pods), alone)
	}
	if err := table.Write(p); err != nil {
		return err
	}
	list("Before a node can be switched:", plan.Problems)
	list("Commands:", plan.Commands)
	return nil
}

func differenceLine(from migrate.Source, d migrate.Difference) string {
	line := d.Subject + ": "
	if d.Before != "" {
		line += fmt.Sprintf("%s: %s; gpuslice: ", from, d.Before)
	}
	line += d.Here
	if d.Note != "" {
		line += "; " + d.Note
	}
	return line
}
