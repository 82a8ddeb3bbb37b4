/* Which of NVML's figures of processes there are, and how late they come. */
#include "probe.h"

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1024, NOT_THERE = -1 };
enum pid_kind { NO_PID, OWN_PID, OTHER_PID };

static void *library;
static nvmlDevice_t device;

static void *function(const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

void nvml_begin(void)
{
	library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlReturn_t (*init)(void) = function("nvmlInit_v2");
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) = function("nvmlDeviceGetHandleByIndex_v2");

	if (!init || !by_index || init() || by_index(0, &device)) {
		fprintf(stderr, "probe: no NVML\n");
		exit(EXIT_DRIVER);
	}
}

void nvml_versions(void)
{
	nvmlReturn_t (*driver)(char *, unsigned) = function("nvmlSystemGetDriverVersion");
	nvmlReturn_t (*cuda)(int *) = function("nvmlSystemGetCudaDriverVersion_v2");
	char text[80];
	int number;

	if (driver && !driver(text, sizeof(text)))
		answer("context.driver", "%s", text);
	if (cuda && !cuda(&number))
		answer("context.cuda", "%d.%d", number / 1000, number % 1000 / 10);
}

static nvmlMemory_v2_t memory(void)
{
	nvmlReturn_t (*get)(nvmlDevice_t, nvmlMemory_v2_t *) = function("nvmlDeviceGetMemoryInfo_v2");
	nvmlReturn_t (*get_v1)(nvmlDevice_t, nvmlMemory_t *) = function("nvmlDeviceGetMemoryInfo");
	nvmlMemory_v2_t m = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)};
	nvmlMemory_t old;

	if (get && !get(device, &m))
		return m;
	if (get_v1 && !get_v1(device, &old))
		m.used = old.used;
	return m;
}

double nvml_used_mib(void)
{
	return (double)memory().used / (double)MIB;
}

double nvml_reserved_mib(void)
{
	return (double)memory().reserved / (double)MIB;
}

static const char *name_of(int r)
{
	static const struct {
		nvmlReturn_t r;
		const char *name;
	} names[] = {
#define NAME(number, name, text) {number, #name},
		NVML_RESULTS(NAME)
#undef NAME
	};

	if (r == NOT_THERE)
		return "absent";
	for (int i = 0; i < COUNT(names); i++) {
		if ((int)names[i].r == r)
			return names[i].name;
	}
	return "another error";
}

/* Lists are of version 3; those of version 2 have the same layout. */
static int list(const char *name, nvmlProcessInfo_t *all, unsigned *count)
{
	nvmlReturn_t (*get)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) = function(name);

	*count = ROOM;
	return get ? (int)get(device, count, all) : NOT_THERE;
}

double nvml_process_mib(pid_t pid)
{
	static const char *const names[] = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"};
	static nvmlProcessInfo_t all[ROOM];
	unsigned count;

	for (int n = 0; n < COUNT(names); n++) {
		if (list(names[n], all, &count))
			continue;
		for (unsigned i = 0; i < count; i++) {
			if ((pid_t)all[i].pid == pid && (long long)all[i].usedGpuMemory != -1)
				return (double)all[i].usedGpuMemory / (double)MIB;
		}
	}
	return -1;
}

static enum pid_kind listed(pid_t pid)
{
	static nvmlProcessInfo_t all[ROOM];
	unsigned count;

	if (list("nvmlDeviceGetComputeRunningProcesses_v3", all, &count) || !count)
		return NO_PID;
	for (unsigned i = 0; i < count; i++) {
		if ((pid_t)all[i].pid == pid)
			return OWN_PID;
	}
	return OTHER_PID;
}

/* One look at what processes use, by either call. */
struct look {
	int result;
	enum pid_kind kind;
	unsigned percent;
	nvmlU64 stamp;
};

