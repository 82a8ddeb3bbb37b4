package api

import "path"

// otherPlugins are the names of the sockets of NVIDIA's and HAMi's device plugins, and of gpu-manager's.
var otherPlugins = []string{"nvidia-*.sock", "vcore.sock", "vmemory.sock"}

// OtherPlugin reports whether a file in the kubelet's directory of device plugins is the socket of another device plugin for
// NVIDIA's GPUs. Of two plugins with the same resource the kubelet uses the one that registered last.
func OtherPlugin(file string) bool {
	for _, pattern := range otherPlugins {
		if is, _ := path.Match(pattern, path.Base(file)); is {
			return true
		}
	}
	return false
}
