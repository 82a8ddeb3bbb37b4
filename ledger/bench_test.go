package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// fill500 is a ledger with 500 containers on 8 GPUs.
func fill500(b *testing.B) (dir string, ledger *ledger.Ledger, gpus map[string]grant.GPU) {
	b.Helper()
	gpus = map[string]grant.GPU{}
	var uuids []string
	for i := range 8 {
		uuid := fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", i)
		uuids = append(uuids, uuid)
		gpus[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 143_771, CorePercent: 100, Replicas: 100}
	}
	dir = shmDir(b)
	ledger = openLedger(b, dir)
	for i := range 500 {
		c := withTurns(fmt.Sprintf("%064x", i), grant.Share{UUID: uuids[i%8], MemoryMiB: 1000, CorePercent: 1})
		_, err := ledger.Claim(background, c, gpus, nil)
		require.NoError(b, err)
	}
	return dir, ledger, gpus
}

// benchClaim is one more container.
func benchClaim() ledger.Claim {
	return withTurns(fmt.Sprintf("%064x", 1<<20), grant.Share{UUID: "GPU-00000000-0000-0000-0000-000000000000", MemoryMiB: 1000, CorePercent: 1})
}

// BenchmarkClaim500 is a claim, and its removal, beside 500 others; ns/claim
// is only the claim.
func BenchmarkClaim500(b *testing.B) {
	_, store, gpus := fill500(b)
	benchClaims(b, store, store, gpus)
}

func benchClaims(b *testing.B, claims, removes *ledger.Ledger, gpus map[string]grant.GPU) {
	claim := benchClaim()
	var claiming time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := claims.Claim(background, claim, gpus, nil)
		claiming += time.Since(start)
		if err != nil {
			b.Fatal(err)
		}
		if err := removes.Remove(background, claim.ContainerID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(claiming.Nanoseconds())/float64(b.N), "ns/claim")
}

// BenchmarkClaim500Refused is a claim that does not fit.
func BenchmarkClaim500Refused(b *testing.B) {
	_, ledger, gpus := fill500(b)
	claim := benchClaim()
	claim.Shares[0].MemoryMiB = 140_000
	for b.Loop() {
		if _, err := ledger.Claim(background, claim, gpus, nil); err == nil {
			b.Fatal("reserved")
		}
	}
}

// BenchmarkClaim500AfterAnother is a claim after another process changed
// something.
func BenchmarkClaim500AfterAnother(b *testing.B) {
	dir, store, gpus := fill500(b)
	benchClaims(b, store, openLedger(b, dir), gpus)
}

// BenchmarkRelease500Unknown is the Stop of a container without a claim: most
// of a node's.
func BenchmarkRelease500Unknown(b *testing.B) {
	_, ledger, _ := fill500(b)
	for b.Loop() {
		if err := ledger.Release(background, "unknown"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen500 is the first look of a new process.
func BenchmarkOpen500(b *testing.B) {
	dir, _, _ := fill500(b)
	for b.Loop() {
		ledger, err := ledger.Open(dir)
		if err != nil {
			b.Fatal(err)
		}
		if s := snapshot(b, ledger); len(s.Entries) != 500 {
			b.Fatal(len(s.Entries))
		}
		if err := ledger.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFromPod is the codec's part of a request.
func BenchmarkFromPod(b *testing.B) {
	for name, annotations := range map[string]map[string]string{
		"hami":  {api.AnnotationHAMiToAllocate: gpuA + ",NVIDIA,8000,30:;"},
		"named": {api.AnnotationGrant: `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"` + gpuA + `","memoryMiB":8000,"cores":30}]}}`},
		"none":  {},
	} {
		b.Run(name, func(b *testing.B) {
			pod := grant.Pod{UID: "u", Namespace: "ns", Name: "name", Annotations: annotations}
			for b.Loop() {
				if _, err := grant.FromPod(background, pod, "main", "node-1", nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
