/* The files that the limiter shares with the host. This header is their
 * definition; limiter/layout.go repeats it and a test compares the two.
 *
 * All numbers are little-endian, all fields naturally aligned. Layouts only
 * ever grow a new layout number: a reader refuses a number it does not know.
 *
 *   limits, 4096 bytes, written by the host only (mapped read-only here):
 *
 *      0 ┌──────────────┐
 *        │ header, 128  │  crc over 0..24 and 32..36
 *    128 ├──────────────┤
 *        │ 16 records   │  each 128, checked by its own sequence and crc
 *        │ of 128       │
 *   2176 ├──────────────┤
 *        │ zeros        │
 *   4096 └──────────────┘
 *
 *   usage, 4096 + 1024 * 1280 bytes, created by the host, then written by the
 *   CUDA processes of one container:
 *
 *      0 ┌──────────────┐
 *        │ header, 1024 │  by the host, once
 *   1024 │ high_water   │  by a process that claims a slot; it only rises
 *   1028 │ ipc_high     │  by a process that claims an IPC record; it only rises
 *   1032 │ charged      │  a bit per slot: set by the slot's process, cleared by a reaper
 *   1160 │ ipc_left     │  a bit per IPC record that may count, see ipcrecord.c
 *   2048 │ 16 compute   │  one per cell: by every process that launches (pace.c) or is refused; up to
 *        │ of 128       │      `refused` only displayed; then the ceiling (ceiling.h); new ones are zero
 *   4096 ├──────────────┤
 *        │ slot 0, 1280 │    0 header, 128: owner word by the kernel, the helper thread, and by
 *        │              │      checkpoints; the rest by the claiming process
 *        │              │  128 16 cells of 64: by the slot's own process only,
 *        │              │      zeroed by a reaper after that process has ended, except
 *        │              │      for exported memory that is held (exported.h)
 *        │              │ 1152 exported bytes of the 16 cells, 8 each
 *   5376 ├──────────────┤
 *        │ slot 1 … 959 │
 * 1232896├──────────────┤
 *        │ IPC records  │  see ipcrecord.h
 *
 * Cell i belongs to record i of the limits file. A slot never moves.
 *
 *   table, 16384 bytes, one per GPU, written by the host only (mapped read-only here): the shares of
 *   all containers of the GPU. It is changed in place, between two even values of its sequence.
 *
 *   turn, 4096 bytes, one per container and GPU, created by the host, then written by the CUDA
 *   processes of that container. Other containers read the first 128 bytes, with pread. They trust
 *   none of it.
 *
 *      0 ┌──────────────┐
 *        │ words, 128   │  the container's turn, for its peers (turn.c)
 *    128 ├──────────────┤
 *        │ 64 seen      │  what the container has seen of each peer
 *   1152 ├──────────────┤
 *        │ 3 times 64   │  of each process, by its slot modulo 64: until when it has work, and how it waits
 *   2688 └──────────────┘  zeros to the end */
#ifndef GPUSLICE_LAYOUT_H
#define GPUSLICE_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
	VGPU_LAYOUT = 1,
	VGPU_MAX_DEVICES = 16,

	VGPU_LIMITS_BYTES = 4096,
	VGPU_LIMITS_HEADER_BYTES = 128,
	VGPU_LIMITS_RECORD_BYTES = 128,
	VGPU_LIMITS_OVERSUBSCRIBE = 1, /* header flags, bit 0 */
	VGPU_RECORD_MIG = 1,           /* record flags, bit 0 */
	VGPU_RECORD_UNMEASURED = 8,    /* the host measures no residue: each process measures its own (residue.c) */
	VGPU_RECORD_FIRST = 16,        /* each process measures its own before its first allocation in a context */

	VGPU_USAGE_HEADER_BYTES = 4096,
	VGPU_SLOT_COUNT = 1024, /* in the header; of the last ones the IPC records have the place */
	VGPU_PROCESSES = 960,   /* slots that processes claim */
	VGPU_IPC_RECORDS = 512,
	VGPU_SLOT_BYTES = 1280,
	VGPU_SLOT_HEADER_BYTES = 128,
	VGPU_CELL_BYTES = 64,
	VGPU_COMPUTE_BYTES = 128,
	VGPU_MAX_IMPORTS = 40, /* processes of which one process has imported memory at a time */
	VGPU_USAGE_BYTES = VGPU_USAGE_HEADER_BYTES + VGPU_SLOT_COUNT * VGPU_SLOT_BYTES,

	VGPU_TABLE_BYTES = 16384,
	VGPU_TABLE_SHARES = 1022,
	VGPU_TURN_BYTES = 4096,
	VGPU_TURN_WORDS_BYTES = 128,
	VGPU_TURN_PEERS = 64, /* that one container looks at */
	VGPU_TURN_PROCESSES = 64,
	VGPU_CEILING_PROCESSES = 7,
};

