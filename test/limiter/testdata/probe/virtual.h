/* Virtual memory, as part of probe.c. */
/* Virtual memory, sizes in MiB: vreserve SIZE, vcreate GPU SIZE (GPU -2: the host's),
 * vlocation KIND of what is created, vmap RANGE AT SIZE HANDLE, vunmap RANGE AT SIZE,
 * vretain RANGE AT, vrelease HANDLE, vmany COUNT SIZE: created, mapped, released.
 * Descriptors: vexport HANDLE, vimport DESCRIPTOR, vclose DESCRIPTOR; vborn SIZE: one from
 * another process, which ends ($PROBE_EXPORTER: in another container, of that usage file,
 * with the same limits); vunmark DESCRIPTOR: takes the limiter's mark away; vdrop
 * DESCRIPTOR: the same, and closes it, as an import by NVIDIA's driver leaves it; vinherit DESCRIPTOR: exec keeps it. */
struct prop { int type, requested, kind, id; void *more; unsigned char flags[8]; };

static int location = 1;

static int create(unsigned long long *handle, long long where, unsigned long long mib)
{
	struct prop prop = { 1, where != -2, where == -2 ? 2 : location, where == -2 ? 0 : (int)where };

	return CALL("cuMemCreate", handle, (size_t)(mib << 20), &prop, 0ull);
}

/* -1: it could not make it. */
static int born(unsigned long long mib)
{
	unsigned long long made;
	void *ctx = NULL;
	int ends[2], fd = -1;

	fflush(stdout);
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
	pid_t child = fork();
	if (!child) {
		if (getenv("PROBE_EXPORTER"))
			setenv("VGPU_USAGE_PATH", getenv("PROBE_EXPORTER"), 1);
		if (!CALL("cuInit", 0) && !CALL("cuDevicePrimaryCtxRetain", &ctx, 0) && !CALL("cuCtxSetCurrent", ctx) && !create(&made, 0, mib) &&
		    !CALL("cuMemExportToShareableHandle", &fd, made, 1, 0ull))
			send_descriptor(ends[1], fd);
		_exit(0);
	}
	close(ends[1]);
	fd = receive_descriptor(ends[0]);
	waitpid(child, NULL, 0);
	close(ends[0]);
	return fd;
}

/* The simulated driver keeps the description that an import came by, with the limiter's mark. */
static int unmark(int fd)
{
	struct flock marks = { .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 1ll << 62 };

	return fcntl(fd, F_OFD_SETLK, &marks);
}

static int run_virtual(const char *what)
{
	static unsigned long long ranges[16], handles[64];
	static int range_count, handle_count, fds[64], fd_count;
	unsigned long long a, b, size, i = 0;
	int r = 0;

	if (!strcmp(what, "vreserve"))
		r = CALL("cuMemAddressReserve", &ranges[range_count++], (size_t)(number() << 20), (size_t)0, 0ull, 0ull);
	else if (!strcmp(what, "vlocation")) {
		location = (int)number();
		return 1;
	} else if (!strcmp(what, "vcreate")) {
		long long where = strtoll(*args++, NULL, 0);
		r = create(&handles[handle_count], where, number());
		handle_count += r == 0;
	} else if (!strcmp(what, "vrelease"))
		r = CALL("cuMemRelease", handles[number()]);
	else if (!strcmp(what, "vmap")) {
		a = ranges[number()], b = number() << 20, size = number() << 20;
		r = CALL("cuMemMap", a + b, (size_t)size, (size_t)0, handles[number()], 0ull);
	} else if (!strcmp(what, "vunmap")) {
		a = ranges[number()], b = number() << 20, size = number() << 20;
		r = CALL("cuMemUnmap", a + b, (size_t)size);
	} else if (!strcmp(what, "vretain")) {
		a = ranges[number()];
		r = CALL("cuMemRetainAllocationHandle", &handles[handle_count], (void *)(a + (number() << 20)));
		handle_count += r == 0;
	} else if (!strcmp(what, "vexport")) {
		r = CALL("cuMemExportToShareableHandle", &fds[fd_count], handles[number()], 1, 0ull);
		fd_count += r == 0;
	} else if (!strcmp(what, "vimport")) {
		r = CALL("cuMemImportFromShareableHandle", &handles[handle_count], (void *)(long)fds[number()], 1);
		handle_count += r == 0;
	} else if (!strcmp(what, "vfabric")) {
		r = CALL("cuMemImportFromShareableHandle", &handles[handle_count], (void *)"a fabric handle", 8);
	} else if (!strcmp(what, "vborn")) {
		fds[fd_count] = born(number());
		r = fds[fd_count++] < 0;
	} else if (!strcmp(what, "vdrop")) {
		r = unmark(fds[i = number()]) || close(fds[i]);
	} else if (!strcmp(what, "vunmark")) {
		r = unmark(fds[number()]);
	} else if (!strcmp(what, "vinherit")) {
		r = fcntl(fds[number()], F_SETFD, 0);
	} else if (!strcmp(what, "vclose")) {
		r = close(fds[number()]);
	} else if (!strcmp(what, "vmany")) {
		a = number(), size = number();
		for (; i < a && !r; i++)
			r = create(&b, 0, size) || CALL("cuMemMap", ranges[0] + i * (size << 20), (size_t)(size << 20), (size_t)0, b, 0ull) ||
			    CALL("cuMemRelease", b);
		printf("vmany %llu", i);
		what = "";
	} else
		return 0;
	printf("%s %d\n", what, r);
	return 1;
}
