//go:build deps

package deps

import (
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	_ "github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	_ "github.com/containerd/nri/pkg/adaptation"
	_ "github.com/containerd/nri/pkg/api"
	_ "github.com/containerd/nri/pkg/stub"
	_ "github.com/containerd/nri/pkg/runtime-tools/generate"
	_ "github.com/containerd/ttrpc"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/opencontainers/runtime-spec/specs-go"
	_ "github.com/opencontainers/runtime-tools/generate"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/pflag"
	_ "github.com/stretchr/testify/assert"
	_ "github.com/stretchr/testify/require"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/grpc"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
	_ "k8s.io/kubelet/pkg/apis/podresources/v1"
	_ "sigs.k8s.io/yaml"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/mod/semver"
	_ "tags.cncf.io/container-device-interface/pkg/cdi"
	_ "tags.cncf.io/container-device-interface/pkg/parser"
	_ "tags.cncf.io/container-device-interface/specs-go"
	_ "k8s.io/apimachinery/pkg/api/resource"
)
