/* Kills a process at every step of what it does, beside others that live on.
 *
 *   steps survive
 *       allocates and launches a little all the time, and executes commands from its
 *       standard input: p frees everything and waits, f BYTES allocates so much,
 *       l launches, g continues. The answer to each is its result, and the longest
 *       time that a call took since the last answer, in us.
 *
 *   steps kill <usage file> <first> <instructions|stores> <most> <section>
 *       forks a victim that runs the section, steps it through and counts its steps
 *       ("steps N"), then kills a fresh victim after step 1, one after step 2, ... (at
 *       most so many, evenly). After each it prints "killed at STEP: where" and waits for
 *       a line. The slots from the first on are watched for what the victim writes.
 *
 * A step is an instruction of the library; or, with "stores", one after which another process
 * can see a difference: a locked instruction, a system call, a change of a watched slot,
 * or that the library is entered or left (the driver has done something). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../limiter/src/layout.h"
#include "../../../testdata/workloads/descriptor.h"

typedef unsigned long long u64;
enum { MIB = 1 << 20 };

static void *driver;
static struct known_name { const char *name; void *function; } names[64];

/* Looked up once, by set_up() all of them: only the join is stepped through look-ups. */
static void *find(const char *name)
{
	struct known_name *n = names;

	while (n->name && strcmp(n->name, name))
		n++;
	if (!n->name) {
		n->function = dlsym(driver, name);
		n->name = name;
	}
	return n->function;
}

#define CALL(name, ...) ({ int (*f_)() = (int (*)())find(#name); f_ ? f_(__VA_ARGS__) : -1; })
#define MUST(name, ...) must(CALL(name, __VA_ARGS__), #name)

static void must(int r, const char *what)
{
	if (r) {
		fprintf(stderr, "steps: %s: %d\n", what, r);
		exit(1);
	}
}

static void *function;

static void set_up(void)
{
	static const char *const all[] = { "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocManaged", "cuLaunchKernel", "cuCtxSynchronize",
		"cuMemAllocAsync", "cuMemFreeAsync", "cuMemPoolTrimTo", "cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemUnmap",
		"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
		"cuArrayCreate_v2", "cuArrayDestroy", "cuCtxCreate_v2", "cuCtxDestroy_v2", "cuGraphLaunch", "cuDeviceGraphMemTrim" };
	void *context, *module;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		find(all[i]);
	MUST(cuInit, 0);
	MUST(cuDevicePrimaryCtxRetain, &context, 0);
	MUST(cuCtxSetCurrent, context);
	MUST(cuModuleLoadData, &module, ".version 6.3\n.target sm_75\n// sim-duration-us: 200\n.visible .entry k() { ret; }\n");
	MUST(cuModuleGetFunction, &function, module, "k");
}

static int launch(void)
{
	return CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

/* ---- the sections ---- */

static void mark(void) { raise(SIGUSR1); }

static void join_section(void)
{
	void *context;

	mark();
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	mark();
}

static void alloc_section(void)
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)64 * MIB);
	CALL(cuMemFree_v2, p);
	mark();
}

static void managed_section(void) /* which may lie in the host's memory */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAllocManaged, &p, (size_t)64 * MIB, 1u);
	CALL(cuMemFree_v2, p);
	mark();
}

static void refused_section(void) /* by the driver: the reservation is undone */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAllocManaged, &p, (size_t)64 * MIB, 77u);
	mark();
}

static void full_section(void) /* by the limit: the slow path */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)1020 * MIB);
	mark();
}

static void reap_section(void) /* see corpse() */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)700 * MIB);
	mark();
}

static void launch_section(void)
{
	set_up();
	for (int i = 0; i < 4; i++)
		launch();
	CALL(cuCtxSynchronize);
	usleep(20000); /* a new tick: the bucket is refilled, the cost is measured again */
	mark();
	launch();
	launch();
	mark();
}

static void first_launch_section(void)
{
	set_up();
	mark();
	launch();
	mark();
}

static void wait_section(void) /* for its turn */
{
	void *module;

	set_up();
	MUST(cuModuleLoadData, &module, ".version 6.3\n.target sm_75\n// sim-duration-us: 20000\n.visible .entry k() { ret; }\n");
	MUST(cuModuleGetFunction, &function, module, "k");
	launch();
	CALL(cuCtxSynchronize);
	mark();
	launch();
	launch();
	mark();
}

