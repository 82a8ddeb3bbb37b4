#include "witness.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

struct stat_line { /* of /proc/<pid>/stat, see proc_pid_stat(5) */
	char state;             /* field 3 */
	uint64_t flags;         /* 9 */
	uint64_t threads;       /* 20 */
	uint64_t start_time;    /* 22 */
	uint64_t pending;       /* 31: signals of the first thread, as a bitmap */
	uint64_t code;          /* 52: of a process that is ending: the signal, or 256 times its exit code */
};

/* The kernel's flags of a task inside do_exit(), and of one that a signal is killing. */
enum { PF_EXITING = 0x4, PF_SIGNALED = 0x400 };

static bool parse(const char *text, struct stat_line *out)
{
	const char *at = strrchr(text, ')'); /* the name before it may contain any character */

	memset(out, 0, sizeof(*out));
	if (!at || at[1] != ' ')
		return false;
	out->state = at[2];
	at += 3;
	for (int field = 4; *at == ' ' && field <= 52; field++) {
		uint64_t value = 0;

		at++;
		if (*at == '-')
			at++;
		for (; *at >= '0' && *at <= '9'; at++)
			value = value * 10 + (uint64_t)(*at - '0');
		switch (field) {
		case 9: out->flags = value; break;
		case 20: out->threads = value; break;
		case 22: out->start_time = value; break;
		case 31: out->pending = value; break;
		case 52: out->code = value; break;
		}
	}
	return true;
}

/* Returns 1: read; 0: there is no such process; -1: unknown. */
static int read_stat(const char *path, struct stat_line *out)
{
	char text[1024];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	int error = errno;
	close(fd);
	if (n <= 0)
		return n < 0 && error == ESRCH ? 0 : -1;
	text[n] = 0;
	return parse(text, out) ? 1 : -1;
}

uint64_t witness_start_time(void)
{
	struct stat_line line;

	return read_stat("/proc/self/stat", &line) == 1 ? line.start_time : 0;
}

/* The number at the end of a link such as "pid:[4026531836]" or "1234". */
static uint64_t number_in_link(const char *path)
{
	char text[64];
	uint64_t number = 0;
	ssize_t n = readlink(path, text, sizeof(text));

	for (ssize_t i = 0; i < n; i++)
		if (text[i] >= '0' && text[i] <= '9')
			number = number * 10 + (uint64_t)(text[i] - '0');
	return number;
}

uint64_t witness_pid_namespace(void)
{
	return number_in_link("/proc/self/ns/pid");
}

uint64_t witness_visible_namespace(void)
{
	return number_in_link("/proc/self") == (uint64_t)getpid() ? witness_pid_namespace() : 0;
}

/* Whether the mounted /proc numbers processes as the recorded namespace does. */
static bool can_see(uint64_t pid_ns)
{
	return pid_ns && pid_ns == witness_visible_namespace();
}

/* The numbers of a line of /proc/<pid>/status, such as "\nNSpid:": the last, and how many there are. */
static int numbers_of(const char *text, const char *name, uint32_t *last)
{
	const char *at = strstr(text, name);
	int count = 0;

	if (!at)
		return 0;
	for (at += strlen(name); *at == '\t'; count++)
		for (*last = 0, at++; *at >= '0' && *at <= '9'; at++)
			*last = *last * 10 + (uint32_t)(*at - '0');
	return *at == '\n' ? count : 0;
}

static bool read_status(int pid, char *text, size_t room)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, room - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

int witness_identify(int pid, struct witness_identity *found)
{
	char path[32], text[4096];
	struct stat_line line;
	uint64_t here = witness_visible_namespace();
	uint32_t group = 0;

	if (!here)
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int known = read_stat(path, &line);
	if (known != 1)
		return known;
	if (!read_status(pid, text, sizeof(text)) || numbers_of(text, "\nTgid:", &group) != 1 || group != (uint32_t)pid)
		return -1; /* it is the number of a thread */
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	*found = (struct witness_identity){ (uint32_t)pid, number_in_link(path), line.start_time };
	if (found->pid_ns == here)
		return 1;
	switch (numbers_of(text, "\nNSpid:", &found->pid)) {
	case 0:
		return -1;
	case 1:
		found->pid_ns = here; /* the link can't be read, but there is one namespace only */
		return 1;
	default:
		return found->pid_ns ? 1 : -1;
	}
}

