// Package kube brings up a real Kubernetes on this machine: etcd, kube-apiserver,
// kube-controller-manager, a scheduler, the kubelet on containerd with NRI, runc and
// CNI, and gpuslice's agent on simulated cards.
//
// Everything lives under one temporary folder, at an address of its own in 127.78.0.0/16,
// and in cgroups of its own. Where a program's paths can't be chosen (the kubelet's
// folder of device plugins, CNI's state, /var/log) it runs in a mount namespace in which
// they are in that folder: two clusters don't meet, and the machine is left as it was.
//
// Like package harness it knows nothing of *testing.T.
package kube
