/* A peer's file is read, never mapped: the peer could cut it off, which kills a process that has it
 * mapped. Descriptors belong to the program, which can close them and open others under the same
 * number: so what is read must be that peer's words, and only a descriptor that is still the same
 * file is closed. */
#include "peers.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TRY_AGAIN_NS = 100000000 };

static bool same_file(int fd, struct stat *file)
{
	return syscall(SYS_fstat, fd, file) == 0; /* not by libc's fstat, which has a version of its own since 2.33 */
}

static void drop(struct peer_file *f)
{
	struct stat now;

	if (f->open && same_file(f->fd, &now) && now.st_dev == f->dev && now.st_ino == f->ino)
		close(f->fd);
	f->open = false;
}

static bool open_file(struct peer_file *f, int cell, uint64_t now)
{
	char path[TABLE_PATH_BYTES];
	struct stat file;

	if (f->tried && now - f->tried < TRY_AGAIN_NS)
		return false;
	f->tried = now;
	if (!table_path(path, cell, NULL, f->id))
		return false;
	f->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
	if (f->fd < 0)
		return false;
	f->open = same_file(f->fd, &file) && S_ISREG(file.st_mode);
	if (!f->open) {
		close(f->fd);
		return false;
	}
	f->dev = file.st_dev;
	f->ino = file.st_ino;
	return true;
}

static bool read_words(const struct peer_file *f, struct vgpu_turn_words *words)
{
	return f->open && pread(f->fd, words, sizeof(*words), 0) == (ssize_t)sizeof(*words) &&
	       !memcmp(words->magic, VGPU_TURN_MAGIC, sizeof(words->magic)) && words->id == f->id;
}

static uint64_t believable(uint64_t time, uint64_t now)
{
	return time < now + LAG_HORIZON_NS ? time : 0;
}

/* None of its words reaches further than LAG_HORIZON_NS, or is outside of what lag.c writes: a debt uses the credit up, and
 * the credit has a limit by weight. */
static void fill(struct peer *p, const struct vgpu_turn_words *w, uint64_t now)
{
	uint64_t looked = atomic_load_explicit(&w->looked, memory_order_relaxed);
	uint64_t work = believable(atomic_load_explicit(&w->work_until, memory_order_relaxed), now);
	int64_t lag = atomic_load_explicit(&w->lag, memory_order_relaxed), credit = atomic_load_explicit(&w->credit, memory_order_relaxed);

	int64_t most = (int64_t)(p->weight * (double)-LAG_LEAST_NS);
	uint64_t processes = atomic_load_explicit(&w->processes, memory_order_relaxed);

	p->processes = processes < 1 ? 1 : processes < LAG_PROCESSES ? (unsigned)processes : LAG_PROCESSES;
	work = work < now ? work : now;
	p->want_until = believable(atomic_load_explicit(&w->want_until, memory_order_relaxed), now);
	p->hold_until = believable(atomic_load_explicit(&w->hold_until, memory_order_relaxed), now);
	p->gaps = p->hold_until > now && believable(atomic_load_explicit(&w->gaps_until, memory_order_relaxed), now) > now;
	p->lag = lag > LAG_MOST_NS ? LAG_MOST_NS : lag < LAG_LEAST_NS ? LAG_LEAST_NS : lag;
	p->credit = lag < 0 || credit < 0 ? 0 : credit > most ? most : credit;
	p->busy = atomic_load_explicit(&w->busy, memory_order_relaxed);
	if (work > looked && work - looked < LAG_HORIZON_NS)
		p->busy += work - looked;
}

/* It may want the GPU, and has neither the turn nor a claim to it. */
static void unknown(struct peer *p, uint64_t now)
{
	p->want_until = now + 1;
	p->hold_until = 0;
	p->gaps = false;
	p->lag = p->credit = 0;
	p->busy = 0;
	p->processes = 1;
}

void peers_follow(struct peers *peers, const struct shares *s)
{
	int kept = 0;

	for (int i = 0; i < peers->count; i++) {
		struct peer_file *f = &peers->files[i];
		bool stays = false;

		for (int k = 0; k < s->count && !stays; k++)
			stays = s->peers[k].id == f->id;
		if (stays)
			peers->files[kept++] = *f;
		else
			drop(f);
	}
	peers->count = kept;
}

static struct peer_file *file_of(struct peers *peers, uint64_t id)
{
	for (int i = 0; i < peers->count; i++)
		if (peers->files[i].id == id)
			return &peers->files[i];
	if (peers->count == VGPU_TURN_PEERS)
		return NULL;
	peers->files[peers->count] = (struct peer_file){ .id = id };
	return &peers->files[peers->count++];
}

void peers_look(struct peers *peers, int cell, const struct shares *s, struct view *v)
{
	struct vgpu_turn_words words;

	v->count = s->count;
	for (int i = 0; i < s->count; i++) {
		struct peer_file *f = file_of(peers, s->peers[i].id);
		bool right = f && read_words(f, &words);

		if (f && !right) {
			drop(f);
			right = open_file(f, cell, v->now) && read_words(f, &words);
		}
		v->peers[i].id = s->peers[i].id;
		v->peers[i].weight = s->peers[i].weight;
		v->peers[i].low = s->peers[i].low;
		if (right)
			fill(&v->peers[i], &words, v->now);
		else
			unknown(&v->peers[i], v->now);
	}
}