#define VGPU_LIMITS_MAGIC "GPUSLIM1"
#define VGPU_USAGE_MAGIC "GPUSUSE1"
#define VGPU_TABLE_MAGIC "GPUSTAB1"
#define VGPU_TURN_MAGIC "GPUSTUR1"

/* A bit of the owner word: the process is checkpointed, see suspend.h. It is FUTEX_WAITERS, which the
 * kernel keeps when the owner dies, and which no thread sets: none waits for the word. */
#define VGPU_OWNER_SUSPENDED 0x80000000u

struct vgpu_record {
	_Atomic uint32_t sequence; /* even: stable; odd: being rewritten */
	uint32_t crc32;            /* IEEE, of bytes 8 to 128 */
	uint8_t uuid[16];
	uint64_t memory_limit_bytes; /* never 0 */
	uint32_t core_percent;       /* 0: not limited */
	uint32_t core_soft_percent;  /* 0: none */
	uint32_t policy;             /* 0 default, 1 force, 2 disable */
	uint32_t priority;           /* 0 high, 1 low */
	uint32_t flags;
	uint32_t reserved;      /* the host writes it, and bits 1 and 2 of the flags, for limiters from before turns */
	uint64_t context_bytes; /* 0: unknown */
	char name[44];          /* the UUID as text */
	uint16_t page_kib;      /* the GPU's memory is taken in pages of that size; 0: to the byte */
	uint16_t small_kib;     /* allocations up to that size share pages */
	uint64_t residue_bytes; /* bytes that the host measures beyond what is charged */
	uint64_t physical_bytes; /* the part of the limit that may lie on the GPU; 0: all of it */
};

struct vgpu_limits {
	uint8_t magic[8];
	uint32_t layout;
	uint32_t header_bytes;
	uint32_t record_bytes;
	uint32_t record_count;
	_Atomic uint64_t generation;
	uint32_t flags;
	uint32_t crc32;
	uint8_t identity[32]; /* of the container: the host's own check, not in the crc; a slice's is zero */
	uint64_t turn_id; /* the container's name in the tables and in turn files, not in the crc; 0: it has none */
	uint8_t reserved[48];
	struct vgpu_record records[VGPU_MAX_DEVICES];
};

struct vgpu_cell {
	_Atomic uint64_t committed; /* all that is charged, the splits below included */
	_Atomic uint64_t tentative; /* announced, not yet decided */
	_Atomic uint64_t context;   /* this to array: splits of committed, only displayed; */
	_Atomic uint64_t pool;      /* the rest of committed is linear memory */
	_Atomic uint64_t vmm;
	_Atomic uint64_t graph;
	_Atomic uint64_t array;
	_Atomic uint64_t spilled; /* may lie in the host's memory; not only displayed, see reserve.c */
};

/* Compute time of one GPU. Times are in nanoseconds. Up to `refused` it is only displayed. */
struct vgpu_compute {
	uint64_t reserved;
	_Atomic uint64_t busy;        /* time in which the container had work on the GPU, divided with those that had at once */
	uint64_t reserved2;
	_Atomic uint64_t throttled;   /* time that launches waited */
	_Atomic uint64_t launches;
	_Atomic uint64_t last_launch; /* CLOCK_MONOTONIC, to some milliseconds */
	_Atomic uint64_t refused;     /* refused allocations */
	/* Of a container without turn files, see ceiling.h. */
	_Atomic uint64_t looked;      /* when cap was right; CLOCK_MONOTONIC, as work_until */
	_Atomic int64_t cap;          /* what it may use of its ceiling */
	_Atomic uint64_t work_until[VGPU_CEILING_PROCESSES]; /* a process has work until then */
};

struct vgpu_slot {
	_Atomic uint32_t owner;      /* robust futex: 0 free, TID alive, FUTEX_OWNER_DIED dead; and VGPU_OWNER_SUSPENDED */
	uint32_t pid;                /* as its own PID namespace names it */
	_Atomic uint64_t start_time; /* /proc/<pid>/stat field 22; 0: not known (yet) */
	uint64_t pid_ns;             /* inode of its PID namespace; 0: not known */
	/* The fields below are written by exported.c. If the process has ended and its exported
	 * memory is still held, pid is 0, and the cells contain only that memory. */
	_Atomic uint64_t exports_byte; /* that each descriptor of exported memory locks; 0: none was made */
	uint64_t exports_dev, exports_ino; /* the file that it is a byte of */
	_Atomic uint16_t imports[VGPU_MAX_IMPORTS]; /* 1 + the slot that is charged for memory of which this process has imports; 0: free */
	struct vgpu_cell cells[VGPU_MAX_DEVICES];
	_Atomic uint64_t exported[VGPU_MAX_DEVICES]; /* of committed of cell i: for which a descriptor was made */
};

