/* simctl: makes, shows and disturbs the simulated GPUs. */
#define _GNU_SOURCE
#include "simctl.h"
#include "cuda_api.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_WORDS 64

struct options {
	const char *state, *config, *driver, *lib_dir, *dev_dir, *out, *format;
	const char *gpus[MAX_GPUS];
	const char *words[MAX_WORDS]; /* the command and its arguments */
	unsigned gpu_count, word_count;
	bool force;
};

static const char usage_text[] =
	"usage: simctl [--state FILE] COMMAND\n"
	"  init [--driver BRANCH] [--config FILE | --gpu PROFILE[:key=value,…] …] [--force]   make the state file\n"
	"  status [-o table|json]                     GPUs, groups, clients; returns the memory of dead clients\n"
	"  reset-peak                                 forget all peaks, and groups without clients\n"
	"  mig GPU enable|disable                    MIG mode; not while something runs on the GPU\n"
	"  mig GPU create PROFILE[:START] …          MIG devices, at a memory slice or where most room is left\n"
	"  mig GPU destroy UUID|INDEX|all            not while something runs on it\n"
	"  mig GPU list|profiles                     what there is, what there could be\n"
	"  xid GPU|MIG CODE                          an XID event on a GPU, or on a MIG device\n"
	"  grow PID MIB [GPU]                        a library of the process takes so much more, which no call shows\n"
	"  lose GPU [removed]                        the GPU falls off the bus (with XID 79), or is removed\n"
	"  restore GPU                               it is back; what had it open does not get it back\n"
	"  fail SYMBOL N [ERROR]                      the next N calls of SYMBOL fail (default OUT_OF_MEMORY)\n"
	"  unfail [SYMBOL]                            no more of that\n"
	"  set GPU key=value … | set driver key=value …\n"
	"  cdi --lib-dir DIR --dev-dir DIR [--out FILE]   the CDI spec of the GPUs\n"
	"  devnodes --dev-dir DIR                     device nodes by mknod (root)\n"
	"  missed [-o table|json]                     calls of functions that exist by name only, by process\n"
	"  missed clear                               forget them; not while a program runs\n"
	"  symbols                                    the functions of libcuda.so.1\n"
	"FILE is $SIMGPU_STATE or " STATE_DEFAULT_PATH " if not given. GPU is an index or a UUID, MIG a UUID or GPU:INDEX.\n"
	"Exit status: 0 fine, 1 failed, 2 usage.\n";

bool complain(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "simctl: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return false;
}

int open_state(struct view *v, const char *path)
{
	int err = state_open(v, path);

	if (err == EPROTO)
		complain("open %s: not a state file of this version; make it with simctl init --force", path);
	else if (err)
		complain("open %s: %s; make it with simctl init", path, strerror(err));
	return err ? 1 : 0;
}

static bool same_identity(const struct gpu *a, const struct gpu *b)
{
	return a->minor == b->minor || !memcmp(a->uuid, b->uuid, 16) ||
	       (a->pci_domain == b->pci_domain && a->pci_bus == b->pci_bus && a->pci_device == b->pci_device);
}

static bool check_nvlinks(const struct state *s, unsigned gpu)
{
	uint64_t links = s->gpus[gpu].nvswitch_links;

	for (unsigned i = 0; i < MAX_GPUS; i++) {
		if (s->gpus[gpu].nvlinks[i] && (i == gpu || i >= s->gpu_count))
			return complain("GPU %u: nvlink to GPU %u, which is itself or not there", gpu, i);
		links += nvlinks_between(s, gpu, i);
	}
	return links <= MAX_NVLINKS || complain("GPU %u: more than %u NVLinks", gpu, MAX_NVLINKS);
}

static bool check_gpus(const struct state *s)
{
	for (unsigned i = 0; i < s->gpu_count; i++) {
		if (s->gpus[i].reserved_bytes >= s->gpus[i].memory_bytes)
			return complain("GPU %u: reserved memory is all of its memory", i);
		if (s->gpus[i].minor >= NVIDIACTL_MINOR)
			return complain("GPU %u: minor %u is not below %u", i, s->gpus[i].minor, NVIDIACTL_MINOR);
		if (!mig_memory_fits(&s->gpus[i]))
			return complain("GPU %u: its MIG devices have more memory than it has", i);
		if (!check_nvlinks(s, i))
			return false;
		for (unsigned j = 0; j < i; j++) {
			if (same_identity(&s->gpus[i], &s->gpus[j]))
				return complain("GPUs %u and %u have the same uuid, minor or pci address", j, i);
		}
	}
	return true;
}

