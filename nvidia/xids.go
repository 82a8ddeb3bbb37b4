package nvidia

// Source of both lists: NVIDIA's XID catalogue
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Resolution Bucket
// (Immediate Action)".

// applicationXIDs are caused by programs, as in NVIDIA's device plugin and HAMi. For 109 the catalogue
// requires a reset; in that case the driver also reports one of resetXIDs.
var applicationXIDs = []uint64{
	13,  // graphics exception
	31,  // memory page fault
	43,  // a program's channel stopped
	45,  // channel cleanup after another error
	68,  // video decoder exception
	109, // context switch timeout
}

// resetXIDs require a reset of the GPU (RESET_GPU) or a restart of the machine (RESTART_BM, RESTART_VM). All
// others end with the program and settle, including 74 and 155, which require a reset only in some cases.
var resetXIDs = []uint64{
	46,  // GPU stopped processing
	48,  // double-bit ECC error (a workflow: reset, or restart)
	62,  // microcontroller of the GPU halted
	64,  // memory row could not be remapped
	79,  // fallen off the bus
	95,  // uncontained memory error
	110, // security fault
	119, // GSP does not answer
	120, // GSP error
	136, // link training failed
	140, // unrecovered ECC error
	143, // GPU could not be initialized
	151, // key rotation error
	156, // resource is retired at the next reset
	158, // fatal timeout
}
