// Package chart tests the Helm chart (install/charts/gpuslice) with helm itself: what it renders is right for a
// Kubernetes of today, gives nobody more rights than the code uses, and the plain manifests under install/ are the same.
// test/setup.sh --helm builds helm.
package chart
