package nvidia

// The source of both lists is NVIDIA's XID catalogue
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), its column
// "Resolution Bucket (Immediate Action)".

// applicationXIDs are what programs do to themselves: the GPU is well. These are what
// NVIDIA's device plugin ignores, which HAMi took over. The catalogue says to restart the
// program, or nothing at all, but for 109, which it would have the GPU reset for; if
// that is so, the driver says one of resetXIDs too.
var applicationXIDs = []uint64{
	13,  // graphics engine exception
	31,  // memory page fault
	43,  // a program's channel stopped
	45,  // preemptive cleanup of channels, after another error
	68,  // video decoder exception
	109, // context switch timeout
}

// resetXIDs leave a GPU unusable until it is reset (RESET_GPU) or the machine is
// restarted (RESTART_BM, RESTART_VM). All other XIDs pass by themselves once the program is
// gone: they settle. So do these two, which need a reset in some cases only, and don't
// say in which: 74 (an NVLink error) and 155 (a link that went down, which it also says
// when that was meant).
var resetXIDs = []uint64{
	46,  // the GPU stopped processing
	48,  // double-bit ECC error (a workflow: reset, or restart)
	62,  // the GPU's own microcontroller halted
	64,  // a memory row could not be remapped
	79,  // fallen off the bus
	95,  // uncontained memory error
	110, // security fault
	119, // GSP does not answer
	120, // GSP error
	136, // link training failed
	140, // unrecovered ECC error
	143, // the GPU could not be initialized
	151, // key rotation error
	156, // a resource is retired, from the next reset on
	158, // fatal timeout
}
