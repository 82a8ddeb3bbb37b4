/* Legacy IPC, as part of probe.c: ipcget POINTER prints a handle, ipcopen HANDLE, ipcclose POINTER, freeasync POINTER
 * (and waits), ipcmany COUNT SIZE: allocates and gets handles. */
struct ipc_handle { unsigned char bytes[64]; };

static struct ipc_handle parse(const char *text)
{
	struct ipc_handle h;
	unsigned byte;

	for (int i = 0; i < 64; i++) {
		sscanf(text + 2 * i, "%2x", &byte);
		h.bytes[i] = (unsigned char)byte;
	}
	return h;
}

static int get_handle(unsigned long long pointer, struct ipc_handle *h)
{
	return CALL("cuIpcGetMemHandle", h, pointer);
}

static int open_handle(unsigned long long *p, struct ipc_handle h)
{
	int (*open)(unsigned long long *, struct ipc_handle, unsigned) = find("cuIpcOpenMemHandle_v2");

	return open(p, h, 1u);
}

static int run_ipc(const char *what)
{
	struct ipc_handle h = { { 0 } };
	unsigned long long p = 0, n;
	int r;

	if (!strcmp(what, "ipcget")) {
		p = pointers[number()];
		n = number(); /* bytes behind it */
		r = get_handle(p + n, &h);
		printf("ipcget %d ", r);
		for (int i = 0; i < 64; i++)
			printf("%02x", h.bytes[i]);
		printf("\n");
	} else if (!strcmp(what, "ipcopen")) {
		r = open_handle(&p, parse(*args++));
		allocated("ipcopen", r, p);
	} else if (!strcmp(what, "ipcclose"))
		printf("ipcclose %d\n", CALL("cuIpcCloseMemHandle", pointers[number()]));
	else if (!strcmp(what, "freeasync")) {
		r = CALL("cuMemFreeAsync", pointers[number()], NULL);
		printf("freeasync %d\n", r ? r : CALL("cuCtxSynchronize"));
	} else if (!strcmp(what, "ipcmany")) {
		n = number();
		for (size_t size = (size_t)number(); n; n--) {
			r = CALL("cuMemAlloc_v2", &pointers[count], size);
			r = r ? r : get_handle(pointers[count++], &h);
			if (r)
				break;
		}
		printf("ipcmany %d left %llu\n", r, n);
	} else
		return 0;
	return 1;
}
