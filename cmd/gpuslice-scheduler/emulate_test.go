package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
)

func TestEmulation(t *testing.T) {
	binary := utilversion.MustParseGeneric("1.36.3")
	for _, c := range []struct {
		server version.Info
		want   string
	}{
		{version.Info{GitVersion: "v1.36.0"}, ""},
		{version.Info{GitVersion: "v1.36.9"}, ""},
		{version.Info{GitVersion: "v1.37.1"}, ""},
		{version.Info{GitVersion: "v1.35.2"}, "1.35"},
		{version.Info{GitVersion: "v1.34.1-eks-113cf36", Minor: "34+"}, "1.34"},
		{version.Info{GitVersion: "v1.33.4-gke.1036000"}, "1.33"},
		{version.Info{GitVersion: "v1.33.9+k3s1"}, "1.33"},
		{version.Info{GitVersion: "v1.30.14"}, "1.33"},
		{version.Info{GitVersion: "v1.36.3", EmulationMajor: "1", EmulationMinor: "33"}, "1.33"},
		{version.Info{GitVersion: "v1.36.3", EmulationMajor: "1", EmulationMinor: "36"}, ""},
	} {
		got, err := emulation(binary, c.server)
		require.NoError(t, err, c.server)
		assert.Equal(t, c.want, got, c.server)
	}
	_, err := emulation(binary, version.Info{GitVersion: "unknown"})
	require.ErrorContains(t, err, "version of the API server")
}
