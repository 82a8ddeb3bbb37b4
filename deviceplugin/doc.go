// Package deviceplugin advertises a node's GPUs to the kubelet (device plugin API v1beta1). Allocate gives a
// container no GPU: the pod's grant decides, which nri-plugin applies. Allocate sets
// NVIDIA_VISIBLE_DEVICES=void, so that an image with the value "all" gets no GPU from NVIDIA's runtime if
// nri-plugin is absent.
package deviceplugin
