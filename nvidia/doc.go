// Package nvidia reads a node's GPUs with NVML: [Discover] reads once; a [Cache] reads at an
// interval, so that its readers never wait for NVML:
//
//	cache := nvidia.NewCache(nvml.New(), nvidia.CacheOptions{})
//	go cache.Run(ctx)
//	gpu, ok := cache.Node().GPU(uuid)
package nvidia
