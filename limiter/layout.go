package limiter

// Sizes and offsets of src/layout.h in bytes. TestLayout compares both.
const (
	layoutNumber = 1

	limitsMagic       = "GPUSLIM1"
	limitsSize        = 4096
	limitsHeaderSize  = 128
	limitsRecordSize  = 128
	limitsOffLayout   = 8
	limitsOffHeader   = 12
	limitsOffRecord   = 16
	limitsOffCount    = 20
	limitsOffGen      = 24
	limitsOffFlags    = 32
	limitsOffCRC      = 36
	limitsOffIdentity = 40
	identitySize      = 32
	flagOversubscribe = 1

	recordOffSequence    = 0
	recordOffCRC         = 4
	recordOffUUID        = 8
	recordOffMemory      = 24
	recordOffCore        = 32
	recordOffCoreSoft    = 36
	recordOffPolicy      = 40
	recordOffPriority    = 44
	recordOffFlags       = 48
	recordOffContext     = 56
	recordOffName        = 64
	recordNameSize       = 48
	recordOffResidue     = 112
	recordOffPhysical    = 120
	recordOffCorrection  = 52
	recordOffElastic     = 54
	recordFlagMIG        = 1
	recordFlagContended  = 2
	recordFlagBlocked    = 4
	uuidSize             = 16
	maxMemoryLimitBytes  = 1 << 56 // sums stay far from 2^64
	maxRecordCorePercent = 100

	usageMagic         = "GPUSUSE1"
	usageHeaderSize    = 4096
	usageSlots         = 1024
	usageSlotSize      = 1280
	usageCellOffset    = 128
	usageCellSize      = 64
	usageSize          = usageHeaderSize + usageSlots*usageSlotSize
	usageOffLayout     = 8
	usageOffHeader     = 12
	usageOffSlot       = 16
	usageOffSlots      = 20
	usageOffCellOffset = 24
	usageOffCell       = 28
	usageOffCells      = 32
	usageOffDevices    = 36
	usageOffMIG        = 40
	usageOffUUID       = 64
	usageOffHighWater  = 1024
	usageOffBuckets    = 2048
	usageBucketSize    = 128

	slotOffOwner = 0
	slotOffPID   = 4

	cellOffCommitted = 0
	cellOffContext   = 16
	cellOffPool      = 24
	cellOffVMM       = 32
	cellOffGraph     = 40
	cellOffArray     = 48
	cellOffSpilled   = 56

	bucketOffSpent      = 8
	bucketOffThrottled  = 24
	bucketOffLaunches   = 32
	bucketOffLastLaunch = 40
	bucketOffRefused    = 48

	usageLockSlow = 1 << 40 // processes lock the bytes past the end of the file

	futexOwnerDied = 0x40000000 // linux/futex.h
)
