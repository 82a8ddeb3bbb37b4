/* Shared by the files of flight.h. All but the first two: under the turn's lock. */
#ifndef GPUSLICE_FLIGHTPARTS_H
#define GPUSLICE_FLIGHTPARTS_H

#include "flight.h"

/* Work of another thread's own stream, or of another stream than the launch's, does not count for longer. */
#define LATE_NS ((uint64_t)300000000)

CUcontext flight_current(void);

static inline uintptr_t flight_home(CUstream stream)
{
	uintptr_t at = (uintptr_t)stream;

	return at >> 4 ^ at >> 10 ^ at;
}

void flight_set_pending(struct flight *f, struct mark *mark, bool pending);
/* The first one from i on; FLIGHT_MARKS: none. */
int flight_next_pending(const struct flight *f, int i);
#define FLIGHT_EACH_PENDING(f, i) for (int i = -1; (i = flight_next_pending(f, i + 1)) < FLIGHT_MARKS;)

/* What is at a place of `dirty`; NULL: none. */
CUstream flight_stream_at(const struct flight *f, uintptr_t at);
CUcontext flight_context_at(const struct flight *f, uintptr_t at);
bool flight_is_noted(const struct flight *f, CUstream stream, uintptr_t home, CUcontext context);
void flight_put(struct flight *f, CUstream stream, uintptr_t home, CUcontext context);
void flight_drop(struct flight *f, uintptr_t at);
/* Below: of a mark, all but its events and its context. */
void flight_fill(struct flight *f, struct mark *mark, CUstream stream, uint64_t now, struct mark like);
struct mark flight_part(struct flight *f, int streams);
void flight_none_loose(struct flight *f);
void flight_done(struct flight *f, struct mark *mark, uint64_t seen, uint64_t before, int marks, uint64_t now);
/* Whether the end of `of` shows that of the mark, too. */
static inline bool flight_is_in_front(const struct mark *mark, const struct mark *of)
{
	return mark->stream && mark->stream == of->stream && mark->context == of->context && mark->serial < of->serial;
}
/* Whether the limiter has an event behind it. */
bool flight_is_backed(const struct flight *f, const struct mark *mark);
/* Whether a stream is covered by another one, or by all (NULL), of a context. */
bool flight_is_in(CUstream stream, CUcontext context, CUstream its, CUcontext in);

#endif
