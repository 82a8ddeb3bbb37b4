/* gpuslice-probe is what `gpuslice verify` runs in its two containers. It reads commands, one a line, from standard input, or from
 * the first connection to a socket (gpuslice-probe SOCKET), and answers each with lines KEY=VALUE, the last of which is end=STATUS:
 *
 *   inside                        the limiter and its files in this container, the GPUs' device nodes
 *   view                          the GPU's memory by CUDA and by NVML, with 256 MiB allocated
 *   memory KIND CHUNK MOST        allocates KIND (alloc, async, vmm, managed, array) in chunks until it is refused, MOST MiB at most
 *   calibrate                     the iterations of a kernel of a microsecond
 *   work BEGIN SECONDS ITERATIONS keeps the GPU busy, and counts its kernels
 *   hold                          has a context until the next line
 *   bare                          has a context, and not the limiter's file, until the next line
 *   limits COMMAND PROGRAM        how long a command and, from now on, the program may take, in seconds; 60 and 300 before
 *
 * Each command but limits runs in a process of its own, which takes all of its memory with it. The end of the input, or a line, ends
 * it. So does the time, except hold and bare, which last as long as the program. The program ends with its input, and with its time. */
#define _GNU_SOURCE
#include "probe.h"

#include "../../testdata/simdriver/nvml_api.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROGRAM_SECONDS = 300, MOST_SECONDS = 24 * 3600, MOST_WORDS = 4, HELD_MIB = 256 };

static int in;
static unsigned int command_seconds = 60;

void answer(const char *key, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%s=", key);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
	fflush(stdout);
}

void *driver_function(const char *name)
{
	static void *driver;

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW);
	return driver ? dlsym(driver, name) : NULL;
}

/* Calls a function with each mapping of the limiter. */
static void each_limiter(void (*call)(char *from, char *to, const char *mode, const char *path))
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[4352], mode[8], path[4096];
	unsigned long from, to;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %4095s", &from, &to, mode, path) == 4 && strstr(path, "/libvgpu"))
			call((char *)from, (char *)to, mode, path);
	}
	if (f)
		fclose(f);
}

static void show_limiter(char *from, char *to, const char *mode, const char *path)
{
	(void)from, (void)to;
	if (strchr(mode, 'x'))
		answer("limiter", "%s", path);
}

static void inside(void)
{
	DIR *devices = opendir("/dev");
	struct stat st;
	int gpus = 0;

	cuda_load("dlsym"); /* in library mode the driver brings the limiter with it */
	each_limiter(show_limiter);
	answer("limits_bytes", "%lld", stat("/.gpuslice/limits", &st) || !S_ISREG(st.st_mode) ? -1LL : (long long)st.st_size);
	answer("usage_bytes", "%lld", stat("/.gpuslice/usage", &st) || !S_ISREG(st.st_mode) ? -1LL : (long long)st.st_size);
	for (struct dirent *e; devices && (e = readdir(devices));)
		gpus += !strncmp(e->d_name, "nvidia", 6) && e->d_name[6] >= '0' && e->d_name[6] <= '9';
	answer("device_nodes", "%d", gpus);
	if (devices)
		closedir(devices);
}

#define NVML_CALLS(F)                                                       \
	F(nvmlInit_v2, int, (void))                                         \
	F(nvmlDeviceGetHandleByUUID, int, (const char *, nvmlDevice_t *))   \
	F(nvmlDeviceGetMemoryInfo, int, (nvmlDevice_t, nvmlMemory_t *))     \
	F(nvmlSystemGetDriverVersion, int, (char *, unsigned int))

static void nvml_view(const char *uuid)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlMemory_t m = {0, 0, 0};
	nvmlDevice_t device;
	char version[96] = "";
	int r;

	if (!library) {
		answer("nvml_error", "%s", "libnvidia-ml.so.1 can't be loaded");
		return;
	}
