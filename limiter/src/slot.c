/* The kernel arbitrates a slot: only a process that holds the lock on its byte may claim or clear
 * it. The lock belongs to an open file description, so it ends when the last process that holds
 * that description ends, whatever the cause.
 *
 * States, by owner word and lock:
 *   owner 0,    free    not used; a process that takes the lock may claim it
 *   owner 0,    locked  being claimed; its cells are zero
 *               (if the claiming program has closed the descriptor, two processes may
 *               claim one slot: the first TID in the word has it)
 *   owner TID,  locked  alive
 *   owner TID,  free    alive, and it closed the descriptor (closefrom)
 *   OWNER_DIED, locked  dying, or a forked child keeps the driver's files
 *   OWNER_DIED, free    dead, if /proc shows no such process either; see witness.c. Memory
 *                       that it exported stays charged while it is held; see exported.h */
#include "slot.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "exported.h"
#include "filelock.h"
#include "filepages.h"
#include "ipcrecord.h"
#include "suspend.h"
#include "witness.h"

static uint32_t owner_of(const struct vgpu_usage *usage, uint32_t slot)
{
	/* Acquire: pairs with the release that frees a slot after zeroing it. */
	return atomic_load_explicit(&usage->slots[slot].owner, memory_order_acquire);
}

/* Witnesses one (the owner word) and three (/proc). The caller has taken or tested the lock, which
 * is witness two. */
static bool owner_gone(const struct vgpu_usage *usage, uint32_t slot)
{
	const struct vgpu_slot *s = &usage->slots[slot];

	return (owner_of(usage, slot) & FUTEX_OWNER_DIED) && witness_process_gone(s->pid, atomic_load(&s->start_time), s->pid_ns);
}

static uint64_t charged_bit(uint32_t slot)
{
	return (uint64_t)1 << slot % 64;
}

static bool has_ended(const struct vgpu_usage *usage, int fd, uint32_t slot)
{
	return owner_of(usage, slot) & FUTEX_OWNER_DIED && !filelock_taken(fd, VGPU_LOCK_SLOT(slot)) && owner_gone(usage, slot);
}

uint64_t slot_bytes(const struct vgpu_usage *usage, int fd, uint32_t slot, int cell)
{
	const struct vgpu_slot *s = &usage->slots[slot];
	uint64_t bytes = suspended(s) ? exported_bytes(s, cell) :
					atomic_load_explicit(&s->cells[cell].committed, memory_order_relaxed);

	if (!bytes || !has_ended(usage, fd, slot))
		return bytes;
	return exported_held(usage, slot) ? exported_bytes(s, cell) : 0;
}

enum { WORDS = VGPU_PROCESSES / 64 };

/* The slots of a word of which the process has ended. Each is looked at once. */
static uint64_t ended_in(const struct vgpu_usage *usage, int fd, uint32_t word, uint64_t slots, uint64_t *seen, uint64_t *ended)
{
	for (uint64_t bits = slots & ~seen[word]; bits;) {
		uint32_t slot = usage_next(word, &bits);

		seen[word] |= charged_bit(slot);
		ended[word] |= has_ended(usage, fd, slot) ? charged_bit(slot) : 0;
	}
	return slots & ended[word];
}

uint64_t slot_left_bytes(const struct vgpu_usage *usage, int fd, int cell)
{
	uint32_t high = ipcrecord_high(usage);
	uint64_t sum = 0, seen[WORDS] = { 0 }, ended[WORDS] = { 0 };
	int maker;

	for (uint32_t i = 0; i < high; i++) {
		uint64_t bytes = ipcrecord_memory(usage, i, cell, &maker), living = 0;

		if (!bytes)
			continue;
		if (maker >= 0 && !ended_in(usage, fd, (uint32_t)maker / 64, charged_bit((uint32_t)maker), seen, ended)) {
			sum += ipcrecord_bytes(usage, i, cell);
			continue;
		}
		for (uint32_t word = 0; word < WORDS; word++) {
			uint64_t holders = atomic_load(&usage->ipc.holders[i][word]);

			living |= holders & ~ended_in(usage, fd, word, holders, seen, ended);
		}
		sum += living ? bytes : 0; /* each is below 2^42 */
	}
	return sum;
}

