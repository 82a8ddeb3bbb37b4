/* Between the files that keep the clients of the state file: state, join, charge, stage. */
#ifndef SIMDRIVER_CLIENT_H
#define SIMDRIVER_CLIENT_H

#include "state.h"

#include <sys/types.h>

/* F_OFD_SETLK and the like on one byte. 0 or an errno value. */
int state_byte_lock(int fd, int command, short type, off_t byte);

/* From here on with the lock held. */

/* The MIG device of that GPU that the client's bytes are charged to; NULL: they are charged only to the GPU. */
struct instance *client_instance(struct state *s, const struct client *cl, unsigned gpu);
/* Gives back what dead clients held, and exported memory that no one holds. */
void clients_reap(struct view *v);

/* `dirty` is set. */
void charge_add(struct state *s, struct client *cl, unsigned gpu, enum charge kind, uint64_t bytes);
void charge_remove(struct state *s, struct client *cl, unsigned gpu, enum charge kind, uint64_t bytes);
bool charge_fits(const struct gpu *c, const struct instance *in, uint64_t bytes);
/* In the limits of its control groups. */
bool limits_fit(struct state *s, const struct client *cl, unsigned gpu, uint64_t bytes);

#endif
