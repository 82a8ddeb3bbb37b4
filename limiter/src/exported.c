#include "exported.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "filelock.h"
#include "process.h"
#include "quiet.h"

/* Bytes that no driver locks, different for each process on the machine. */
#define FIRST_BYTE ((uint64_t)1 << 62)

static uint64_t fresh_byte(uint32_t slot)
{
	return FIRST_BYTE | (clock_ns() * VGPU_SLOT_COUNT + slot) % FIRST_BYTE;
}

void exported_add(struct process *p, int cell, uint64_t bytes)
{
	atomic_fetch_add(&p->owner.slot->exported[cell], bytes);
}

void exported_undo(struct process *p, int cell, uint64_t bytes)
{
	atomic_fetch_sub(&p->owner.slot->exported[cell], bytes);
}

uint64_t exported_bytes(const struct vgpu_slot *s, int cell)
{
	uint64_t exported = atomic_load(&s->exported[cell]), committed = atomic_load(&s->cells[cell].committed);

	/* If the process died during an export, the export may be counted twice. */
	return exported < committed ? exported : committed;
}

/* Whether fd is the file of the slot's byte, which is the file of its first exported descriptor. */
static bool is_of(const struct vgpu_slot *s, int fd)
{
	struct stat file; /* not by libc's fstat, which has a version of its own since 2.33 */

	return syscall(SYS_fstat, fd, &file) == 0 && file.st_dev == s->exports_dev && file.st_ino == s->exports_ino;
}

static bool choose_byte(struct process *p, int fd)
{
	struct vgpu_slot *s = p->owner.slot;
	struct stat file;

	if (atomic_load(&s->exports_byte))
		return true;
	if (syscall(SYS_fstat, fd, &file) != 0)
		return false;
	s->exports_dev = file.st_dev;
	s->exports_ino = file.st_ino;
	/* seq_cst: a reader that finds the byte finds its file. */
	atomic_store(&s->exports_byte, fresh_byte((uint32_t)(s - p->usage->slots)));
	return true;
}

bool exported_mark(struct process *p, int fd, uint32_t slot)
{
	struct vgpu_slot *s = &p->usage->slots[slot];

	uint64_t before = quiet_take(&p->exported.lock);
	bool known = s != p->owner.slot || choose_byte(p, fd);
	quiet_give(&p->exported.lock, before);
	return known && is_of(s, fd) && filelock_share(fd, (int64_t)atomic_load(&s->exports_byte));
}

/* The number before *end, which moves in front of it. */
static uint64_t number_before(const char *start, const char **end)
{
	const char *at = *end;
	uint64_t number = 0;

	while (at > start && at[-1] >= '0' && at[-1] <= '9')
		at--;
	for (const char *digit = at; digit < *end; digit++)
		number = number * 10 + (uint64_t)(*digit - '0');
	*end = at;
	return number;
}

/* The byte in "lock:\t1: OFDLCK ADVISORY  READ -1 00:05:99 FIRST LAST"; 0: it is no such line. */
static uint64_t byte_of(const char *line, const char *end)
{
	const char *at = end;

	if (end - line < 5 || memcmp(line, "lock:", 5))
		return 0;
	uint64_t last = number_before(line, &at);
	if (at == line || *--at != ' ')
		return 0;
	return number_before(line, &at) == last && last >= FIRST_BYTE ? last : 0;
}

/* The byte that this description locks; 0: none, or it is not known. */
static uint64_t marked(int fd)
{
	char path[40], text[1024];
	uint64_t byte = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = open(path, O_RDONLY | O_CLOEXEC);
	if (info < 0)
		return 0;
	ssize_t n = read(info, text, sizeof(text) - 1);
	close(info);
	text[n > 0 ? n : 0] = 0;
	for (const char *line = text, *end; !byte && (end = strchr(line, '\n')); line = end + 1)
		byte = byte_of(line, end);
	return byte;
}

static int slot_of_byte(const struct vgpu_usage *usage, int fd, uint64_t byte)
{
	uint32_t high = usage_high_water(usage);

	for (uint32_t i = 0; byte && i < high; i++)
		if (atomic_load(&usage->slots[i].exports_byte) == byte && is_of(&usage->slots[i], fd))
			return (int)i;
	return -1;
}

/* Where imports of that slot are counted, or a free place; -1: all places are taken. */
static int place_of(struct process *p, uint32_t slot)
{
	int free = -1;

	for (int i = 0; i < VGPU_MAX_IMPORTS; i++) {
		if (p->exported.uses[i] && p->owner.slot->imports[i] == slot + 1)
			return i;
		if (!p->exported.uses[i])
			free = i;
	}
	return free;
}

static bool list(struct process *p, uint32_t slot)
{
	uint64_t before = quiet_take(&p->exported.lock);
	int i = place_of(p, slot);
	if (i >= 0 && !p->exported.uses[i]++) /* seq_cst: before the check of the lock that follows */
		atomic_store(&p->owner.slot->imports[i], (uint16_t)(slot + 1));
	quiet_give(&p->exported.lock, before);
	return i >= 0;
}

void exported_import_end(struct process *p, int slot)
{
	uint64_t before = quiet_take(&p->exported.lock);
	int i = place_of(p, (uint32_t)slot);
	if (i >= 0 && p->exported.uses[i] && !--p->exported.uses[i])
		atomic_store(&p->owner.slot->imports[i], 0);
	quiet_give(&p->exported.lock, before);
}

/* A reaper checks the lock first and the lists of imports after it. So if the lock still exists after
 * this process has listed the slot, a reaper either found the lock or finds the slot listed. */
int exported_import_begin(struct process *p, int fd)
{
	uint64_t byte = marked(fd);
	int slot = slot_of_byte(p->usage, fd, byte);

	if (slot < 0 || !list(p, (uint32_t)slot))
		return -1;
	if (marked(fd) == byte && slot_of_byte(p->usage, fd, byte) == slot)
		return slot;
	exported_import_end(p, slot);
	return -1;
}

static bool listed(const struct vgpu_usage *usage, uint32_t slot)
{
	uint32_t high = usage_high_water(usage);

	for (uint32_t i = 0; i < high; i++)
		for (int k = 0; i != slot && k < VGPU_MAX_IMPORTS; k++)
			if (atomic_load(&usage->slots[i].imports[k]) == slot + 1)
				return true;
	return false;
}

/* Opens another description of the file that contains the slot's byte, because a lock is visible only
 * through a description that does not hold it. A process that uses the driver has that file
 * open. -1: it has not. */
static int open_file_of(const struct vgpu_slot *s)
{
	char path[32];
	DIR *own = opendir("/proc/self/fd");
	int fd = -1;

	for (struct dirent *entry; own && fd < 0 && (entry = readdir(own)) != NULL;) {
		int number = 0;

		for (const char *c = entry->d_name; *c >= '0' && *c <= '9'; c++)
			number = number * 10 + (*c - '0');
		if (*entry->d_name == '.' || !is_of(s, number))
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", number);
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	}
	if (own)
		closedir(own);
	return fd;
}

bool exported_held(const struct vgpu_usage *usage, uint32_t slot)
{
	const struct vgpu_slot *s = &usage->slots[slot];
	uint64_t byte = atomic_load(&s->exports_byte);

	if (!byte)
		return false;
	int fd = open_file_of(s);
	bool held = fd < 0 || filelock_taken(fd, (int64_t)byte); /* if it is not known, the memory counts as held, which is safe */
	if (fd >= 0)
		close(fd);
	return held || listed(usage, slot);
}