static void see(struct look *l, pid_t pid, unsigned of, unsigned percent, nvmlU64 stamp)
{
	if (l->kind == OWN_PID && (pid_t)of != pid)
		return;
	l->kind = (pid_t)of == pid ? OWN_PID : OTHER_PID;
	l->percent = percent;
	l->stamp = stamp;
}

static struct look look_at_samples(pid_t pid, nvmlU64 since)
{
	nvmlReturn_t (*get)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, nvmlU64) =
		function("nvmlDeviceGetProcessUtilization");
	static nvmlProcessUtilizationSample_t all[ROOM];
	struct look l = {.result = NOT_THERE};
	unsigned count = ROOM;

	if (!get)
		return l;
	l.result = (int)get(device, all, &count, since);
	for (unsigned i = 0; !l.result && i < count; i++)
		see(&l, pid, all[i].pid, all[i].smUtil, all[i].timeStamp);
	return l;
}

static struct look look_at_info(pid_t pid, nvmlU64 since)
{
	nvmlReturn_t (*get)(nvmlDevice_t, nvmlProcessesUtilizationInfo_v1_t *) = function("nvmlDeviceGetProcessesUtilizationInfo");
	static nvmlProcessUtilizationInfo_v1_t all[ROOM];
	nvmlProcessesUtilizationInfo_v1_t info = {.version = NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1),
		.processSamplesCount = ROOM, .lastSeenTimeStamp = since, .procUtilArray = all};
	struct look l = {.result = NOT_THERE};

	if (!get)
		return l;
	l.result = (int)get(device, &info);
	for (unsigned i = 0; !l.result && i < info.processSamplesCount; i++)
		see(&l, pid, all[i].pid, all[i].smUtil, all[i].timeStamp);
	return l;
}

static nvmlU64 now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (nvmlU64)t.tv_sec * 1000000 + (nvmlU64)t.tv_nsec / 1000;
}

static struct other busy(double seconds)
{
	char text[32];
	char *const arguments[] = {"pace", "500", "64", text, "256", "go", NULL};

	snprintf(text, sizeof(text), "%.2f", seconds);

	struct other o = start("pace", arguments);

	receive(&o, "ready");
	return o;
}

/* What one of the two calls reports of a process that is busy. */
struct seen {
	int result;
	double delay_ms, percent, period_ms;
};

static struct seen watch(pid_t pid, struct look (*look)(pid_t, nvmlU64), nvmlU64 start)
{
	static double periods[ROOM], percents[ROOM];
	struct seen s = {.result = NOT_THERE, .delay_ms = -1};
	nvmlU64 stamp = start;
	int count = 0;

	while (now_us() < start + (nvmlU64)(1.5e6 * measured_seconds)) {
		struct look l = look(pid, stamp);

		if (!count) /* later there may be nothing new for a moment */
			s.result = l.result;
		if (!l.result && l.kind && l.percent && s.delay_ms < 0)
			s.delay_ms = (double)(now_us() - start) / 1e3;
		if (!l.result && l.kind && l.stamp > stamp && count < ROOM) {
			periods[count] = (double)(l.stamp - stamp) / 1e3;
			percents[count++] = l.percent;
			stamp = l.stamp;
		}
		usleep(5000);
	}
	s.percent = median(percents, count);
	s.period_ms = median(periods, count);
	return s;
}

static void report(const char *call, const struct seen *s)
{
	char key[64];

	snprintf(key, sizeof(key), "nvml.%s", call);
	answer(key, "%s", name_of(s->result));
	snprintf(key, sizeof(key), "nvml.%s_percent", call);
	answer(key, "%.0f", s->percent);
	snprintf(key, sizeof(key), "nvml.%s_delay_ms", call);
	answer(key, "%.0f", s->delay_ms);
	snprintf(key, sizeof(key), "nvml.%s_period_ms", call);
	answer(key, "%.0f", s->period_ms);
}

static bool reports(const struct seen *s)
{
	return !s->result && s->percent > 0;
}

