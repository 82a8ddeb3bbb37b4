package view

// Add adds another node's GPUs, containers and problems with the node's name.
func (n *Node) Add(name string, other Node) {
	for _, c := range other.GPUs {
		c.Node = name
		n.GPUs = append(n.GPUs, c)
	}
	for _, c := range other.Containers {
		c.Node = name
		n.Containers = append(n.Containers, c)
	}
	for _, p := range other.Problems {
		n.Problems = append(n.Problems, "node "+name+": "+p)
	}
}