static _Atomic uint64_t *charged_word(struct vgpu_usage *usage, uint32_t slot)
{
	return &usage->charged[slot / 64];
}

/* Requires the slot's lock, and a dead owner. Exported memory that is held stays charged. If the
 * reaper is killed meanwhile, the next one starts again. */
static void clear(struct vgpu_usage *usage, uint32_t slot, bool held)
{
	struct vgpu_slot *s = &usage->slots[slot];

	ipcrecord_clear(usage, slot); /* first: what others have open of it is charged all the time */
	for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
		struct vgpu_cell *c = &s->cells[i];
		uint64_t left = held ? exported_bytes(s, i) : 0;

		/* Relaxed: the release on the owner word below orders them; what is held is
		 * charged before each store and after it. */
		atomic_store_explicit(&c->committed, left, memory_order_relaxed);
		atomic_store_explicit(&c->tentative, 0, memory_order_relaxed);
		atomic_store_explicit(&c->context, 0, memory_order_relaxed);
		atomic_store_explicit(&c->pool, 0, memory_order_relaxed);
		atomic_store_explicit(&c->vmm, left, memory_order_relaxed);
		atomic_store_explicit(&c->graph, 0, memory_order_relaxed);
		atomic_store_explicit(&c->array, 0, memory_order_relaxed);
		atomic_store_explicit(&c->spilled, 0, memory_order_relaxed);
		atomic_store_explicit(&s->exported[i], left, memory_order_relaxed);
	}
	for (int i = 0; i < VGPU_MAX_IMPORTS; i++)
		atomic_store_explicit(&s->imports[i], 0, memory_order_relaxed);
	s->pid = 0;
	atomic_store_explicit(&s->start_time, 0, memory_order_relaxed);
	s->pid_ns = 0;
	if (held) {
		suspend_unmark(s);
		return;
	}
	atomic_store_explicit(&s->exports_byte, 0, memory_order_relaxed);
	s->exports_dev = s->exports_ino = 0;
	/* seq_cst, while the owner word keeps the slot from having another owner: the next owner
	 * sets the bit after this. */
	atomic_fetch_and(charged_word(usage, slot), ~charged_bit(slot));
	atomic_store_explicit(&s->owner, 0, memory_order_release);
}

/* Takes the lock of a slot that is free or has a dead owner, and keeps it. */
static bool seize(struct vgpu_usage *usage, int fd, uint32_t slot)
{
	uint32_t owner = owner_of(usage, slot);

	if (owner != 0 && !(owner & FUTEX_OWNER_DIED))
		return false;
	if (!filelock_try(fd, VGPU_LOCK_SLOT(slot)))
		return false;
	if (owner_of(usage, slot) == 0)
		return true; /* it must not be written: another process may set the owner word now */
	if (owner_gone(usage, slot)) {
		bool held = exported_held(usage, slot);

		clear(usage, slot, held);
		if (!held)
			return true;
	}
	filelock_give(fd, VGPU_LOCK_SLOT(slot));
	return false;
}

static void raise_high_water(struct vgpu_usage *usage, uint32_t to)
{
	uint32_t high = atomic_load(&usage->high_water);

	/* seq_cst: it must be visible before the first announcement in this slot. */
	while (high < to && !atomic_compare_exchange_weak(&usage->high_water, &high, to))
		;
}

static bool has_page(int fd, uint32_t slot)
{
	return filepages_allocate(fd, VGPU_USAGE_HEADER_BYTES + (uint64_t)slot * VGPU_SLOT_BYTES, VGPU_SLOT_BYTES);
}