static void pool_section(void)
{
	u64 p = 0;
	void *pool;

	set_up();
	MUST(cuDeviceGetDefaultMemPool, &pool, 0);
	mark();
	CALL(cuMemAllocAsync, &p, (size_t)40 * MIB, NULL);
	CALL(cuMemFreeAsync, p, NULL);
	CALL(cuCtxSynchronize);
	CALL(cuMemPoolTrimTo, pool, (size_t)0);
	mark();
}

static void vmm_section(void)
{
	struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 0, 1, 0 };
	u64 range = 0, handle = 0;

	set_up();
	MUST(cuMemAddressReserve, &range, (size_t)64 * MIB, (size_t)0, 0ull, 0ull);
	mark();
	CALL(cuMemCreate, &handle, (size_t)32 * MIB, &prop, 0ull);
	CALL(cuMemMap, range, (size_t)32 * MIB, (size_t)0, handle, 0ull);
	CALL(cuMemRelease, handle);
	CALL(cuMemUnmap, range, (size_t)32 * MIB);
	mark();
}

static void export_section(void)
{
	struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 1, 1, 0 };
	u64 handle = 0, import = 0;
	int fd = -1;

	set_up();
	mark();
	CALL(cuMemCreate, &handle, (size_t)32 * MIB, &prop, 0ull);
	CALL(cuMemExportToShareableHandle, &fd, handle, 1, 0ull);
	CALL(cuMemRelease, handle);
	CALL(cuMemImportFromShareableHandle, &import, (void *)(long)fd, 1);
	CALL(cuMemRelease, import);
	mark();
}

static int held = -1; /* of memory of a corpse: see corpse() */

static void held_section(void) /* reaps, imports what one of the dead exported, and exports it again */
{
	u64 p = 0, import = 0;
	int fd = -1;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)950 * MIB);
	CALL(cuMemImportFromShareableHandle, &import, (void *)(long)held, 1);
	CALL(cuMemExportToShareableHandle, &fd, import, 1, 0ull);
	CALL(cuMemRelease, import);
	mark();
}

static void array_section(void)
{
	struct { size_t width, height; int format; unsigned channels; } d = { 2048, 2048, 32, 4 };
	void *array = NULL;

	set_up();
	mark();
	CALL(cuArrayCreate_v2, &array, &d);
	CALL(cuArrayDestroy, array);
	mark();
}

static void context_section(void)
{
	void *context = NULL;

	set_up();
	mark();
	CALL(cuCtxCreate_v2, &context, 0u, 0);
	CALL(cuCtxDestroy_v2, context);
	mark();
}

static void graph_section(void)
{
	struct { struct { int type, handles, location, id; void *security; size_t max; char rest[56]; } props; void *access; size_t accesses, size; u64 ptr, spare[8]; }
		a = { .props = { .type = 1, .location = 1 }, .size = 16 * MIB };
	void *graph, *first, *second, *exec;

	set_up();
	MUST(cuGraphCreate, &graph, 0u);
	MUST(cuGraphAddMemAllocNode, &first, graph, NULL, (size_t)0, &a);
	MUST(cuGraphAddMemFreeNode, &second, graph, &first, (size_t)1, a.ptr);
	MUST(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
	mark();
	CALL(cuGraphLaunch, exec, NULL);
	CALL(cuCtxSynchronize);
	CALL(cuDeviceGraphMemTrim, 0);
	mark();
}

static const struct section { const char *name; void (*run)(void); } sections[] = {
	{ "join", join_section }, { "alloc", alloc_section }, { "refused", refused_section }, { "full", full_section },
	{ "reap", reap_section }, { "launch", launch_section }, { "first-launch", first_launch_section },
	{ "wait", wait_section }, { "pool", pool_section }, { "vmm", vmm_section }, { "export", export_section }, { "held", held_section }, { "array", array_section },
	{ "context", context_section }, { "graph", graph_section }, { "managed", managed_section },
};

static const struct section *section_of(const char *name)
{
	for (size_t i = 0; i < sizeof(sections) / sizeof(*sections); i++)
		if (!strcmp(sections[i].name, name))
			return &sections[i];
	fprintf(stderr, "steps: no section %s\n", name);
	exit(2);
}

/* ---- the process that steps ---- */

static struct range { uintptr_t from, to; } code[64], library;
static int code_count;
static const struct vgpu_usage *usage;
static int first_slot;
static bool by_instruction;

enum { WATCHED = 8, THREADS = 16 };
static struct vgpu_slot shadow[WATCHED];
static uint32_t shadow_high;

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

	if (high == shadow_high && !memcmp((void *)shadow, (void *)now, sizeof(shadow)))
		return false;
	memcpy((void *)shadow, (void *)now, sizeof(shadow));
	shadow_high = high;
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

/* One of the dead. Of some of its memory a descriptor is held, which the victim inherits. */
static void corpse(bool exports)
{
	struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 1, 1, 0 };
	int ends[2], fd;
	u64 p;

	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	pid_t child = fork();
	if (!child) {
		set_up();
		MUST(cuMemAlloc_v2, &p, (size_t)600 * MIB);
		if (exports) {
			MUST(cuMemCreate, &p, (size_t)64 * MIB, &prop, 0ull);
			MUST(cuMemExportToShareableHandle, &fd, p, 1, 0ull);
			send_descriptor(ends[1], fd);
		}
		raise(SIGKILL);
	}
	close(ends[1]);
	held = receive_descriptor(ends[0]);
	close(ends[0]);
	waitpid(child, NULL, 0);
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
	if (held >= 0)
		close(held);
	return steps;
}