static bool fill_state(struct state *s, const struct options *o)
{
	s->layout = STATE_LAYOUT;
	s->size = sizeof(*s);
	if (!driver_set(s, "branch", o->driver ? o->driver : "570"))
		return false;
	if (o->config && !config_read(s, o->config))
		return false;
	for (unsigned i = 0; i < o->gpu_count; i++) {
		if (!gpu_from_text(s, o->gpus[i]))
			return false;
	}
	if (!s->gpu_count && !o->config && !gpu_from_text(s, "H200"))
		return false;
	if (!check_gpus(s))
		return false;
	engine_locks_init(s);
	s->magic = STATE_MAGIC;
	return true;
}

static bool write_state(const struct options *o, const char *path)
{
	struct state *s;
	bool ok;
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	if (fd < 0)
		return complain("create %s: %s", path, strerror(errno));
	ok = !fchmod(fd, 0666) && !ftruncate(fd, sizeof(*s));
	s = ok ? mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
	if (s == MAP_FAILED) {
		complain("make %s: %s", path, strerror(errno));
		close(fd);
		return false;
	}
	ok = fill_state(s, o);
	munmap(s, sizeof(*s));
	close(fd);
	return ok;
}

/* Made beside its place and linked in, so that no one ever opens half a state. */
static int command_init(const struct options *o)
{
	char temporary[PATH_MAX];
	int err;

	if (o->config && o->gpu_count)
		return 2 * !complain("init takes --config or --gpu, not both");
	if (snprintf(temporary, sizeof(temporary), "%s.%d.tmp", o->state, (int)getpid()) >= (int)sizeof(temporary))
		return !complain("%s: name too long", o->state);
	if (!write_state(o, temporary)) {
		unlink(temporary);
		return 1;
	}
	err = o->force ? rename(temporary, o->state) : link(temporary, o->state);
	err = err ? errno : 0;
	unlink(temporary);
	if (err == EEXIST)
		return !complain("%s exists; --force replaces it (running clients keep the old one)", o->state);
	return err ? !complain("make %s: %s", o->state, strerror(err)) : 0;
}

static int find_gpu(const struct state *s, const char *text)
{
	char uuid[UUID_TEXT];
	char *end;
	unsigned long index = strtoul(text, &end, 10);

	if (end != text && !*end && index < s->gpu_count)
		return (int)index;
	for (unsigned i = 0; i < s->gpu_count; i++) {
		uuid_format(s->gpus[i].uuid, uuid);
		if (!strcasecmp(uuid, text))
			return (int)i;
	}
	complain("no such GPU: %s", text);
	return -1;
}

static void reset_gpu_peak(struct gpu *c)
{
	c->peak_used = gpu_used(c);
	for (unsigned i = 0; i < MAX_INSTANCES; i++)
		c->instances[i].peak_used = instance_used(&c->instances[i]);
}

static int command_reset_peak(struct view *v)
{
	struct state *s = v->s;

	state_reap(v);
	if (state_lock(v))
		return !complain("lock the state: failed");
	for (unsigned c = 0; c < s->gpu_count; c++)
		reset_gpu_peak(&s->gpus[c]);
	for (unsigned g = 0; g < MAX_GROUPS; g++) {
		struct group *group = &s->groups[g];

		for (unsigned c = 0; c < s->gpu_count; c++) {
			struct group_gpu *gc = &group->gpus[c];

			memcpy(gc->peak, gc->used, sizeof(gc->peak));
			gc->peak_total = gc->used[CHARGE_CONTEXT] + gc->used[CHARGE_DATA];
		}
		if (!group->clients)
			group->id = 0;
	}
	state_unlock(v);
	return 0;
}

/* An event of a GPU, or of a MIG device of it (slot not 0); wakes all waiting processes. Lock held. */
static void post_event(struct state *s, int gpu, unsigned slot, uint64_t xid)
{
	struct event *e = &s->events[(s->next_event + 1) % MAX_EVENTS];

	e->gpu = (uint32_t)gpu;
	e->instance = slot ? s->gpus[gpu].instances[slot - 1].id + 1 : 0;
	e->data = xid;
	e->sequence = ++s->next_event;
}

