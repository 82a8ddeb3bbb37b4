package room

import (
	"fmt"
	"testing"
)

// Nodes of 8 GPUs, each with a pod; every eighth pod is in a group of 8.
func BenchmarkFind(b *testing.B) {
	for _, nodes := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(nodes, " nodes"), func(b *testing.B) {
			gpus := make([]int, nodes)
			for i := range gpus {
				gpus[i] = 8
			}
			c := newCluster(b, gpus...)
			for i := range nodes * 8 {
				in := ""
				if i%8 == 0 {
					in = fmt.Sprint("group-", i/64)
				}
				c.run(pod(fmt.Sprint("low-", i), int32(i%4), 60000), fmt.Sprint("n", i/8), in)
			}
			in := c.input(5, group(16, 5, 60000)...)
			for b.Loop() {
				if _, err := Find(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
