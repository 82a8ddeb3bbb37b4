package api

// Names of the DRA driver.
const (
	// DRADriver is the driver's name in ResourceSlices and ResourceClaims. Names of attributes and capacities without a
	// domain are in its domain.
	DRADriver = "gpu.gpuslice.io"
	// CDIClaimKind is the CDI kind of the devices of prepared ResourceClaims.
	CDIClaimKind = "gpuslice.io/claim"
	// PreparedDirName is the directory of the prepared records, in the state directory.
	PreparedDirName = "prepared"
	// ContainerPreparedDir is where a container's CDI devices mount their prepared records.
	ContainerPreparedDir = "/.gpuslice-claims"
)

// CDIClaimSpecPrefix begins the name of a prepared ResourceClaim's CDI spec; its UID and ".json" follow.
const CDIClaimSpecPrefix = "gpuslice-claim-"
