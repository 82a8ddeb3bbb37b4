package limiter

import "fmt"

// UpdateResidue writes the residue of each GPU into a claim's limits file, in its order: memory that only the driver
// counts, such as modules. It reduces the limit. From then on processes follow only what they have charged of their own.
func UpdateResidue(claimDir string, bytes []uint64) error {
	return changeLimits(claimDir, "update residue", func(limits *limitsFile) error { return rewriteResidue(limits, bytes) })
}

// Wake makes the container's processes read the limits again: a killed writer may not have notified them.
func Wake(claimDir string) error {
	return changeLimits(claimDir, "wake the processes", func(limits *limitsFile) error {
		limits.nextGeneration()
		return nil
	})
}

func rewriteResidue(file *limitsFile, bytes []uint64) error {
	return rewriteRecords(file, len(bytes), func(i int, r *limitsRecord) {
		r.residueBytes = bytes[i]
		r.flags &^= recordFlagUnmeasured
	})
}

func rewriteRecords(file *limitsFile, count int, change func(i int, r *limitsRecord)) error {
	if file.crc32 != file.checksum() || int(file.recordCount) != count {
		return fmt.Errorf("the header is invalid, or does not have %d GPUs", count)
	}
	changed := false
	for i := range count {
		want := file.records[i]
		// Its writer was killed. Only UpdateLimits knows the whole record.
		if !want.intact() {
			return fmt.Errorf("record %d: %w", i, ErrHalfWritten)
		}
		change(i, &want)
		want.crc32 = want.checksum()
		changed = rewriteRecord(&file.records[i], want) || changed
	}
	if changed {
		file.nextGeneration()
	}
	return nil
}

// keep takes over what is not a limit.
func (r *limitsRecord) keep(is *limitsRecord) {
	r.residueBytes = is.residueBytes
	r.flags = r.flags&^recordFlagUnmeasured | is.flags&(flagContended|flagBlocked|recordFlagUnmeasured)
	r.correction, r.elasticPercent = is.correction, is.elasticPercent
	r.crc32 = r.checksum()
}

// ReadResidue reads the residues from a limits file, in its order.
func ReadResidue(path string) ([]uint64, error) {
	file, l, err := readLimits(path)
	if err != nil {
		return nil, fmt.Errorf("read residue: %w", err)
	}
	residue := make([]uint64, len(l.Devices))
	for i := range residue {
		residue[i] = file.records[i].residueBytes
	}
	return residue, nil
}
