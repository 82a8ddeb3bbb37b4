package oci

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// With any variables and mounts of the container, the result has the grant's limits: each variable of gpuslice once,
// with the grant's value, and each file of the limiter mounted once, last, from its source.
func TestPropertyNothingContradictsTheGrant(t *testing.T) {
	registry := testRegistry(t)
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		shares, settings := randomShares(rnd), randomSettings(rnd)
		spec := testSpec(t, pick(rnd, "containerd", "privileged", "userns"))
		spec.Process.Env = append(spec.Process.Env, randomEnv(rnd)...)
		spec.Mounts = append(spec.Mounts, randomMounts(rnd)...)
		rnd.Shuffle(len(spec.Mounts), func(i, j int) { spec.Mounts[i], spec.Mounts[j] = spec.Mounts[j], spec.Mounts[i] })

		c := factsOf(spec, "nvidia")
		result, err := Edits(shares, settings, c, registry)
		if slices.ContainsFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, "CUDA_DEVICE_MEMORY_LIMIT_x=") }) {
			require.ErrorContains(t, err, "CUDA_DEVICE_MEMORY_LIMIT_x", "seed %d", seed)
			continue
		}
		require.NoError(t, err, "seed %d", seed)
		require.NoError(t, Apply(spec, result.Edits), "seed %d", seed)
		require.Empty(t, contradictions(spec, shares, settings, c, result.Injection), "seed %d: env %q", seed, c.Env)

		twice := cloneSpec(spec)
		require.NoError(t, Apply(twice, result.Edits))
		require.Equal(t, spec, twice, "seed %d", seed)
		if seed%50 == 0 {
			checkSpec(t, spec)
		}
	}
}

// contradictions are what of a spec isn't as granted. It is written without the
// code that it checks.
func contradictions(spec *rspec.Spec, shares []grant.Share, s Settings, c Container, way Injection) (bad []string) {
	allowed := map[string][]string{
		"NVIDIA_VISIBLE_DEVICES":          {"void"},
		"CUDA_DEVICE_MEMORY_SHARED_CACHE": {"/.gpuslice/usage"},
		"CUDA_DEVICE_SM_LIMIT":            {fmt.Sprint(shares[0].CorePercent)},
		"CUDA_DISABLE_CONTROL":            {"", "false"},
		"CUDA_REDIRECT":                   {""},
		"CUDA_OVERSUBSCRIBE":              {"", "false"},
		"CUDA_TASK_PRIORITY":              {"1"},
		"GPU_CORE_UTILIZATION_POLICY":     {string(s.corePolicy())},
	}
	if slices.ContainsFunc(shares, func(share grant.Share) bool { return s.Oversubscription[share.UUID] > 1 }) {
		allowed["CUDA_OVERSUBSCRIBE"] = []string{"true"}
	}
	least := shares[0].MemoryMiB
	var uuids []string
	required := []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE"}
	for i, share := range shares {
		least = min(least, share.MemoryMiB)
		uuids = append(uuids, share.UUID)
		memory, cores := fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d", i), fmt.Sprintf("CUDA_DEVICE_SM_LIMIT_%d", i)
		allowed[memory], allowed[cores] = []string{fmt.Sprintf("%dm", share.MemoryMiB)}, []string{fmt.Sprint(share.CorePercent)}
		required = append(required, memory, cores)
	}
	allowed["CUDA_DEVICE_MEMORY_LIMIT"] = []string{fmt.Sprintf("%dm", least)}
	if way == InjectEnvvar {
		allowed["NVIDIA_VISIBLE_DEVICES"] = []string{strings.Join(uuids, ",")}
	}

	seen := map[string]int{}
	for _, e := range spec.Process.Env {
		name, value, hasValue := strings.Cut(e, "=")
		values, known := allowed[name]
		if !known && (strings.HasPrefix(name, "CUDA_DEVICE_MEMORY_LIMIT") || strings.HasPrefix(name, "CUDA_DEVICE_SM_LIMIT")) {
			values, known = []string{""}, strings.Contains(name, "LIMIT_")
		}
		if !known || !hasValue {
			continue
		}
		if seen[name]++; seen[name] > 1 {
			bad = append(bad, e+": more than once")
		}
		ok := false
		for _, v := range values {
			ok = ok || v == value
		}
		if !ok {
			bad = append(bad, fmt.Sprintf("%s: want one of %q", e, values))
		}
	}
	for _, name := range required {
		if seen[name] == 0 {
			bad = append(bad, name+": missing")
		}
	}

	sources := map[string]string{
		api.ContainerLibraryPath: s.LibraryPath,
		api.ContainerDir:         limiter.FilesDir(c.Dir),
		api.ContainerUsagePath:   limiter.UsagePath(c.Dir),
		api.ContainerPreloadPath: s.PreloadPath,
	}
	for i, share := range shares {
		if share.UUID != mig0 {
			place := fmt.Sprintf("/.gpuslice/turns/%d", i)
			sources[place] = "/run/gpuslice/turns/" + share.UUID
			sources[place+"/"+c.TurnID.String()] = "/run/gpuslice/turns/" + share.UUID + "/" + c.TurnID.String()
		}
	}
	count := len(sources)
	for i, m := range spec.Mounts {
		dest := cleanDestination(m.Destination)
		last := i >= len(spec.Mounts)-count
		source, ours := sources[dest]
		switch {
		case last != ours:
			bad = append(bad, fmt.Sprintf("mount %d of %d on %s: not in its place", i, len(spec.Mounts), m.Destination))
		case ours && source != m.Source:
			bad = append(bad, fmt.Sprintf("mount of %s on %s: want %s", m.Source, m.Destination, source))
		}
		delete(sources, dest)
	}
	return bad
}

