/* Asks the driver what the simulated one has to assume, and prints key=value lines: probe QUESTION [SECONDS],
 * with the length of measurements beside other processes (2). ../questions.tsv has what each key means. */
#include "probe.h"

#include "../../../limiter/probe/count.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct more more;
double measured_seconds = 2;
static char directory[4096];

void begin(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	cuda_load("dlsym");
#define LOAD(name) *(void **)&more.name = dlsym(driver, #name);
	MORE_CALLS(LOAD)
#undef LOAD
	cuda_start(0);
}

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

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, int count)
{
	if (!count)
		return 0;
	qsort(values, (size_t)count, sizeof(*values), rising);
	return values[count / 2];
}

double free_bytes(void)
{
	size_t available, total;

	must(cu.cuMemGetInfo_v2(&available, &total), "cuMemGetInfo");
	return (double)available;
}

static double iterations;

CUfunction spin_kernel(long us)
{
	if (iterations <= 0)
		iterations = count_of_us();
	return count_kernel(us);
}

void launch_spin(CUfunction f, long us, unsigned blocks, unsigned threads, CUstream stream)
{
	count_launch(f, blocks, threads, (unsigned long long)((double)us * iterations), stream);
}

struct other start(const char *program, char *const *arguments)
{
	struct other o;
	char path[sizeof(directory) + 16];
	int out[2], in[2];

	snprintf(path, sizeof(path), "%s/%s", directory, program);
	if (pipe2(out, O_CLOEXEC) || pipe2(in, O_CLOEXEC) || (o.pid = fork()) < 0) {
		perror("start");
		exit(EXIT_CUDA);
	}
	if (!o.pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		execv(path, arguments);
		_exit(127);
	}
	close(out[1]);
	close(in[0]);
	o.out = fdopen(out[0], "r");
	o.in = fdopen(in[1], "w");
	return o;
}

double receive(struct other *o, const char *key)
{
	char line[256];
	size_t length = strlen(key);

	while (fgets(line, sizeof(line), o->out)) {
		if (!strncmp(line, key, length) && line[length] == '=')
			return atof(line + length + 1);
	}
	fprintf(stderr, "the other process ended before it reported %s\n", key);
	exit(EXIT_CUDA);
}

void send_line(struct other *o, const char *word)
{
	fprintf(o->in, "%s\n", word);
	fflush(o->in);
}

void finish(struct other *o)
{
	fclose(o->in);
	while (fgetc(o->out) != EOF)
		;
	fclose(o->out);
	waitpid(o->pid, NULL, 0);
}

/* The files that the loader finds for the driver's libraries. */
static void ask_driver(void)
{
	static const char *const libraries[][3] = {{"cuda", "libcuda.so.1", "cuInit"}, {"nvml", "libnvidia-ml.so.1", "nvmlInit_v2"}};

	for (int i = 0; i < COUNT(libraries); i++) {
		void *library = dlopen(libraries[i][1], RTLD_NOW);
		void *function = library ? dlsym(library, libraries[i][2]) : NULL;
		Dl_info info;

		if (function && dladdr(function, &info))
			answer(libraries[i][0], "%s", info.dli_fname);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*ask)(void);
	} questions[] = {
		{"pages", ask_pages}, {"context", ask_context}, {"events", ask_events}, {"slices", ask_slices},
		{"nvml", ask_nvml}, {"inside", ask_inside}, {"streams", ask_streams}, {"export", ask_export},
		{"ipc-owner", ipc_owner}, {"driver", ask_driver},
	};
	char self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[length > 0 ? length : 0] = 0;
	snprintf(directory, sizeof(directory), "%s", dirname(self));
	if (argc == 3 && !strcmp(argv[1], "export-owner"))
		return export_owner(atoi(argv[2]));
	if (argc == 3)
		measured_seconds = seconds_of("seconds", argv[2]);
	for (int i = 0; (argc == 2 || argc == 3) && i < COUNT(questions); i++) {
		if (!strcmp(argv[1], questions[i].name)) {
			questions[i].ask();
			return EXIT_FINE;
		}
	}
	fprintf(stderr, "usage: probe pages|context|events|slices|nvml|inside|streams|export [SECONDS]\n");
	return EXIT_USAGE;
}