/* -1: there is none, or (ENOSPC) no page for it. *soon: a slot without a living owner is locked, by a
 * process that is dying or clears it or claims it. */
static int claim_some(struct vgpu_usage *usage, int fd, bool *soon)
{
	*soon = false;
	for (uint32_t i = 0; i < VGPU_PROCESSES; i++) {
		if (i >= usage_high_water(usage) && !has_page(fd, i)) {
			errno = ENOSPC;
			return -1;
		}
		if (seize(usage, fd, i)) {
			raise_high_water(usage, i + 1);
			return (int)i;
		}
		uint32_t owner = owner_of(usage, i);
		*soon |= owner == 0 || owner & FUTEX_OWNER_DIED;
	}
	errno = EAGAIN;
	return -1;
}

enum { CLAIMS = 20, CLAIM_PAUSE_US = 1000 };

int slot_claim(struct vgpu_usage *usage, int fd)
{
	bool soon;
	int slot = claim_some(usage, fd, &soon);

	for (int i = 1; i < CLAIMS && slot < 0 && soon && errno == EAGAIN; i++) {
		clock_sleep_us(CLAIM_PAUSE_US);
		slot = claim_some(usage, fd, &soon);
	}
	return slot;
}

bool slot_own(struct vgpu_usage *usage, struct vgpu_slot *s)
{
	uint32_t none = 0, slot = (uint32_t)(s - usage->slots);

	/* seq_cst: set before any announcement in the slot. The PID and its namespace are written
	 * after it, only by the slot's owner; an owner that dies in between has charged nothing. */
	if (!atomic_compare_exchange_strong(&s->owner, &none, (uint32_t)syscall(SYS_gettid)))
		return false;
	/* seq_cst, also: from here on no reaper clears it while this process lives. */
	atomic_fetch_or(charged_word(usage, slot), charged_bit(slot));
	s->pid = (uint32_t)getpid();
	s->pid_ns = witness_pid_namespace();
	return true;
}

/* Two rounds: the imports of a dead process keep another slot from being cleared, until the dead
 * process's own slot is cleared, which may be later in the first round. */
bool slot_reap(struct vgpu_usage *usage, int fd)
{
	uint32_t words = usage_words(usage);
	bool any = false;

	for (uint32_t i = 0; i < 2 * words; i++)
		for (uint64_t bits = usage_word(usage, i % words); bits;) {
			uint32_t slot = usage_next(i % words, &bits);

			if (!(owner_of(usage, slot) & FUTEX_OWNER_DIED) || !seize(usage, fd, slot))
				continue;
			filelock_give(fd, VGPU_LOCK_SLOT(slot));
			any = true;
		}
	return any;
}

static bool dying(const struct vgpu_slot *s, uint32_t owner, uint64_t *here)
{
	if (*here == UINT64_MAX)
		*here = witness_visible_namespace();
	return *here && s->pid_ns == *here && witness_dying(s->pid, atomic_load(&s->start_time), owner);
}

enum { DYING_LOOKS = 32 };

bool slot_dying(const struct vgpu_usage *usage, const struct vgpu_slot *own, int cell)
{
	uint64_t here = UINT64_MAX; /* not known yet */
	uint32_t words = usage_words(usage);
	int looks = 0;

	for (uint32_t word = 0; word < words; word++)
		for (uint64_t bits = usage_word(usage, word); bits && looks < DYING_LOOKS;) {
			uint32_t slot = usage_next(word, &bits);
			const struct vgpu_slot *s = &usage->slots[slot];

			/* Relaxed: a hint. */
			if (s == own || (!atomic_load_explicit(&s->cells[cell].committed, memory_order_relaxed) && !ipcrecord_holds(usage, slot, cell)))
				continue;
			if (dying(s, owner_of(usage, slot), &here))
				return true;
			looks++;
		}
	return false;
}
