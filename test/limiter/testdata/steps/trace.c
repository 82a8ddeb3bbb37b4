/* The process that steps its victims through, and kills them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../../limiter/src/layout.h"
#include "steps.h"

static struct range { uintptr_t from, to; } code[64], library;
static int code_count;
static const struct vgpu_usage *usage;
static int first_slot;
static bool by_instruction;

enum { WATCHED = 8, THREADS = 16 };
static struct vgpu_slot shadow[WATCHED];
static uint32_t shadow_high;
static uint64_t shadow_charged;

static bool within(const struct range *r, uintptr_t at) { return at >= r->from && at < r->to; }

/* The victim is a fork of this program: its code lies where ours does. */
static void find_code(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	while (fgets(line, sizeof(line), maps)) {
		struct range r;
		char how[8];

		if (sscanf(line, "%lx-%lx %7s", &r.from, &r.to, how) != 3 || how[0] != 'r' || how[2] != 'x' || code_count == 64)
			continue;
		code[code_count++] = r;
		if (strstr(line, "libvgpu.so"))
			library = r;
	}
	fclose(maps);
	if (!library.to) {
		fprintf(stderr, "steps: libvgpu.so is not preloaded\n");
		exit(2);
	}
}

static const uint8_t *instruction(uintptr_t at)
{
	for (int i = 0; i < code_count; i++)
		if (within(&code[i], at) && at + 4 < code[i].to)
			return (const uint8_t *)at;
	return (const uint8_t *)"\0\0\0\0";
}

static bool locked(const uint8_t *i) /* lock, or xchg with memory, which locks by itself */
{
	i += *i == 0xf0 ? 0 : (*i & 0xf0) == 0x40;
	return *i == 0xf0 || ((*i == 0x86 || *i == 0x87) && i[1] < 0xc0);
}

static bool slots_changed(void)
{
	const struct vgpu_slot *now = &usage->slots[first_slot];
	uint32_t high = usage->high_water;
	uint64_t charged = usage->charged[first_slot / 64];

	if (high == shadow_high && charged == shadow_charged && !memcmp((void *)shadow, (void *)now, sizeof(shadow)))
		return false;
	memcpy((void *)shadow, (void *)now, sizeof(shadow));
	shadow_high = high;
	shadow_charged = charged;
	return true;
}

/* What the step from one place to the next was; NULL: none that counts. */
static const char *step_of(uintptr_t from, uintptr_t to)
{
	bool in = within(&library, from);
	const uint8_t *i = instruction(from);

	if (by_instruction)
		return in ? "instruction" : NULL;
	bool changed = slots_changed();
	if (in && locked(i))
		return "locked instruction";
	if (i[0] == 0x0f && i[1] == 0x05)
		return "system call";
	if (changed)
		return "store";
	return in != within(&library, to) ? (in ? "call out" : "return into the library") : NULL;
}

static struct thread { pid_t tid; uintptr_t at; bool outside; } threads[THREADS];

static struct thread *thread_of(pid_t tid)
{
	int i = 0;

	while (i < THREADS - 1 && threads[i].tid && threads[i].tid != tid)
		i++;
	threads[i].tid = tid;
	return &threads[i];
}

static uintptr_t place(pid_t tid)
{
	return (uintptr_t)ptrace(PTRACE_PEEKUSER, tid, offsetof(struct user_regs_struct, rip), 0);
}

static bool known(uintptr_t at)
{
	bool is = false;

	for (int i = 0; i < code_count; i++)
		is |= within(&code[i], at);
	return is;
}

/* The return address of a call out of the library; 0: this is no such call, or it is not known. */
static uintptr_t call_out(pid_t tid, uintptr_t from, uintptr_t to)
{
	const uint8_t *i = instruction(from);

	if (!within(&library, from) || within(&library, to) || *i == 0xc3 || *i == 0xc2 || (*i == 0xf3 && i[1] == 0xc3))
		return 0;
	uintptr_t sp = (uintptr_t)ptrace(PTRACE_PEEKUSER, tid, offsetof(struct user_regs_struct, rsp), 0);
	for (int word = 0; word < 3; word++) { /* on its way to the linker a call has two more on the stack */
		uintptr_t back = (uintptr_t)ptrace(PTRACE_PEEKDATA, tid, sp + 8 * (unsigned)word, 0);
		if (known(back))
			return back;
	}
	return 0;
}