static void wake_waiters(struct state *s)
{
	atomic_fetch_add(&s->event_seq, 1);
	syscall(SYS_futex, &s->event_seq, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int command_presence(struct view *v, const char *gpu_text, enum presence presence)
{
	int gpu = find_gpu(v->s, gpu_text);
	struct gpu *c;
	bool change;

	if (gpu < 0)
		return 1;
	if (state_lock(v))
		return !complain("lock the state: failed");
	c = &v->s->gpus[gpu];
	change = (atomic_load(&c->presence) == GPU_PRESENT) != (presence == GPU_PRESENT);
	if (change) {
		atomic_store(&c->presence, presence);
		atomic_fetch_add(&c->epoch, 1);
		if (presence == GPU_LOST)
			post_event(v->s, gpu, 0, 79);
	}
	state_unlock(v);
	wake_waiters(v->s);
	if (!change)
		return !complain("GPU %d is %s already", gpu, presence == GPU_PRESENT ? "there" : "lost");
	return 0;
}

static int command_lose(struct view *v, const char *gpu_text, const char *how)
{
	if (how && strcmp(how, "removed") != 0)
		return 2 * !complain("lose GPU, or lose GPU removed: %s", how);
	return command_presence(v, gpu_text, how ? GPU_REMOVED : GPU_LOST);
}

/* By its PID on the host. */
static int find_client(struct view *v, const char *pid_text)
{
	unsigned pid = (unsigned)strtoul(pid_text, NULL, 10);

	for (unsigned i = 0; i < v->s->client_limit && i < MAX_CLIENTS; i++) {
		if (atomic_load(&v->s->clients[i].taken) && client_lives(v, i) && client_pid(v, i, true) == pid)
			return (int)i;
	}
	return -1;
}

static int command_grow(struct view *v, const char *pid_text, const char *mib_text, const char *gpu_text)
{
	int slot = find_client(v, pid_text), gpu = gpu_text ? find_gpu(v->s, gpu_text) : 0, err;
	char *end;
	uint64_t mib = strtoull(mib_text, &end, 10);

	if (gpu < 0)
		return 1;
	if (slot < 0)
		return !complain("no process with a GPU has this PID: %s", pid_text);
	if (!mib || *end || mib > UINT32_MAX)
		return 2 * !complain("not a number of MiB: %s", mib_text);
	err = client_grow(v, (unsigned)slot, (unsigned)gpu, mib << 20);
	return err ? !complain("grow: %s", strerror(err)) : 0;
}

static int command_xid(struct view *v, const char *gpu_text, const char *code_text)
{
	unsigned slot = 0, parent;
	bool mig = find_instance(v->s, gpu_text, &parent, &slot);
	int gpu = mig ? (int)parent : find_gpu(v->s, gpu_text);
	char *end;
	unsigned long code = strtoul(code_text, &end, 10);

	if (gpu < 0)
		return 1;
	if (end == code_text || *end || !code || code > 9999)
		return 2 * !complain("not an XID: %s", code_text);
	if (state_lock(v))
		return !complain("lock the state: failed");
	post_event(v->s, gpu, slot, code);
	state_unlock(v);
	wake_waiters(v->s);
	return 0;
}

static int command_set(struct view *v, const struct options *o)
{
	bool driver = !strcmp(o->words[1], "driver");
	int gpu = driver ? 0 : find_gpu(v->s, o->words[1]);
	bool ok = gpu >= 0;

	if (!ok || state_lock(v))
		return 1;
	for (unsigned i = 2; ok && i < o->word_count; i++) {
		char *key = strdup(o->words[i]);
		char *value = strchr(key, '=');

		if (value)
			*value++ = 0;
		if (!value)
			ok = complain("want key=value: %s", key);
		else
			ok = driver ? driver_set(v->s, key, value) : gpu_set(&v->s->gpus[gpu], key, value);
		free(key);
	}
	state_unlock(v);
	return !ok;
}

static int list_symbols(void)
{
#define SYM(name, base, version, kind) printf("%s %s %s %s\n", #name, #base, #version, #kind);
#include "symbols.def"
#undef SYM
#define SYM(name, base, version, kind) printf("%s %s %s %s absent\n", #name, #base, #version, #kind);
#include "absent.def"
#undef SYM
	return 0;
}

/* An option with a value: --name VALUE or --name=VALUE. */
static const char *option_value(char **argv, int *i, const char *name)
{
	size_t length = strlen(name);

	if (strncmp(argv[*i], name, length) != 0)
		return NULL;
	if (argv[*i][length] == '=')
		return argv[*i] + length + 1;
	return argv[*i][length] || !argv[*i + 1] ? NULL : argv[++*i];
}

static bool parse_option(struct options *o, char **argv, int *i)
{
	const char *value;
	const struct {
		const char *name;
		const char **to;
	} known[] = {{"--state", &o->state},     {"--config", &o->config}, {"--driver", &o->driver}, {"--lib-dir", &o->lib_dir},
		     {"--dev-dir", &o->dev_dir}, {"--out", &o->out},	   {"-o", &o->format}};

	for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
		value = option_value(argv, i, known[k].name);
		if (value) {
			*known[k].to = value;
			return true;
		}
	}
	value = option_value(argv, i, "--gpu");
	if (value) {
		if (o->gpu_count == MAX_GPUS)
			return complain("more than %u GPUs", MAX_GPUS);
		o->gpus[o->gpu_count++] = value;
		return true;
	}
	if (!strcmp(argv[*i], "--force"))
		return o->force = true;
	return complain("unknown option, or no value for it: %s", argv[*i]);
}

static bool parse(struct options *o, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] == '-') {
			if (!parse_option(o, argv, &i))
				return false;
		} else if (o->word_count == MAX_WORDS) {
			return complain("too many arguments");
		} else {
			o->words[o->word_count++] = argv[i];
		}
	}
	return true;
}

