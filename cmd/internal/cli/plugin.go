package cli

import "github.com/spf13/cobra"

const pluginManual = `kubectl gpuslice shows the GPUs of a cluster, what is granted and what is in
use. It explains why pods wait, changes the shares of running pods, and cordons
and drains GPUs. It reads Nodes and Pods from the API server, and requests the
rest from gpuslice's agents and schedulers through it.

Exit status: 0 success (what could not be read is printed as problems); 1
failure; 2 invalid usage.`

// Plugin is the program for people, on any machine with a kubeconfig: kubectl-gpuslice.
func Plugin() *cobra.Command {
	return root(&cobra.Command{
		Use:         "kubectl-gpuslice",
		Short:       "Show and manage the GPUs of a cluster",
		Long:        pluginManual,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpuslice"},
	}, nil)
}

// ofCluster replaces the help of a command that is about a node's files too, in kubectl-gpuslice.
func ofCluster(c *cobra.Command, node local, use, short, long, example string) {
	if node == nil {
		c.Use, c.Short, c.Long, c.Example = use, short, long, example
	}
}

const statusOfCluster = `Shows the GPUs of all nodes, and the containers that have a share of them. The
agents report grants and use, through the API server.

If an agent does not answer, grants are those of the pods' annotations (the
state is "granted"), and "-" is not known.

The state of a container is "active" while its share is reserved, "released"
when it has ended and its runtime has not removed it yet, "corrupt" when its
record cannot be read, and "blocking" when its grant is not known: nothing more
is granted on the GPUs that it may have.

Exit status: 0 success (what could not be read is among the problems); 1 nothing
could be read; 2 invalid usage.`

const topOfCluster = `Shows what the containers of the cluster use of their shares, and updates it.

MEMORY is the memory in use, of what is granted. CORES is the part of the GPU's
compute time that the container used by NVML, of its limit; WAITED is the part
of that time in which its launches waited for it. "-" is not known.

The key h lists the keys: q quits, s sorts, / filters, arrows select. With
--once, without a terminal, and with an output for programs, top reads twice,
prints once and ends.

Exit status: 0 success, also if a signal ends the full-screen output; 1
nothing could be read, or a signal came before the output; 2 invalid usage.`

const topologyOfCluster = `Shows the tree of a node's GPUs: how PCIe and NVLink connect them, and what is
free on each. A group has the name of the connection between its GPUs, as in
"nvidia-smi topo -m", from near to far: PSB (on one board), PIX (across one PCIe
switch), PXB (across several), PHB (across a host bridge), NODE (across those of
a NUMA node), SYS (across the sockets).

A GPU is "free" while nothing of it is granted, "shared" while more can be
granted, "full" otherwise, and "-" while that is not known.

The Node object and the node's agent report it. With --matrix it prints the
matrix like "nvidia-smi topo -m", without CPUs and NICs.

Exit status: 0 success; 1 failure; 2 invalid usage.`

const gpuOfCluster = `Shows the details of a GPU of a node: its properties, the containers that have a
share of it, and its connections. Name it by its index, its UUID or a prefix of
the UUID; a MIG device by its UUID. The node's agent and Node object report it.

Exit status: 0 success; 1 there is no such GPU, or nothing could be read;
2 invalid usage.`

const containerOfCluster = `Shows the details of a pod's container: what it is granted and what it uses.
Name the container if several of the pod have shares. The agent of its node
reports it.

Exit status: 0 success; 1 no container or several match, or nothing could be
read; 2 invalid usage.`

const resizeOfCluster = `Changes the share of a pod's running container. Its processes follow with their
next call: an allocation that failed can succeed then.

If a container uses more than its new limit, nothing is freed or killed; it gets
no more memory until it is below. A request for more than a GPU has free is
refused, and changes nothing.

The scheduler checks and reserves the share, the node's agent applies it, and
the command waits for both. The change lasts as long as the pod, also if its
containers restart.

Exit status: 0 the change is applied; 1 it was refused or failed, and nothing
has changed unless the message reports it; 2 invalid usage.`

const cordonOfCluster = `Keeps new pods from a GPU of a node, until uncordon: by the annotation
hami.io/device-cordon of the Node object. Running containers stay, and a
container that restarts in its pod can get the GPU again. Name the GPU by its
index, its UUID or a prefix of it.

Exit status: 0 success; 1 failure; 2 invalid usage.`

const drainOfCluster = `Cordons a GPU of a node, and evicts the pods that have a share of it, like
kubectl drain for a node: it respects PodDisruptionBudgets, and a pod without a
controller is not created again. Pods without a share of the GPU stay.

Exit status: 0 no pod has a share of the GPU, or --dry-run; 1 failure, or
something still has a share; 2 invalid usage.`