#define FIND(name, result, arguments)                                  \
	result(*p_##name) arguments = NULL;                            \
	*(void **)&p_##name = dlsym(library, #name);                   \
	if (!p_##name) {                                               \
		answer("nvml_error", "the driver has no %s", #name);   \
		return;                                                \
	}
	NVML_CALLS(FIND)
#undef FIND
	r = p_nvmlInit_v2();
	if (!r)
		r = p_nvmlDeviceGetHandleByUUID(uuid, &device);
	if (!r)
		r = p_nvmlDeviceGetMemoryInfo(device, &m);
	if (r) {
		answer("nvml_error", "NVML error %d", r);
		return;
	}
	answer("nvml_total_bytes", "%llu", m.total);
	answer("nvml_used_bytes", "%llu", m.used);
	if (!p_nvmlSystemGetDriverVersion(version, sizeof(version)))
		answer("driver", "%s", version);
}

static void view(void)
{
	unsigned char b[16];
	CUuuid uuid;
	char text[48];
	size_t available, total;
	CUdeviceptr p;
	CUdevice device;
	int count;

	cuda_start(0);
	must(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
	must(cu.cuDeviceGetCount(&count), "cuDeviceGetCount");
	must(cu.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
	memcpy(b, uuid.bytes, sizeof(b));
	snprintf(text, sizeof(text), "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4],
		 b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	must(cu.cuMemAlloc_v2(&p, HELD_MIB * MIB), "cuMemAlloc");
	must(cu.cuDeviceTotalMem_v2(&total, device), "cuDeviceTotalMem");
	answer("uuid", "%s", text);
	answer("gpus", "%d", count);
	answer("device_total_bytes", "%zu", total);
	must(cu.cuMemGetInfo_v2(&available, &total), "cuMemGetInfo");
	answer("cuda_total_bytes", "%zu", total);
	answer("cuda_free_bytes", "%zu", available);
	answer("held_bytes", "%zu", HELD_MIB * MIB);
	nvml_view(text);
}

static void hold(void)
{
	cuda_start(0);
	alarm(0);
	answer("pid", "%d", (int)getpid());
	for (;;)
		pause();
}

/* Replaces a mapping of the limiter by a copy, which works as before and is not the limiter's file. */
static void replace(char *from, char *to, const char *mode, const char *path)
{
	size_t size = (size_t)(to - from);
	int protection = (mode[0] == 'r' ? PROT_READ : 0) | (mode[1] == 'w' ? PROT_WRITE : 0) | (mode[2] == 'x' ? PROT_EXEC : 0);
	char *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED || !(protection & PROT_READ)) {
		fprintf(stderr, "gpuslice-probe: can't copy %s\n", path);
		exit(EXIT_CUDA);
	}
	memcpy(copy, from, size);
	if (mprotect(copy, size, protection) || mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, from) == MAP_FAILED) {
		perror("gpuslice-probe: replace the limiter");
		exit(EXIT_CUDA);
	}
}

static void bare(void)
{
	cuda_start(0);
	each_limiter(replace);
	alarm(0);
	answer("pid", "%d", (int)getpid());
	for (;;)
		pause();
}

static void run(char *line)
{
	char *words[MOST_WORDS] = {"", "", "", ""};
	int n = 0;

	for (char *w = strtok(line, " "); w && n < MOST_WORDS; w = strtok(NULL, " "))
		words[n++] = w;
	if (strcmp(words[0], "inside") != 0)
		cuda_load("dlsym");
	if (!strcmp(words[0], "inside") && n == 1)
		inside();
	else if (!strcmp(words[0], "view") && n == 1)
		view();
	else if (!strcmp(words[0], "memory") && n == 4)
		fill(words[1], atol(words[2]), atol(words[3]));
	else if (!strcmp(words[0], "calibrate") && n == 1)
		calibrate();
	else if (!strcmp(words[0], "work") && n == 4)
		work(atof(words[1]), atof(words[2]), atof(words[3]));
	else if (!strcmp(words[0], "hold") && n == 1)
		hold();
	else if (!strcmp(words[0], "bare") && n == 1)
		bare();
	else
		exit(EXIT_USAGE);
}

/* Reads a line into text; false at the end of the input. */
static bool read_line(char *text, size_t size)
{
	size_t n = 0;
	ssize_t r;

	while (n + 1 < size && (r = read(in, text + n, 1)) != 0) {
		if (r < 0)
			return false;
		if (text[n] == '\n') {
			text[n] = 0;
			return true;
		}
		n++;
	}
	return false;
}

static bool limits(const char *line)
{
	unsigned int command, program;

	if (sscanf(line, "limits %u %u", &command, &program) != 2)
		return false;
	if (command < 1 || command > MOST_SECONDS || program < 1 || program > MOST_SECONDS) {
		answer("end", "%d", EXIT_USAGE);
		return true;
	}
	command_seconds = command;
	alarm(program);
	answer("end", "%d", EXIT_FINE);
	return true;
}

static void command(char *line)
{
	char rest[256];
	int gone[2], status = 0;
	pid_t child;

	if (pipe2(gone, O_CLOEXEC) || (child = fork()) < 0) {
		perror("gpuslice-probe");
		exit(EXIT_CUDA);
	}
	if (!child) {
		signal(SIGTERM, SIG_DFL);
		signal(SIGALRM, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(command_seconds);
		close(in);
		run(line);
		exit(EXIT_FINE);
	}
	close(gone[1]);
	struct pollfd of[] = {{.fd = gone[0], .events = POLLIN}, {.fd = in, .events = POLLIN}};
	while (poll(of, 2, -1) < 0)
		;
	if (of[1].revents && !of[0].revents) {
		bool more = read_line(rest, sizeof(rest));

		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		if (!more)
			exit(EXIT_FINE);
	} else {
		waitpid(child, &status, 0);
	}
	close(gone[0]);
	answer("end", "%d", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* The caller is another container of the pod, and can have another user. */
static void wait_for_caller(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(at.sun_path)) {
		fprintf(stderr, "gpuslice-probe: %s is too long for a socket\n", path);
		exit(EXIT_USAGE);
	}
	memcpy(at.sun_path, path, strlen(path));
	unlink(path);
	umask(0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1) ||
	    (in = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0 || dup2(in, STDOUT_FILENO) < 0) {
		perror("gpuslice-probe: socket");
		exit(EXIT_CUDA);
	}
	close(listener);
	unlink(path);
}

static void end(int signal)
{
	(void)signal;
	_exit(EXIT_FINE);
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = end};
	char line[256];

	if (argc > 2) {
		fprintf(stderr, "usage: gpuslice-probe [SOCKET]\n");
		return EXIT_USAGE;
	}
	sigaction(SIGTERM, &act, NULL); /* the first process of a container has no default */
	sigaction(SIGALRM, &act, NULL);
	alarm(PROGRAM_SECONDS);
	if (argc == 2)
		wait_for_caller(argv[1]);
	answer("ready", "1");
	while (read_line(line, sizeof(line)))
		if (!limits(line))
			command(line);
	return EXIT_FINE;
}
