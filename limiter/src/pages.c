#include "pages.h"

#include <stddef.h>

#include "process.h"
#include "reserve.h"

static uint32_t common(uint32_t a, uint32_t b)
{
	while (b) {
		uint32_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static struct pages_of *find(struct pages *all, uint64_t context, int cell)
{
	for (int i = 0; i < PAGES_CONTEXTS; i++)
		if (all->of[i].pieces && all->of[i].context == context && all->of[i].cell == cell)
			return &all->of[i];
	return NULL;
}

static struct pages_of *make(struct pages *all, uint64_t context, int cell, uint64_t page)
{
	for (int i = 0; i < PAGES_CONTEXTS; i++) {
		if (all->of[i].pieces)
			continue;
		all->of[i] = (struct pages_of){ .context = context, .cell = cell, .page = page };
		return &all->of[i];
	}
	return NULL;
}

/* Whether the driver may take another page for a piece of that size. */
static bool may_open(const struct pages_of *of, uint32_t size)
{
	if (!of->pieces || size > of->page)
		return true;
	uint64_t full = (of->page - size) / of->unit * of->unit + of->unit;
	return of->sum / full >= of->pages;
}

enum pages_result pages_enter(struct process *p, uint64_t context, int cell, uint64_t page, uint64_t size, bool reserved)
{
	struct pages *all = &p->pages;
	enum pages_result result = PAGES_NO_PLACE;

	if (lock_mine(&all->lock))
		return PAGES_NO_PLACE;
	lock_take(&all->lock);
	struct pages_of *of = find(all, context, cell);
	if (!of)
		of = make(all, context, cell, page);
	bool place = of && of->page == page; /* the host may have changed it */
	bool opens = place && may_open(of, (uint32_t)size);
	if (place)
		result = opens && !reserved ? PAGES_ANOTHER : PAGES_ENTERED;
	if (result == PAGES_ENTERED) {
		of->unit = common((uint32_t)size, of->unit);
		of->pages += opens;
		of->sum += size;
		of->pieces++;
	}
	lock_give(&all->lock);
	if (result == PAGES_ENTERED && reserved && !opens)
		reserve_undo(p, cell, page);
	return result;
}

void pages_leave(struct process *p, uint64_t context, int cell, uint64_t size)
{
	struct pages *all = &p->pages;
	uint64_t bytes = 0;

	if (lock_mine(&all->lock))
		return; /* it stays charged */
	lock_take(&all->lock);
	struct pages_of *of = find(all, context, cell);
	if (of) {
		of->sum -= size;
		of->pieces--;
		uint64_t left = of->pages < of->pieces ? of->pages : of->pieces;
		bytes = (of->pages - left) * of->page;
		of->pages = left;
	}
	lock_give(&all->lock);
	if (bytes)
		reserve_undo(p, cell, bytes);
}
