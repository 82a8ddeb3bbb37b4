/*
 * PIDs across namespaces. A client knows only the PID that it has in its own; another namespace's is found in /proc, as the
 * kernel would translate it. In libnvidia-ml.so.1 and simctl.
 */
#define _GNU_SOURCE
#include "state.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t pid_namespace(const char *pid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%.16s/ns/pid", pid);
	return stat(path, &st) ? 0 : st.st_ino;
}

/* The last number of the NSpid line: the PID in the process's own namespace. */
static unsigned innermost_pid(const char *pid)
{
	char path[64], line[512];
	unsigned found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%.16s/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *last;

		if (strncmp(line, "NSpid:", 6) != 0)
			continue;
		last = strrchr(line, '\t');
		found = last ? (unsigned)strtoul(last, NULL, 10) : 0;
		break;
	}
	if (file)
		fclose(file);
	return found;
}

static unsigned visible_pid(const struct client *cl)
{
	DIR *proc;
	struct dirent *entry;
	unsigned found = 0;

	if (cl->pid_namespace == pid_namespace("self"))
		return cl->pid;
	proc = opendir("/proc");
	while (proc && !found && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]) || pid_namespace(entry->d_name) != cl->pid_namespace)
			continue;
		if (innermost_pid(entry->d_name) == cl->pid)
			found = (unsigned)strtoul(entry->d_name, NULL, 10);
	}
	if (proc)
		closedir(proc);
	return found;
}

/* A process inside a PID namespace can't read its PID on the host. So a process that sees the client's other PID records it. */
unsigned client_pid(struct view *v, unsigned slot, bool host)
{
	struct client *cl = &v->s->clients[slot];
	unsigned pid = visible_pid(cl);

	if (pid && cl->pid_namespace != pid_namespace("self"))
		atomic_store(&cl->host_pid, pid);
	return host ? atomic_load(&cl->host_pid) : pid;
}
