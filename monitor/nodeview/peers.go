package nodeview

import (
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

// Peers adds the shares, as the limiter weighs them, to the turns of the containers.
func Peers(s *ledger.Snapshot, turns map[string]map[string]limiter.Turn, floor int) map[string]map[string]feedback.Peer {
	remainders := Remainders(s, floor)
	peers := map[string]map[string]feedback.Peer{}
	for _, c := range s.Claims() {
		for _, share := range c.Shares {
			t, known := turns[share.UUID][c.ContainerID]
			if !known {
				continue
			}
			p := feedback.Peer{
				Turn: t, Weight: float64(share.CorePercent), Low: c.Priority() == limiter.PriorityLow,
				Free: c.CorePolicy == limiter.PolicyDisable || share.CorePercent >= 100,
			}
			if share.CorePercent == 0 {
				p.Weight = remainders[share.UUID]
			}
			if peers[share.UUID] == nil {
				peers[share.UUID] = map[string]feedback.Peer{}
			}
			peers[share.UUID][c.ContainerID] = p
		}
	}
	return peers
}

// Remainders are what containers without a share have of the GPUs' time, in percent.
func Remainders(s *ledger.Snapshot, floor int) map[string]float64 {
	shared, remainders := map[string]float64{}, map[string]float64{}
	for _, c := range s.Claims() {
		for _, share := range c.Shares {
			shared[share.UUID] += float64(share.CorePercent)
			if share.CorePercent == 0 {
				remainders[share.UUID]++
			}
		}
	}
	for gpu, without := range remainders {
		remainders[gpu] = max(float64(floor), (100-shared[gpu])/without)
	}
	return remainders
}