/* What processes share by legacy IPC, see ipcrecord.h. */
struct vgpu_ipc {
	_Atomic uint64_t state[VGPU_IPC_RECORDS];
	_Atomic uint64_t key[VGPU_IPC_RECORDS]; /* of the handle */
	_Atomic uint64_t holders[VGPU_IPC_RECORDS][VGPU_SLOT_COUNT / 64]; /* bit i % 64 of word i / 64: the process with slot i has it open */
	uint8_t reserved[8192];
};

struct vgpu_usage {
	uint8_t magic[8];
	uint32_t layout;
	uint32_t header_bytes;
	uint32_t slot_bytes;
	uint32_t slot_count;
	uint32_t cell_offset;
	uint32_t cell_bytes;
	uint32_t cell_count;
	uint32_t device_count;
	uint32_t mig_cells; /* bit i: cell i is of a MIG device */
	uint8_t reserved[20];
	uint8_t uuid[VGPU_MAX_DEVICES][16]; /* of cell i */
	uint8_t reserved2[704];
	_Atomic uint32_t high_water; /* slots 0 to high_water-1 were ever claimed */
	_Atomic uint32_t ipc_high; /* IPC records 0 to ipc_high-1 were ever used */
	_Atomic uint64_t charged[VGPU_SLOT_COUNT / 64]; /* bit i % 64 of word i / 64: slot i may have bytes */
	_Atomic uint64_t ipc_left[VGPU_IPC_RECORDS / 32]; /* bit i % 32 of word i / 32: IPC record i may count; see ipcrecord.c */
	uint8_t reserved4[760];
	struct vgpu_compute compute[VGPU_MAX_DEVICES]; /* of cell i */
	struct vgpu_slot slots[VGPU_PROCESSES];
	struct vgpu_ipc ipc;
};

/* A container's share of one GPU. */
struct vgpu_share {
	uint64_t id;           /* the container's turn_id; 0: this entry is empty */
	uint16_t core_percent; /* 0: no share */
	uint16_t soft_percent; /* 0: none */
	uint8_t policy;        /* as in a record */
	uint8_t priority;
	uint16_t reserved;
};

struct vgpu_table {
	uint8_t magic[8];
	_Atomic uint32_t sequence; /* even: stable; odd: being rewritten */
	uint32_t crc32;            /* IEEE, of bytes 16 to 16384; for the host */
	uint32_t count;            /* of shares */
	uint32_t floor_percent;    /* the least of a container without a share */
	uint64_t reserved;
	struct vgpu_share shares[VGPU_TABLE_SHARES];
};

/* What a container shows its peers about itself on one GPU. Times are CLOCK_MONOTONIC in nanoseconds. */
struct vgpu_turn_words {
	uint8_t magic[8];
	uint64_t id;
	_Atomic uint64_t want_until; /* it wants the GPU until then */
	_Atomic uint64_t hold_until; /* it has the turn until then */
	_Atomic int64_t lag;         /* time that it should have had and did not have */
	_Atomic uint64_t busy;       /* time in which it had work under way */
	_Atomic uint64_t looked;     /* when the above were right */
	_Atomic uint64_t work_until; /* it has work under way until then, as it expects */
	_Atomic int64_t cap;         /* what it may use of its ceiling */
	_Atomic uint64_t processes;  /* that have work: the GPU divides its time among them */
	_Atomic uint64_t gaps_until; /* others may use the gaps in its turn until then */
	_Atomic int64_t credit;      /* time that kernels of others took from it, which they pay back */
	uint8_t reserved[32];
};

struct vgpu_turn {
	struct vgpu_turn_words words;
	struct {
		_Atomic uint64_t id, busy;
	} seen[VGPU_TURN_PEERS];
	_Atomic uint64_t work_until[VGPU_TURN_PROCESSES];
	/* A process that waits for its turn: since when, and until when the others let it go first. */
	_Atomic uint64_t waits_since[VGPU_TURN_PROCESSES], waits_until[VGPU_TURN_PROCESSES];
	uint8_t reserved[1408];
};

/* The bytes of the usage file that are locked (open-file-description locks). They lie behind its
 * end, separate from the data. */
#define VGPU_LOCK_SLOW ((int64_t)1 << 40)             /* held in the slow path */
#define VGPU_LOCK_SLOT(i) (VGPU_LOCK_SLOW + 1 + (i)) /* held by the owner of slot i */
#define VGPU_LOCK_SUSPEND(i) VGPU_LOCK_SLOT(VGPU_SLOT_COUNT + (i)) /* held while slot i's process is checkpointed or restored */