static int run(const struct options *o, struct view *v)
{
	const char *command = o->words[0];
	unsigned n = o->word_count - 1;

	if (!strcmp(command, "status") && !n) {
		if (o->format && strcmp(o->format, "json") != 0 && strcmp(o->format, "table") != 0)
			return 2 * !complain("-o table or -o json");
		return show_status(v, o->state, o->format && !strcmp(o->format, "json"));
	}
	if (!strcmp(command, "missed") && !n)
		return show_missed(v, o->format && !strcmp(o->format, "json"));
	if (!strcmp(command, "missed") && n == 1 && !strcmp(o->words[1], "clear"))
		return clear_missed(v);
	if (!strcmp(command, "reset-peak") && !n)
		return command_reset_peak(v);
	if (!strcmp(command, "xid") && n == 2)
		return command_xid(v, o->words[1], o->words[2]);
	if (!strcmp(command, "grow") && (n == 2 || n == 3))
		return command_grow(v, o->words[1], o->words[2], n == 3 ? o->words[3] : NULL);
	if (!strcmp(command, "lose") && (n == 1 || n == 2))
		return command_lose(v, o->words[1], n == 2 ? o->words[2] : NULL);
	if (!strcmp(command, "restore") && n == 1)
		return command_presence(v, o->words[1], GPU_PRESENT);
	if (!strcmp(command, "fail") && (n == 2 || n == 3))
		return fail_symbol(v, o->words[1], o->words[2], n == 3 ? o->words[3] : NULL);
	if (!strcmp(command, "unfail") && n <= 1)
		return unfail_symbol(v, n ? o->words[1] : NULL);
	if (!strcmp(command, "set") && n >= 2)
		return command_set(v, o);
	if (!strcmp(command, "mig") && n >= 2) {
		int gpu = find_gpu(v->s, o->words[1]);

		return gpu < 0 ? 1 : command_mig(v, (unsigned)gpu, o->words + 2, n - 1);
	}
	if (!strcmp(command, "cdi") && !n) {
		struct cdi_options c = {o->state, o->lib_dir, o->dev_dir, o->out};

		return write_cdi(v, &c);
	}
	if (!strcmp(command, "devnodes") && !n)
		return make_devnodes(v, o->dev_dir);
	fputs(usage_text, stderr);
	return 2;
}

int main(int argc, char **argv)
{
	struct options o = {.state = getenv("SIMGPU_STATE")};
	struct view v;
	int status;

	if (!o.state || !*o.state)
		o.state = STATE_DEFAULT_PATH;
	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")))
		return fputs(usage_text, stdout) < 0;
	if (!parse(&o, argc, argv) || !o.word_count) {
		fputs(usage_text, stderr);
		return 2;
	}
	if (!strcmp(o.words[0], "init") && o.word_count == 1)
		return command_init(&o);
	if (!strcmp(o.words[0], "symbols"))
		return list_symbols();
	status = open_state(&v, o.state);
	if (status)
		return status;
	status = run(&o, &v);
	state_close(&v);
	return status;
}
