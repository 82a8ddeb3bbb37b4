#include "ipcrecord.h"

#include <stddef.h>

#include "filepages.h"
#include "suspend.h"

enum phase { FREE, MAKING, OPEN, LEAVING, LEFT };

/* A state, from its lowest bit: phase 3, cell 4, the maker's slot 10, bytes 33, a number that differs with each use 14. */
enum { CELL = 3, MAKER = 7, BYTES = 17, SERIAL = 50, UNIT = 512 };
#define MOST_UNITS (((uint64_t)1 << (SERIAL - BYTES)) - 1)

static enum phase phase_of(uint64_t state)
{
	return (enum phase)(state & 7);
}

static uint32_t maker_of(uint64_t state)
{
	return (state >> MAKER & 1023) % VGPU_PROCESSES; /* the tenant can write the file */
}

static uint64_t in_phase(uint64_t state, enum phase phase)
{
	return (state & ~(uint64_t)7) | phase;
}

static uint64_t load(const struct vgpu_usage *usage, uint32_t record)
{
	return atomic_load(&usage->ipc.state[record]);
}

static bool change(struct vgpu_usage *usage, uint32_t record, uint64_t from, uint64_t to)
{
	return atomic_compare_exchange_strong(&usage->ipc.state[record], &from, to);
}

static uint64_t bit_of(uint32_t slot)
{
	return (uint64_t)1 << slot % 64;
}

static bool has_holder(const struct vgpu_usage *usage, uint32_t record)
{
	for (int word = 0; word < VGPU_PROCESSES / 64; word++)
		if (atomic_load(&usage->ipc.holders[record][word]))
			return true;
	return false;
}

static _Atomic uint64_t *left_word(struct vgpu_usage *usage, uint32_t record)
{
	return &usage->ipc_left[record / IPCRECORD_PER_WORD];
}

static uint64_t left_bit(uint32_t record)
{
	return (uint64_t)1 << record % IPCRECORD_PER_WORD;
}

/* The upper half of the word is a number: after it has risen, no process clears a bit that it has read before, and no sum
 * counts that was kept for the word before. */
static void raise_number(struct vgpu_usage *usage, uint32_t record)
{
	atomic_fetch_add(left_word(usage, record), (uint64_t)1 << IPCRECORD_PER_WORD);
}

/* In LEAVING, before LEFT. */
static void show_left(struct vgpu_usage *usage, uint32_t record)
{
	raise_number(usage, record);
	atomic_fetch_or(left_word(usage, record), left_bit(record));
}

/* If another process changes the word meanwhile, the bit stays: it costs a process a load. Returns whether it has gone. */
static bool hide_left(struct vgpu_usage *usage, uint32_t record)
{
	uint64_t word = atomic_load(left_word(usage, record));
	enum phase phase = phase_of(load(usage, record)); /* after the word */

	return word & left_bit(record) && phase != LEAVING && phase != LEFT &&
	       atomic_compare_exchange_strong(left_word(usage, record), &word, word & ~left_bit(record));
}

/* In LEFT no process begins to hold it: a bit that is set then is taken back. The serial number shows if the record has
 * been used again. Also if another process has made it FREE, no sum that was kept counts it when this returns. */
static void end_if_let_go(struct vgpu_usage *usage, uint32_t record)
{
	uint64_t state = load(usage, record);

	if (phase_of(state) == LEFT) {
		if (has_holder(usage, record))
			return;
		change(usage, record, state, in_phase(state, FREE));
	}
	if (atomic_load(left_word(usage, record)) & left_bit(record) && !hide_left(usage, record))
		raise_number(usage, record);
}

/* The pages of a new record are allocated before they are touched, as a slot's. */
static bool add_record(struct vgpu_usage *usage, int fd, uint32_t record)
{
	if (!filepages_allocate(fd, offsetof(struct vgpu_usage, ipc), offsetof(struct vgpu_ipc, holders)) ||
	    !filepages_allocate(fd, offsetof(struct vgpu_usage, ipc.holders) + record * sizeof(usage->ipc.holders[0]), sizeof(usage->ipc.holders[0])))
		return false;
	/* seq_cst: it must be visible before the record counts. */
	atomic_compare_exchange_strong(&usage->ipc_high, &record, record + 1);
	return true;
}

static int claim(struct vgpu_usage *usage, int fd, uint64_t as)
{
	for (uint32_t i = 0; i < VGPU_IPC_RECORDS; i++) {
		if (i >= ipcrecord_high(usage) && !add_record(usage, fd, i))
			break;
		uint64_t state = load(usage, i);
		uint64_t next = ((state >> SERIAL) + 1) << SERIAL | as;
		if (phase_of(state) == FREE && change(usage, i, state, next))
			return (int)i;
	}
	return -1;
}

