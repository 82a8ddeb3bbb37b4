package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

type matrixGPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	// To has the connection to each GPU; "X" to itself.
	To []string `json:"to"`
	// CPUs is a list of the nearest CPUs in the kernel's format; empty: not known.
	CPUs string `json:"cpuAffinity,omitempty"`
	NUMA int    `json:"numaNode"`
}

func matrixOf(f node.File, sysfs fs.FS) []matrixGPU {
	gpus := []matrixGPU{}
	for i, uuid := range f.Topology.UUIDs {
		c := matrixGPU{Index: indexOf(f, uuid, i), UUID: uuid, NUMA: nvidia.NUMAUnknown}
		if physical, known := f.Node.GPU(uuid); known {
			c.NUMA, c.CPUs = physical.NUMANode, cpusOf(sysfs, physical)
		}
		for j := range f.Topology.UUIDs {
			c.To = append(c.To, connection(f.Topology.Pairs[i][j], i == j))
		}
		gpus = append(gpus, c)
	}
	return gpus
}

func connection(p nvidia.Pair, self bool) string {
	switch {
	case self:
		return "X"
	case p.NVLinks > 0:
		return fmt.Sprintf("NV%d", p.NVLinks)
	}
	return p.Level.String()
}

// cpusOf returns the CPUs next to a GPU, by its PCI device or else its NUMA node in sysfs.
func cpusOf(sysfs fs.FS, c nvidia.GPU) string {
	if sysfs == nil { // of another node
		return ""
	}
	files := []string{}
	if c.PCIBusID != "" {
		files = append(files, path.Join("bus/pci/devices", nvidia.SysfsBusID(c.PCIBusID), "local_cpulist"))
	}
	if c.NUMANode != nvidia.NUMAUnknown {
		files = append(files, fmt.Sprintf("devices/system/node/node%d/cpulist", c.NUMANode))
	}
	for _, file := range files {
		if text, err := fs.ReadFile(sysfs, file); err == nil && strings.TrimSpace(string(text)) != "" {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

const matrixLegend = `
Legend:

  X    = Self
  SYS  = across the sockets (the interconnect between NUMA nodes)
  NODE = across the PCIe host bridges of one NUMA node
  PHB  = across one PCIe host bridge (the CPU's)
  PXB  = across several PCIe switches, and no host bridge
  PIX  = across one PCIe switch
  PSB  = on one board
  NV#  = by # NVLinks
`

// writeMatrix prints the matrix with the columns and tabs of nvidia-smi, for programs that parse them.
func writeMatrix(p page, gpus []matrixGPU) error {
	heads := []string{}
	for _, c := range gpus {
		heads = append(heads, fmt.Sprintf("GPU%d", c.Index))
	}
	heads = append(heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
	var b strings.Builder
	fmt.Fprintf(&b, "\t%s\n", p.Paint(term.Underline, strings.Join(heads, "\t")))
	for _, c := range gpus {
		fmt.Fprintf(&b, "GPU%d", c.Index)
		for _, to := range c.To {
			if to == "X" {
				to = " X "
			}
			b.WriteString("\t" + to)
		}
		cpus, numa := cmp.Or(c.CPUs, "N/A"), "N/A"
		if c.NUMA != nvidia.NUMAUnknown {
			numa = fmt.Sprint(c.NUMA)
		}
		fmt.Fprintf(&b, "\t%s\t%s\t\tN/A\n", cpus, numa)
	}
	b.WriteString(matrixLegend)
	_, err := fmt.Fprint(p, b.String())
	return err
}
