// Package chart tests the Helm chart (install/charts/gpuslice) with helm itself: the objects are valid for a
// current Kubernetes, grant no more rights than the code uses, and the plain manifests under install/ are the
// same. test/setup.sh --helm builds helm.
package chart