func randomShares(rnd *rand.Rand) []grant.Share {
	uuids := []string{gpu0, gpu1, gpu2, mig0}
	rnd.Shuffle(len(uuids), func(i, j int) { uuids[i], uuids[j] = uuids[j], uuids[i] })
	var shares []grant.Share
	for _, uuid := range uuids[:1+rnd.IntN(len(uuids))] {
		shares = append(shares, grant.Share{UUID: uuid, MemoryMiB: 1 + rnd.Int64N(150000), CorePercent: rnd.IntN(101)})
	}
	return shares
}

func randomSettings(rnd *rand.Rand) Settings {
	s := testSettings()
	// In a privileged container all nodes are there, so every way goes.
	s.Injection = pick(rnd, InjectAuto, InjectCDI, InjectEnvvar, "")
	s.Oversubscription = map[string]float64{pick(rnd, gpu0, gpu1, gpu2): pick(rnd, 0.5, 1, 1.5)}
	s.CorePolicy = pick(rnd, CoreDefault, CoreForce, CoreDisable, "")
	return s
}

func randomEnv(rnd *rand.Rand) []string {
	names := []string{
		"NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1", "CUDA_DEVICE_MEMORY_LIMIT_15",
		"CUDA_DEVICE_MEMORY_LIMIT_x", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_0", "CUDA_DEVICE_SM_LIMIT_9", "CUDA_DEVICE_MEMORY_SHARED_CACHE",
		"CUDA_DISABLE_CONTROL", "CUDA_REDIRECT", "CUDA_OVERSUBSCRIBE", "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY",
		"CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "PATH", "CUDA_VERSION",
	}
	values := []string{"", "0", "1", "true", "all", "none", "void", "80g", "100", "/tmp/x", "disable", gpu1, "a=b", "=", "\x00", "-1", "ü"}
	var env []string
	for range rnd.IntN(30) {
		name := pick(rnd, names...)
		if rnd.IntN(10) == 0 {
			env = append(env, name)
			continue
		}
		env = append(env, name+"="+pick(rnd, values...))
	}
	return env
}

func randomMounts(rnd *rand.Rand) []rspec.Mount {
	roots := []string{"/", "/etc", "/usr", "/usr/local", "/.gpuslice", "/.gpuslice/limits", "/.gpuslice/usage", "/.gpuslice/libvgpu.so",
		"/etc/ld.so.preload", "/data", "/a/b/c/d/e/f", "/usr/bin/nvidia-smi", "/.gpuslice2", "/var/run"}
	spell := []string{"%s", "%s/", "/%s", "%s/.", "%s/x/..", "%s/x", "/x/..%s", "%s//y/z"}
	var mounts []rspec.Mount
	for range rnd.IntN(12) {
		mounts = append(mounts, bind("/srv/tenant", fmt.Sprintf(pick(rnd, spell...), pick(rnd, roots...))))
	}
	return mounts
}

func pick[T any](rnd *rand.Rand, from ...T) T {
	return from[rnd.IntN(len(from))]
}