_Static_assert(sizeof(struct vgpu_record) == VGPU_LIMITS_RECORD_BYTES, "record");
_Static_assert(offsetof(struct vgpu_record, uuid) == 8, "record.uuid");
_Static_assert(offsetof(struct vgpu_record, memory_limit_bytes) == 24, "record.memory_limit_bytes");
_Static_assert(offsetof(struct vgpu_record, context_bytes) == 56, "record.context_bytes");
_Static_assert(offsetof(struct vgpu_record, name) == 64, "record.name");
_Static_assert(offsetof(struct vgpu_record, page_kib) == 108, "record.page_kib");
_Static_assert(offsetof(struct vgpu_record, residue_bytes) == 112, "record.residue_bytes");
_Static_assert(offsetof(struct vgpu_record, physical_bytes) == 120, "record.physical_bytes");
_Static_assert(offsetof(struct vgpu_limits, generation) == 24, "limits.generation");
_Static_assert(offsetof(struct vgpu_limits, crc32) == 36, "limits.crc32");
_Static_assert(offsetof(struct vgpu_limits, records) == VGPU_LIMITS_HEADER_BYTES, "limits.records");
_Static_assert(sizeof(struct vgpu_cell) == VGPU_CELL_BYTES, "cell");
_Static_assert(sizeof(struct vgpu_compute) == VGPU_COMPUTE_BYTES, "compute");
_Static_assert(offsetof(struct vgpu_usage, compute) == 2048, "usage.compute");
_Static_assert(offsetof(struct vgpu_limits, turn_id) == 72, "limits.turn_id");
_Static_assert(sizeof(struct vgpu_table) == VGPU_TABLE_BYTES, "table");
_Static_assert(offsetof(struct vgpu_table, shares) == 32, "table.shares");
_Static_assert(sizeof(struct vgpu_turn_words) == VGPU_TURN_WORDS_BYTES, "turn.words");
_Static_assert(offsetof(struct vgpu_turn, work_until) == 1152, "turn.work_until");
_Static_assert(sizeof(struct vgpu_turn) == VGPU_TURN_BYTES, "turn");
_Static_assert(offsetof(struct vgpu_slot, exports_byte) == 24, "slot.exports_byte");
_Static_assert(offsetof(struct vgpu_slot, imports) == 48, "slot.imports");
_Static_assert(offsetof(struct vgpu_slot, exported) == 1152, "slot.exported");
_Static_assert(offsetof(struct vgpu_slot, cells) == VGPU_SLOT_HEADER_BYTES, "slot.cells");
_Static_assert(sizeof(struct vgpu_slot) == VGPU_SLOT_BYTES, "slot");
_Static_assert(offsetof(struct vgpu_usage, uuid) == 64, "usage.uuid");
_Static_assert(offsetof(struct vgpu_usage, high_water) == 1024, "usage.high_water");
_Static_assert(offsetof(struct vgpu_usage, ipc_high) == 1028, "usage.ipc_high");
_Static_assert(offsetof(struct vgpu_usage, charged) == 1032, "usage.charged");
_Static_assert(offsetof(struct vgpu_usage, ipc_left) == 1160, "usage.ipc_left");
_Static_assert(offsetof(struct vgpu_usage, slots) == VGPU_USAGE_HEADER_BYTES, "usage.slots");
_Static_assert(offsetof(struct vgpu_usage, ipc) == VGPU_USAGE_HEADER_BYTES + VGPU_PROCESSES * VGPU_SLOT_BYTES, "usage.ipc");
_Static_assert(sizeof(struct vgpu_usage) == VGPU_USAGE_BYTES, "usage");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_SHORT_LOCK_FREE == 2, "shared atomics must be lock-free");

/* The number of slots that were ever claimed, bounded because the tenant can write the file.
 * seq_cst: read after this process's own announcement, see reserve.c. */
static inline uint32_t usage_high_water(const struct vgpu_usage *usage)
{
	uint32_t high = atomic_load(&usage->high_water);

	return high < VGPU_PROCESSES ? high : VGPU_PROCESSES;
}

/* For a walk over the slots that may have bytes: the number of words, each word's bits, and the
 * first slot of the bits, which is taken out of them. seq_cst, as above. */
static inline uint32_t usage_words(const struct vgpu_usage *usage)
{
	return (usage_high_water(usage) + 63) / 64;
}

static inline uint64_t usage_word(const struct vgpu_usage *usage, uint32_t word)
{
	return atomic_load(&usage->charged[word]);
}

static inline uint32_t usage_next(uint32_t word, uint64_t *bits)
{
	uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(*bits);

	*bits &= *bits - 1;
	return slot;
}

#endif
