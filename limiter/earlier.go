package limiter

// What limiters from before there were turns read in a record, beside the limits: the agent of that time wrote there, once
// per second, whether others use the GPU. Containers keep the limiter that they started with.
const (
	flagContended = 2
	flagBlocked   = 4
	noCorrection  = 1000 // thousandths
)

// HoldEarlier makes such limiters keep to their shares in a claim's limits file, because nothing reports the use of others there
// any more. percents are for GPUs on which the container has no share, in the file's order.
func HoldEarlier(claimDir string, percents []int) error {
	return changeLimits(claimDir, "hold an earlier limiter to its share", func(limits *limitsFile) error {
		return rewriteRecords(limits, len(percents), func(i int, r *limitsRecord) {
			if r.flags&recordFlagMIG != 0 {
				return
			}
			r.flags = r.flags&^flagBlocked | flagContended
			r.correction, r.elasticPercent = noCorrection, 0
			if r.corePercent == 0 {
				r.elasticPercent = uint16(percents[i])
			}
		})
	})
}
