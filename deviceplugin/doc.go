// Package deviceplugin tells the kubelet of a node's GPUs, by the device plugin API
// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
//
// It advertises replicas of GPUs, and grants nothing: what Allocate answers gives a
// container no GPU. The kubelet counts replicas; which GPU a container gets, and how
// much of it, is in its pod's grant, which nri-plugin alone turns into access.
//
//	inventory := deviceplugin.NewInventory()        // told of every look at the GPUs
//	guard := deviceplugin.NewGuard(nri.Ready, log)  // whether the node's door is guarded
//	plugin := deviceplugin.New(deviceplugin.Config{
//		Resource: deviceplugin.Replicas("nvidia.com/gpu"), GPUs: inventory, Guard: guard,
//	})
//	deviceplugin.NewServer(dir, "nvidia.com/gpu", plugin, log).Run(ctx)
//
// # Files
//
//   - resource.go: an extended resource, and the ids of its devices
//   - inventory.go: the GPUs as the kubelet is told of them
//   - guard.go: whether the node is guarded, short gaps left out
//   - plugin.go: the API's five questions
//   - prefer.go: which replicas are best together
//   - parts.go: the same where a device is a part of a GPU
//   - server.go: the kubelet's side of life: sockets, registration, restarts
//   - watched.go: a value that says when it is no longer true
//
// # NVIDIA_VISIBLE_DEVICES
//
// Allocate sets NVIDIA_VISIBLE_DEVICES=void, so that an image that says "all" opens
// nothing where NVIDIA's runtime is the default one and nri-plugin is absent. The
// kubelet puts a device plugin's variables before the pod's own and drops neither, so a
// pod that sets this variable itself has it twice, unless its image sets it too. Such a
// container is refused by nri-plugin (oci.UnsafeDuplicates) with an error that names the
// variable: the pod's own entry has to go. It never had a meaning beside a grant.
//
// It imports grant, for the annotations. It is called by the agent.
package deviceplugin