int ipcrecord_make(struct vgpu_usage *usage, int fd, uint32_t slot, int cell, uint64_t bytes, uint64_t key)
{
	uint64_t units = (bytes + UNIT - 1) / UNIT;

	if (units > MOST_UNITS)
		return -1;
	int record = claim(usage, fd, MAKING | (uint64_t)cell << CELL | (uint64_t)slot << MAKER | units << BYTES);
	if (record < 0)
		return -1;
	atomic_store(&usage->ipc.key[record], key);
	atomic_store(&usage->ipc.state[record], in_phase(load(usage, (uint32_t)record), OPEN));
	return record;
}

int ipcrecord_find(const struct vgpu_usage *usage, uint64_t key)
{
	uint32_t high = ipcrecord_high(usage);

	for (uint32_t i = 0; i < high; i++)
		if (atomic_load(&usage->ipc.key[i]) == key && phase_of(load(usage, i)) == OPEN)
			return (int)i;
	return -1;
}

bool ipcrecord_hold(struct vgpu_usage *usage, int record, uint32_t slot, uint64_t key)
{
	atomic_fetch_or(&usage->ipc.holders[record][slot / 64], bit_of(slot));
	/* In this order: the key is not changed while the record is OPEN, nor while it is held. */
	return phase_of(load(usage, (uint32_t)record)) == OPEN && atomic_load(&usage->ipc.key[record]) == key;
}

void ipcrecord_let_go(struct vgpu_usage *usage, int record, uint32_t slot)
{
	_Atomic uint64_t *word = &usage->ipc.holders[record][slot / 64];

	if (atomic_load(word) & bit_of(slot))
		atomic_fetch_and(word, ~bit_of(slot));
	end_if_let_go(usage, (uint32_t)record);
}

void ipcrecord_leave(struct vgpu_usage *usage, int record)
{
	uint64_t state = load(usage, (uint32_t)record);

	atomic_store(&usage->ipc.state[record], in_phase(state, LEAVING));
	if (phase_of(state) == MAKING || !has_holder(usage, (uint32_t)record)) {
		atomic_store(&usage->ipc.state[record], in_phase(state, FREE));
		return;
	}
	show_left(usage, (uint32_t)record);
	atomic_store(&usage->ipc.state[record], in_phase(state, LEFT));
	end_if_let_go(usage, (uint32_t)record); /* it may have been let go in between */
}

void ipcrecord_clear(struct vgpu_usage *usage, uint32_t slot)
{
	uint32_t high = ipcrecord_high(usage);

	for (uint32_t i = 0; i < high; i++) {
		uint64_t state = load(usage, i);
		enum phase phase = phase_of(state);

		ipcrecord_let_go(usage, (int)i, slot);
		if ((phase == MAKING || phase == OPEN || phase == LEAVING) && maker_of(state) == slot)
			ipcrecord_leave(usage, (int)i);
		hide_left(usage, i);
	}
}

static uint64_t bytes_of(uint64_t state, int cell)
{
	return (int)(state >> CELL & 15) == cell ? (state >> BYTES & MOST_UNITS) * UNIT : 0;
}

uint64_t ipcrecord_left_bytes(const struct vgpu_usage *usage, uint32_t record, int cell, bool *stays)
{
	uint64_t state = load(usage, record);

	*stays &= phase_of(state) != LEAVING;
	return phase_of(state) == LEFT ? bytes_of(state, cell) : 0;
}

uint64_t ipcrecord_memory(const struct vgpu_usage *usage, uint32_t record, int cell, int *maker)
{
	uint64_t state = load(usage, record);

	*maker = phase_of(state) == LEFT ? -1 : (int)maker_of(state);
	return phase_of(state) >= OPEN ? bytes_of(state, cell) : 0;
}

uint64_t ipcrecord_bytes(const struct vgpu_usage *usage, uint32_t record, int cell)
{
	int maker;
	uint64_t bytes = ipcrecord_memory(usage, record, cell, &maker);

	return maker < 0 || (bytes && suspended(&usage->slots[maker])) ? bytes : 0;
}

bool ipcrecord_holds(const struct vgpu_usage *usage, uint32_t slot, int cell)
{
	uint32_t high = ipcrecord_high(usage);

	for (uint32_t i = 0; i < high; i++)
		if (ipcrecord_bytes(usage, i, cell) && atomic_load(&usage->ipc.holders[i][slot / 64]) & bit_of(slot))
			return true;
	return false;
}