enum state { ENDED, RUNNING, UNKNOWN };

static enum state state_of(uint32_t pid, uint64_t start_time)
{
	char path[32];
	struct stat_line line;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	switch (read_stat(path, &line)) {
	case 0: /* with hidepid it may still exist */
		return kill((pid_t)pid, 0) != 0 && errno == ESRCH ? ENDED : UNKNOWN;
	case 1:
		break;
	default:
		return UNKNOWN;
	}
	if (start_time && line.start_time != start_time)
		return ENDED;
	if (line.state == 'Z' || line.state == 'X' || line.state == 'x')
		return line.threads <= 1 ? ENDED : RUNNING;
	return RUNNING;
}

static bool is_exiting(const struct stat_line *line)
{
	return line->flags & (PF_EXITING | PF_SIGNALED) || line->pending & 1u << (SIGKILL - 1);
}

/* Linux 6.18 shows the code of the process from the moment at which another signal or exit() ends it; exit(0) has none. A
 * process that is stopped, or that a debugger has stopped (t), has the number of the signal that stopped it. */
static bool has_code(uint32_t pid)
{
	char path[32];
	struct stat_line line;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	return read_stat(path, &line) == 1 && line.code && line.state != 't' && !(line.code >= SIGSTOP && line.code <= SIGTTOU);
}

/* A thread takes the signal off its own pending ones before the kernel notes that it is being killed, and can lose the
 * processor in between. Among those of the process SIGKILL stays until the end. If another signal ends the process, or
 * exit(), only the threads get SIGKILL: then the code shows it. */
static bool was_killed(uint32_t pid)
{
	static const char name[] = "\nShdPnd:\t";
	char text[4096];
	const char *at = read_status((int)pid, text, sizeof(text)) ? strstr(text, name) : NULL;
	uint64_t pending = 0;

	for (at = at ? at + sizeof(name) - 1 : ""; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
		pending = pending << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
	return pending & 1u << (SIGKILL - 1) || has_code(pid);
}

/* The owner thread is dead, but the process still runs and is not dying: it has called exec, and its
 * GPU memory ended with the old program. A dying process has a flag or SIGKILL, and
 * ends within some time. If the process called exec before its start time was recorded (0), the
 * first reading of the start time is used: another process with that PID shows the owner's end
 * just as well. */
static bool became_another_program(uint32_t pid, uint64_t start_time)
{
	char path[32];
	struct stat_line line;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	for (int attempt = 0; attempt < 2; attempt++) {
		if (attempt)
			clock_sleep_us(2000);
		if (read_stat(path, &line) != 1)
			return false;
		start_time = start_time ? start_time : line.start_time;
		if (line.start_time != start_time || line.state == 'Z' || line.state == 'X' || is_exiting(&line) || was_killed(pid))
			return false;
	}
	return true;
}

bool witness_process_gone(uint32_t pid, uint64_t start_time, uint64_t pid_ns)
{
	if (!pid || !can_see(pid_ns))
		return true; /* /proc shows nothing: the other two witnesses decide */
	switch (state_of(pid, start_time)) {
	case ENDED:
	case UNKNOWN:
		return true;
	case RUNNING:
		break;
	}
	return became_another_program(pid, start_time);
}

/* The owner thread lives as long as its process; the first thread can end before. So while the owner
 * thread lives, only it shows what happens to the process. */
bool witness_dying(uint32_t pid, uint64_t start_time, uint32_t owner)
{
	char path[48];
	struct stat_line line;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", pid, owner & FUTEX_TID_MASK);
	if (!(owner & FUTEX_OWNER_DIED) && read_stat(path, &line) == 1)
		return is_exiting(&line) || line.state == 'Z' || line.state == 'X' || was_killed(pid);
	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	if (!pid || read_stat(path, &line) != 1 || (start_time && line.start_time != start_time))
		return false;
	if (line.state == 'Z' || line.state == 'X')
		return line.threads > 1;
	return is_exiting(&line) || was_killed(pid);
}