/* Breakpoints are the processor's, one a thread: no code is changed. */
static bool stop_at(pid_t tid, uintptr_t at)
{
	return ptrace(PTRACE_POKEUSER, tid, offsetof(struct user, u_debugreg[0]), at) == 0 &&
	       ptrace(PTRACE_POKEUSER, tid, offsetof(struct user, u_debugreg[7]), at ? 1 : 0) == 0;
}

static void kill_and_reap(pid_t victim)
{
	int status;

	kill(victim, SIGKILL);
	for (pid_t tid; (tid = waitpid(-1, &status, __WALL)) > 0;)
		if (tid == victim && (WIFSIGNALED(status) || WIFEXITED(status)))
			return;
}

/* Runs a victim up to a step (0: to its end) and kills it there. */
static u64 run_to(const struct section *section, u64 stop, const char **what, uintptr_t *where)
{
	u64 steps = 0;
	bool stepping = false;

	if (!strcmp(section->name, "reap") || !strcmp(section->name, "held"))
		corpse(!strcmp(section->name, "held"));
	companion(section->name);
	pid_t victim = fork();
	if (!victim) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		section->run();
		pause();
	}
	memset(threads, 0, sizeof(threads));
	*what = "the end";
	*where = 0;
	for (;;) {
		int status;
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0 || (tid == victim && !WIFSTOPPED(status))) {
			fprintf(stderr, "steps: the victim of %s ended by itself, status %x, step %llu\n", section->name, status, steps);
			exit(1);
		}
		if (!WIFSTOPPED(status))
			continue;
		struct thread *t = thread_of(tid);
		int signal = WSTOPSIG(status);
		uintptr_t at = place(tid);
		if (signal == SIGSTOP && tid == victim)
			ptrace(PTRACE_SETOPTIONS, tid, 0, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
		else if (signal == SIGUSR1) {
			if (stepping)
				break;
			stepping = true;
			slots_changed();
		} else if (stepping && signal == SIGTRAP && status >> 16 == 0 && t->at) {
			if (t->outside)
				stop_at(tid, 0);
			t->outside = false;
			const char *s = step_of(t->at, at);
			if (s) {
				*what = s, *where = t->at;
				if (++steps == stop)
					break;
			}
			uintptr_t back = call_out(tid, t->at, at);
			t->outside = back && stop_at(tid, back);
		}
		t->at = at;
		if (signal == SIGUSR1 || signal == SIGSTOP || signal == SIGTRAP)
			signal = 0;
		ptrace(stepping && !t->outside ? PTRACE_SINGLESTEP : PTRACE_CONT, tid, 0, signal);
	}
	kill_and_reap(victim);
	end_maker();
	if (held >= 0)
		close(held);
	return steps;
}

int kill_at_steps(char **args)
{
	const struct section *section = section_of(args[4]);
	u64 most = strtoull(args[3], NULL, 10);
	const char *what;
	uintptr_t where;
	char line[16];
	int fd = open(args[0], O_RDONLY);

	usage = mmap(NULL, VGPU_USAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	first_slot = atoi(args[1]);
	by_instruction = !strcmp(args[2], "instructions");
	find_code();
	u64 steps = run_to(section, 0, &what, &where);
	end_companion();
	printf("steps %llu\n", steps);
	most = most && most < steps ? most : steps;
	for (u64 i = 0; i < most; i++) {
		u64 stop = most > 1 ? 1 + i * (steps - 1) / (most - 1) : 1;
		u64 got = run_to(section, stop, &what, &where);
		printf("killed at %llu: %s at %lx%s", got, what, within(&library, where) ? where - library.from : where,
		       within(&library, where) ? " of the library" : "");
		printf(beside ? " beside %d\n" : "\n", (int)beside);
		if (beside) {
			if (!fgets(line, sizeof(line), stdin))
				return 1;
			end_companion();
			printf("ended\n");
		}
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	printf("done\n");
	return 0;
}
