// Package kube brings up a real Kubernetes on this machine: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kube-proxy, the kubelet on containerd with NRI,
// runc and CNI, simulated GPUs; and installs gpuslice's chart with its image.
//
// Everything lives under one temporary directory, in a network namespace with addresses of
// its own in 100.64.0.0/10, and in cgroups of its own. What the node has at paths that
// everybody knows (/run, /var/lib, /var/log, /etc) is in that directory too, by a mount
// namespace: two clusters don't meet, and the machine is left as it was.
//
// Like package harness it knows nothing of *testing.T.
package kube
