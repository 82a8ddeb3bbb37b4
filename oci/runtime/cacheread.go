package ociruntime

import (
	"time"

	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// What is kept for the next creation is read without encoding/json: see package jsonread.
// Of what isn't read, the caller asks encoding/json, or makes it again.

func readNode(data []byte) (f nodeFile, read bool) {
	r := jsonread.New(data)
	r.Object([]string{"version", "writtenAt", "bootID", "devices", "node", "contextMiB"}, func(name string) {
		switch name {
		case "version":
			f.Version = int(r.Int(0))
		case "writtenAt":
			var err error
			if f.WrittenAt, err = time.Parse(time.RFC3339Nano, r.Text()); err != nil {
				r.Fail()
			}
		case "bootID":
			f.BootID = r.Text()
		case "devices":
			r.List(func() { f.Devices = append(f.Devices, readNodeDevice(r)) })
		case "node":
			r.Object([]string{"gpus"}, func(string) {
				r.List(func() { f.Node.GPUs = append(f.Node.GPUs, readNodeGPU(r)) })
			})
		case "contextMiB":
			f.ContextMiB = map[string]int64{}
			r.Members(func(uuid string) { f.ContextMiB[uuid] = r.Int(64) })
		}
	})
	return f, r.Ok()
}

func readNodeDevice(r *jsonread.Reader) (d nodeDevice) {
	r.Object([]string{"uuid", "gpu", "memoryMiB", "cores", "slots"}, func(name string) {
		switch name {
		case "uuid":
			d.UUID = r.Text()
		case "gpu":
			d.GPU = r.Text()
		case "memoryMiB":
			d.MemoryMiB = r.Int(64)
		case "cores":
			d.CorePercent = int(r.Int(0))
		case "slots":
			d.Slots = int(r.Int(0))
		}
	})
	return d
}

func readNodeGPU(r *jsonread.Reader) (c nodeGPU) {
	r.Object([]string{"uuid", "index", "memoryMiB", "mig"}, func(name string) {
		switch name {
		case "uuid":
			c.UUID = r.Text()
		case "index":
			c.Index = int(r.Int(0))
		case "memoryMiB":
			c.MemoryMiB = r.Int(64)
		case "mig":
			r.List(func() {
				var m nodeMIG
				r.Object([]string{"uuid"}, func(string) { m.UUID = r.Text() })
				c.MIG = append(c.MIG, m)
			})
		}
	})
	return c
}

func readGPUCache(data []byte) (c gpuCache, read bool) {
	r := jsonread.New(data)
	r.Object([]string{"bootID", "driver", "gpus", "node"}, func(name string) {
		switch name {
		case "bootID":
			c.ID = r.Text()
		case "driver":
			c.Driver = r.Text()
		case "gpus":
			c.GPUs = r.Text()
		case "node":
			c.Node = r.Raw()
		}
	})
	return c, r.Ok()
}

func readInstallation(data []byte) (i installation, read bool) {
	r := jsonread.New(data)
	r.Object([]string{"of", "limiter"}, func(name string) {
		if name == "of" {
			i.Of = r.Texts()
			return
		}
		r.Object([]string{"Library", "Preload", "Fronts"}, func(name string) {
			switch name {
			case "Library":
				i.Limiter.Library = r.Text()
			case "Preload":
				i.Limiter.Preload = r.Text()
			case "Fronts":
				r.Object([]string{"CUDA", "NVML"}, func(name string) {
					if name == "CUDA" {
						i.Limiter.Fronts.CUDA = r.Text()
					} else {
						i.Limiter.Fronts.NVML = r.Text()
					}
				})
			}
		})
	})
	return i, r.Ok()
}
