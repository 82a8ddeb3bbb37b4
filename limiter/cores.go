package limiter

import "fmt"

// Bounds of CoreState.Correction.
const (
	MinCorrection = 250
	MaxCorrection = 4000
)

// CoreState is the host's feedback in the limits file. The library reads it every 100 ms.
type CoreState struct {
	// Contended: others use the GPU.
	Contended bool
	// Blocked: a container of higher priority uses the GPU.
	Blocked bool
	// Correction is a factor of the share in thousandths, for errors of estimated costs. 0 is 1000.
	Correction uint16
	// ElasticPercent is a soft ceiling while contended (0: the hard share), the rest for a blocked container (0: nearly
	// nothing), or that for a contended container without a share (0: not limited).
	ElasticPercent uint16
	// ResidueBytes is memory of the container that only the driver counts, such as modules. It reduces the limit.
	ResidueBytes uint64
}

func (s CoreState) validate() error {
	switch {
	case s.Correction != 0 && (s.Correction < MinCorrection || s.Correction > MaxCorrection):
		return fmt.Errorf("correction %d is not 0 and not %d to %d", s.Correction, MinCorrection, MaxCorrection)
	case s.ElasticPercent > maxRecordCorePercent:
		return fmt.Errorf("elastic core percent %d is above 100", s.ElasticPercent)
	}
	return nil
}

// UpdateCores writes changed states into a claim's limits file, in its order.
func UpdateCores(claimDir string, states []CoreState) error {
	for i, s := range states {
		if err := s.validate(); err != nil {
			return fmt.Errorf("update cores of %s: GPU %d: %w", claimDir, i, err)
		}
	}
	return changeLimits(claimDir, "update cores", func(limits *limitsFile) error { return rewriteCores(limits, states) })
}

// Wake makes the container's processes read the limits again: a killed writer may not have notified them.
func Wake(claimDir string) error {
	return changeLimits(claimDir, "wake the processes", func(limits *limitsFile) error {
		limits.nextGeneration()
		return nil
	})
}

func rewriteCores(file *limitsFile, states []CoreState) error {
	if file.crc32 != file.checksum() || int(file.recordCount) != len(states) {
		return fmt.Errorf("the header is invalid, or does not have %d GPUs", len(states))
	}
	changed := false
	for i, s := range states {
		want := file.records[i]
		// Its writer was killed. Only UpdateLimits knows the whole record.
		if !want.intact() {
			return fmt.Errorf("record %d: %w", i, ErrHalfWritten)
		}
		want.setCores(s)
		changed = rewriteRecord(&file.records[i], want) || changed
	}
	if changed {
		file.nextGeneration()
	}
	return nil
}

func (r *limitsRecord) setCores(s CoreState) {
	r.flags &^= recordFlagContended | recordFlagBlocked
	if s.Contended {
		r.flags |= recordFlagContended
	}
	if s.Blocked {
		r.flags |= recordFlagBlocked
	}
	r.correction, r.elasticPercent, r.residueBytes = s.Correction, s.ElasticPercent, s.ResidueBytes
	r.crc32 = r.checksum()
}

func (r *limitsRecord) cores() CoreState {
	return CoreState{
		Contended: r.flags&recordFlagContended != 0, Blocked: r.flags&recordFlagBlocked != 0,
		Correction: r.correction, ElasticPercent: r.elasticPercent, ResidueBytes: r.residueBytes,
	}
}

// enforced must agree with cores_rate_of (src/cores.c).
func (r *limitsRecord) enforced() bool {
	contended := r.flags&recordFlagContended != 0
	hard, soft, elastic := r.corePercent, min(r.coreSoftPercent, maxRecordCorePercent), uint32(r.elasticPercent)
	switch {
	case r.flags&recordFlagBlocked != 0:
		return true
	case Policy(r.policy) == PolicyDisable || hard >= maxRecordCorePercent:
		return false
	case hard == 0:
		return contended && elastic > 0 && elastic < maxRecordCorePercent
	case soft > hard && !contended:
		return soft < maxRecordCorePercent
	case soft > hard:
		return min(max(elastic, hard), soft) < maxRecordCorePercent
	}
	return Policy(r.policy) == PolicyForce || contended
}

// ReadCores reads the states from a limits file, in its order.
func ReadCores(path string) ([]CoreState, error) {
	file, l, err := readLimits(path)
	if err != nil {
		return nil, fmt.Errorf("read cores: %w", err)
	}
	states := make([]CoreState, len(l.Devices))
	for i := range states {
		states[i] = file.records[i].cores()
	}
	return states, nil
}

// CoreUsage is a container's compute time on a GPU, as it reports itself.
type CoreUsage struct {
	ChargedNanoseconds   uint64 // estimated
	ThrottledNanoseconds uint64 // waited by launches
	Launches             uint64 // while the share was enforced
	// LastLaunchNanoseconds is by CLOCK_MONOTONIC; 0: never.
	LastLaunchNanoseconds uint64
}

func (b *usageBucket) usage() CoreUsage {
	return CoreUsage{
		ChargedNanoseconds: b.spent, ThrottledNanoseconds: b.throttled, Launches: b.launches, LastLaunchNanoseconds: b.lastLaunch,
	}
}

// ReadCoreUsage reads only the header.
func ReadCoreUsage(path string) ([]CoreUsage, error) {
	f, err := openUsage(path)
	if err != nil {
		return nil, err
	}
	defer f.close()
	var header usageHeader
	if _, err := f.ReadAt(bytesOf(&header), 0); err != nil {
		return nil, fmt.Errorf("read usage %s: %w: header: %w", path, ErrUsage, err)
	}
	var u Usage
	if err := header.decode(&u); err != nil {
		return nil, fmt.Errorf("read usage %s: %w", path, err)
	}
	cores := make([]CoreUsage, len(u.Devices))
	for i, d := range u.Devices {
		cores[i] = d.Cores
	}
	return cores, nil
}
