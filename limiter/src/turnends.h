/* What threads see of the end of work, and what the container shows of it to the others. Streams are given by their names
 * (flight.h). */
#ifndef GPUSLICE_TURNENDS_H
#define GPUSLICE_TURNENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"

/* Whether work is under way, as far as is known. */
bool turn_any_work(void);
/* Around a call of the driver that waits for work. */
void turn_wait_begin(void);
void turn_wait_end(void);
/* The work of a stream has ended; or with NULL that of all streams of a context; with NULL, NULL all. */
void turn_ended(CUstream stream, CUcontext context);

/* Events of the program may be recorded where the limiter does not see it: from now on none shows anything. */
void events_unknown(void);
/* An event of the program has happened, as the driver answered; asked: flight_asked() before. */
void turn_answered(CUevent event, uint64_t asked, bool waited);
/* Some work has ended, of which streams is not known. waited: a thread has waited for it until now. */
void turn_saw_end(bool waited);
/* Some work is under way, as a thread saw that does not wait for it. */
void turn_saw_work(void);

/* Before a stream ends. */
void turn_forget_stream(CUstream stream);
/* There is a context on the cell; FLIGHT_SEVERAL: its handle is not known. */
void turn_context(int cell, CUcontext context);
/* Around a call that may end a context, and waits for its work; NULL: any. gone: it has ended. */
void turn_context_ending(CUcontext context);
void turn_context_ended(CUcontext context, bool gone);

/* For the owner thread, every TURN_BEAT_NS while the word is 1: a thread that waits in the driver for long
 * can't show itself that it has work. */
enum { TURN_BEAT_NS = 10000000 };
extern _Atomic uint32_t turn_beating; /* a futex */
void turn_beat(void);
/* From now on, until it has had nothing to show for a while. */
void turn_start_beating(void);

#endif
