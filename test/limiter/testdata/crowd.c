/* Many processes of one container at once: crowd <count> <bytes>. Each of so many
 * children joins, makes a context and allocates. Commands come on standard input:
 *   count       prints how many children got each result; 0: the child has joined
 *   kill N      kills N of those that joined, by SIGKILL
 *   again       the refused ones try again
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 2048 };
static struct member { pid_t pid; int commands, results, result; } members[MOST];

static void *driver;
#define CALL(name, ...) ({ int (*f_)() = (int (*)())dlsym(driver, #name); f_ ? f_(__VA_ARGS__) : -1; })

static int join_in(size_t bytes)
{
	unsigned long long p;
	void *context;
	int r = CALL(cuInit, 0);

	r = r ? r : CALL(cuDevicePrimaryCtxRetain, &context, 0);
	r = r ? r : CALL(cuCtxSetCurrent, context);
	return r ? r : CALL(cuMemAlloc_v2, &p, bytes);
}

static void member(int in, int out, size_t bytes)
{
	char go;

	while (read(in, &go, 1) == 1) {
		int r = join_in(bytes);
		if (write(out, &r, sizeof(r)) != sizeof(r))
			break;
	}
	_exit(0);
}

static void start(struct member *m, size_t bytes)
{
	int to[2], from[2];

	if (pipe(to) || pipe(from) || (m->pid = fork()) < 0) {
		perror("crowd");
		exit(1);
	}
	if (!m->pid) {
		for (struct member *other = members; other < m; other++)
			close(other->commands), close(other->results); /* so that the end of this program ends them all */
		close(to[1]), close(from[0]);
		freopen("/dev/null", "w", stderr);
		member(to[0], from[1], bytes);
	}
	close(to[0]), close(from[1]);
	m->commands = to[1], m->results = from[0], m->result = -1;
}

static void ask_all(int count) /* those that have not joined */
{
	for (int i = 0; i < count; i++)
		if (members[i].result && write(members[i].commands, "g", 1) != 1)
			exit(1);
	for (int i = 0; i < count; i++)
		if (members[i].result && read(members[i].results, &members[i].result, sizeof(int)) != sizeof(int))
			exit(1);
}

static void print_results(int count)
{
	int results[1000] = { 0 };

	for (int i = 0; i < count; i++)
		if (members[i].pid)
			results[members[i].result % 1000]++;
	for (int r = 0; r < 1000; r++)
		if (results[r])
			printf("%s%d: %d", r ? ", " : "", r, results[r]);
	printf("\n");
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 0, number;
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || !count || count > MOST)
		return 2;
	for (int i = 0; i < count; i++)
		start(&members[i], strtoull(argv[2], NULL, 10));
	ask_all(count);
	for (print_results(count); fgets(line, sizeof(line), stdin); print_results(count)) {
		number = sscanf(line, "kill %d", &number) == 1 ? number : 0;
		for (int i = 0; i < count && number; i++) {
			if (!members[i].pid || members[i].result)
				continue;
			kill(members[i].pid, SIGKILL);
			waitpid(members[i].pid, NULL, 0);
			members[i].pid = 0, number--;
		}
		if (!strncmp(line, "again", 5))
			ask_all(count);
	}
	return 0;
}