/* In the words of the simulated driver's process_utilization. */
static const char *kind(const struct seen *samples, const struct seen *info)
{
	if (reports(samples))
		return "detailed";
	if (reports(info))
		return "info";
	if (!samples->result && samples->period_ms > 0)
		return "zero";
	return samples->result && samples->result != NVML_ERROR_NOT_FOUND ? "missing" : "none";
}

/* What is reported of two that have half of the GPU each. */
static void ask_two(void)
{
	struct other a = busy(measured_seconds), b = busy(measured_seconds);
	struct look of_a, of_b, (*look)(pid_t, nvmlU64) = look_at_samples;
	nvmlU64 begun = now_us();

	send_line(&a, "go");
	send_line(&b, "go");
	receive(&a, "launches");
	of_a = look(a.pid, begun);
	if (of_a.result)
		of_a = (look = look_at_info)(a.pid, begun);
	of_b = look(b.pid, begun);
	finish(&a);
	finish(&b);
	answer("nvml.two_percent", "%u", of_a.percent);
	answer("nvml.two_sum_percent", "%u", of_a.percent + of_b.percent);
}

void ask_nvml(void)
{
	static nvmlProcessInfo_t all[ROOM];
	struct seen samples, info;
	nvmlU64 begun;
	unsigned count;
	double held;
	struct other o;

	nvml_begin();
	held = nvml_used_mib();
	o = busy(4 * measured_seconds);
	answer("nvml.compute_v3", "%s", name_of(list("nvmlDeviceGetComputeRunningProcesses_v3", all, &count)));
	answer("nvml.compute_v2", "%s", name_of(list("nvmlDeviceGetComputeRunningProcesses_v2", all, &count)));
	answer("nvml.graphics_v3", "%s", name_of(list("nvmlDeviceGetGraphicsRunningProcesses_v3", all, &count)));
	answer("nvml.mps_v3", "%s", name_of(list("nvmlDeviceGetMPSComputeRunningProcesses_v3", all, &count)));
	answer("nvml.memory_error_mib", "%.0f", nvml_process_mib(o.pid) - (nvml_used_mib() - held));
	send_line(&o, "go");
	begun = now_us();
	samples = watch(o.pid, look_at_samples, begun);
	begun = now_us();
	info = watch(o.pid, look_at_info, begun);
	finish(&o);
	report("samples", &samples);
	report("info", &info);
	answer("nvml.process_utilization", "%s", kind(&samples, &info));
	ask_two();
}

static const char *word(enum pid_kind w)
{
	return w == OWN_PID ? "own" : w == OTHER_PID ? "host" : "none";
}

/* The driver finds no process where /proc is of another namespace: cuInit fails. 0: done. */
static int mount_proc(void)
{
	return unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL);
}

/* The PIDs that a process in a namespace of its own sees. */
void ask_inside(void)
{
	enum pid_kind in_list, in_samples;
	struct other o;
	pid_t child;
	int status;

	if (unshare(CLONE_NEWPID)) {
		answer("nvml.pids", "not tried (it needs root)");
		return;
	}
	child = fork();
	if (!child && mount_proc()) {
		answer("nvml.pids", "not tried (it can't mount /proc)");
		exit(0);
	}
	if (child) {
		waitpid(child, &status, 0);
		exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_CUDA);
	}
	nvml_begin();
	o = busy(30);
	in_list = listed(o.pid);
	send_line(&o, "go");
	receive(&o, "second");
	in_samples = look_at_samples(o.pid, 0).kind;
	if (!in_samples)
		in_samples = look_at_info(o.pid, 0).kind;
	kill(o.pid, SIGTERM);
	finish(&o);
	answer("nvml.inside_list", "%s", word(in_list));
	answer("nvml.inside_utilization", "%s", word(in_samples));
	answer("nvml.pids", "%s", in_list == OWN_PID && in_samples == OTHER_PID ? "mixed" : word(in_list));
}