static int kill_at_steps(char **args)
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
	printf("steps %llu\n", steps);
	most = most && most < steps ? most : steps;
	for (u64 i = 0; i < most; i++) {
		u64 stop = most > 1 ? 1 + i * (steps - 1) / (most - 1) : 1;
		u64 got = run_to(section, stop, &what, &where);
		printf("killed at %llu: %s at %lx%s\n", got, what, within(&library, where) ? where - library.from : where,
		       within(&library, where) ? " of the library" : "");
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	printf("done\n");
	return 0;
}

/* ---- the process that survives ---- */

static u64 longest;

static u64 now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000;
}

#define TIMED(call) ({ u64 b_ = now_us(); int r_ = (call); u64 d_ = now_us() - b_; if (d_ > longest) longest = d_; r_; })

static void answer(const char *what, int r)
{
	printf("%s %d %llu\n", what, r, longest);
	longest = 0;
}

static int survive(void)
{
	u64 kept[4] = { 0 }, p;
	struct pollfd in = { .fd = 0, .events = POLLIN };
	bool going = false;
	char line[64];

	set_up();
	answer("ready", 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	for (unsigned i = (unsigned)getpid();; i = i * 1103515245 + 12345) {
		u64 *one = &kept[i >> 16 & 3];

		if (poll(&in, 1, going ? 0 : -1) > 0) {
			if (!fgets(line, sizeof(line), stdin))
				return 0;
			int r = 0;
			for (int k = 0; line[0] == 'p' && k < 4; k++) {
				r |= kept[k] ? TIMED(CALL(cuMemFree_v2, kept[k])) : 0;
				kept[k] = 0;
			}
			if (line[0] == 'p')
				r |= TIMED(CALL(cuCtxSynchronize));
			if (line[0] == 'f') {
				r = TIMED(CALL(cuMemAlloc_v2, &p, (size_t)strtoull(line + 1, NULL, 10)));
				if (!r)
					CALL(cuMemFree_v2, p);
			}
			if (line[0] == 'l')
				r = TIMED(launch()) || TIMED(CALL(cuCtxSynchronize));
			going = line[0] == 'g';
			line[1] = 0;
			answer(line, r);
			continue;
		}
		if (*one && !TIMED(CALL(cuMemFree_v2, *one)))
			*one = 0;
		else if (TIMED(CALL(cuMemAlloc_v2, one, (size_t)((i >> 20 & 7) + 1) * MIB)))
			*one = 0;
		if ((i >> 24 & 7) == 0)
			TIMED(launch());
		usleep(i >> 18 & 255);
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		must(1, dlerror());
	if (argc == 2 && !strcmp(argv[1], "survive"))
		return survive();
	if (argc == 7 && !strcmp(argv[1], "kill"))
		return kill_at_steps(argv + 2);
	return 2;
}
