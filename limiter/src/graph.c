/* Memory of graphs. A node that allocates takes nothing by itself; a launch takes it from the
 * GPU's memory for graphs (account.h), which executable graphs share and the driver keeps until
 * it is trimmed.
 *
 * Each executable graph has all its memory at most once, because its launches run one after the
 * other. So all graphs that were ever launched together are the most that the driver can need,
 * and a graph that was launched before is launched again without a charge. A graph that was
 * destroyed may still run: its bytes count (`destroyed`) until the driver reports that it has no
 * memory for graphs left. */
#include <string.h>
#include <sys/mman.h>

#include "graph.h"

#include "capture.h"
#include "device.h"
#include "hooks.h"
#include "limits.h"
#include "pool.h"
#include "process.h"
#include "reserve.h"
#include "span.h"
#include "turnends.h"

_Atomic uint32_t graphs_with_memory; /* in a forked child it is too large, which is harmless */

enum { PAGE = 2 << 20, DEPTH = 16 };

/* Executable graphs are in the ledger, once per GPU of which they take memory:
 * LEDGER_GRAPH before their first launch, LEDGER_GRAPH_RUN since. */
static uint64_t key_of(CUgraphExec exec, int cell)
{
	return (uint64_t)(uintptr_t)exec ^ (uint64_t)(cell + 1) << 52;
}

enum { NO_CONTEXT = 1 }; /* the context of ledger entries that end with no context */

static struct ledger_entry entry_of(CUgraphExec exec, int cell, uint64_t bytes, enum ledger_kind kind)
{
	return (struct ledger_entry){
		.key = key_of(exec, cell), .size = bytes, .context = NO_CONTEXT, .kind = kind, .cell = (uint64_t)cell
	};
}

struct walk {
	struct graph_need *need;
	struct spans spans; /* of the allocation nodes */
};

static CUresult add_graph(CUgraph graph, struct walk *walk, int depth);

/* The driver gives allocations of a graph the same addresses, and the memory there, if their lifetimes do not
 * overlap (CUDA C++ Programming Guide, "Address Reuse within a Graph"). */
static CUresult add_memory(const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct walk *walk)
{
	CUdevice dev = params->poolProps.location.id;
	uint64_t begin = params->dptr, end;
	int cell = device_cell(dev);

	if (cell < 0)
		return CUDA_ERROR_NOT_INITIALIZED; /* of a GPU that is not granted */
	walk->need->any = true;
	walk->need->dev[cell] = dev;
	if (__builtin_add_overflow(begin, params->bytesize, &end) || end > UINT64_MAX - PAGE)
		end = UINT64_MAX;
	else
		end = (end + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	begin &= ~(uint64_t)(PAGE - 1);
	return spans_add(&walk->spans, (struct span){ begin, end, cell }) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_node(CUgraphNode node, struct walk *walk, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraph child = NULL;
	int type = -1;
	CUresult result = REAL(cuGraphNodeGetType)(node, &type);

	if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || type == CU_GRAPH_NODE_TYPE_CONDITIONAL) /* of that the nodes are not seen */
		events_unknown();
	if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
		result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
		return result == CUDA_SUCCESS && child ? add_graph(child, walk, depth + 1) : result;
	}
	if (result != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return result;
	memset(&params, 0, sizeof(params));
	result = REAL(cuGraphMemAllocNodeGetParams)(node, &params);
	if (result != CUDA_SUCCESS || params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return result;
	return add_memory(&params, walk);
}

static CUresult add_graph(CUgraph graph, struct walk *walk, int depth)
{
	CUgraphNode few[64], *nodes = few;
	size_t count = 0, room = sizeof(few) / sizeof(*few);
	CUresult result = depth < DEPTH ? REAL(cuGraphGetNodes)(graph, NULL, &count) : CUDA_ERROR_NOT_SUPPORTED;

	if (result != CUDA_SUCCESS || !count)
		return result;
	if (count > room) {
		nodes = mmap(NULL, count * sizeof(*nodes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (nodes == MAP_FAILED)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	size_t all = count;
	result = REAL(cuGraphGetNodes)(graph, nodes, &count);
	for (size_t i = 0; result == CUDA_SUCCESS && i < count && i < all; i++)
		result = add_node(nodes[i], walk, depth);
	if (nodes != few)
		munmap(nodes, all * sizeof(*nodes));
	return result;
}

static uint64_t add(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

CUresult graph_needs(CUgraph graph, struct graph_need *need)
{
	struct walk walk = { .need = need };

	memset(need, 0, sizeof(*need));
	CUresult result = graph ? add_graph(graph, &walk, 0) : CUDA_SUCCESS; /* the driver refuses NULL */
	for (size_t i = 0; i < walk.spans.count; i++) {
		const struct span *span = &walk.spans.at[i];

		need->bytes[span->cell] = add(need->bytes[span->cell], span->end - span->begin);
	}
	spans_free(&walk.spans);
	return result;
}

/* Only with the account's lock held: by how much a launch can make it grow. */
static uint64_t growth(struct account *a, uint64_t bytes)
{
	uint64_t most, has = atomic_load_explicit(&a->confirmed, memory_order_relaxed) + a->in_flight;

	if (__builtin_add_overflow(a->live, a->destroyed, &most))
		most = UINT64_MAX;
	if (has >= most)
		return 0;
	return bytes < most - has ? bytes : most - has;
}

/* The lock is held across the reservation, so that two launches do not use the same bytes.
 * `pinned` keeps `confirmed`, which the launch uses too, from decreasing until it has ended. */
static bool try_take(struct process *p, struct account *a, uint64_t bytes, uint64_t *taken)
{
	lock_take(&a->lock);
	*taken = growth(a, bytes);
	bool fits = !*taken || reserve(p, a->cell, *taken);
	if (fits) {
		a->in_flight += *taken;
		a->pinned++;
	}
	lock_give(&a->lock);
	return fits;
}

static void count_in(struct account *a, uint64_t bytes)
{
	lock_take(&a->lock);
	a->live += bytes;
	lock_give(&a->lock);
}

static void count_out(struct account *a, uint64_t bytes, bool may_run)
{
	lock_take(&a->lock);
	a->live -= bytes;
	a->destroyed += may_run ? bytes : 0;
	lock_give(&a->lock);
}

/* If it does not fit: trims pools and memory for graphs first; then waits for this stream, and
 * trims what it has released; then waits for linear memory that is being freed. */
static bool take(struct process *p, struct account *a, uint64_t bytes, CUstream stream, uint64_t *taken)
{
	residue_catch_up(p, &p->residue, a->cell);
	if (__builtin_expect(try_take(p, a, bytes, taken), 1))
		return true;
	pools_make_room(p, a->cell, *taken);
	if (try_take(p, a, bytes, taken))
		return true;
	if (capture_wait(stream) != CUDA_SUCCESS)
		return false;
	pools_make_room(p, a->cell, UINT64_MAX);
	do {
		if (try_take(p, a, bytes, taken))
			return true;
	} while (freeing_wait(p));
	return false;
}

static void finish(struct graph_call *call)
{
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++)
		if (call->taking & 1u << cell)
			account_end(call->process, &call->process->pools.graph[cell], call->taken[cell], NULL);
	call->taking = 0;
}

static CUresult begin_on(struct graph_call *call, int cell, CUgraphExec exec, CUstream stream)
{
	struct account *a = &call->process->pools.graph[cell];
	struct ledger *ledger = &call->process->ledger;
	struct ledger_entry entry;
	bool first = false;

	if (!ledger_find(ledger, LEDGER_GRAPH_RUN, key_of(exec, cell), &entry)) {
		first = ledger_take(ledger, LEDGER_GRAPH, key_of(exec, cell), &entry);
		if (!first)
			return CUDA_SUCCESS; /* it takes none of this GPU */
		count_in(a, entry.size);
	}
	bool fits = take(call->process, a, entry.size, stream, &call->taken[cell]);
	if (first) {
		entry.kind = fits ? LEDGER_GRAPH_RUN : LEDGER_GRAPH;
		ledger_put(ledger, entry); /* its entry was just removed, so there is room */
		if (!fits)
			count_out(a, entry.size, false);
	}
	if (fits)
		call->taking |= 1u << cell;
	if (fits)
		return CUDA_SUCCESS;
	reserve_refused(call->process, a->cell);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult graph_begin(struct graph_call *call, CUgraphExec exec, CUstream stream)
{
	call->process = process_peek();
	call->taking = 0;
	if (!call->process || !graphs_take_memory())
		return CUDA_SUCCESS;
	if (capture_any() && capture_of(stream))
		return CUDA_SUCCESS; /* it becomes a node, or the driver refuses it */
	if (!owner_wait(&call->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = CUDA_SUCCESS;
	for (int cell = 0; cell < VGPU_MAX_DEVICES && result == CUDA_SUCCESS; cell++)
		if (limits_granted(cell))
			result = begin_on(call, cell, exec, stream);
	if (result != CUDA_SUCCESS)
		finish(call);
	return result;
}

CUresult graph_end(struct graph_call *call, CUresult result)
{
	if (__builtin_expect(call->taking != 0, 0))
		finish(call);
	return result;
}

CUresult graph_begin_upload(struct graph_call *call, const struct graph_need *need, CUstream stream)
{
	call->process = process_get();
	call->taking = 0;
	if (!call->process || !owner_wait(&call->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++) {
		if (!need->bytes[cell])
			continue;
		struct account *a = graph_account(call->process, need->dev[cell]);
		count_in(a, need->bytes[cell]);
		if (!take(call->process, a, need->bytes[cell], stream, &call->taken[cell])) {
			count_out(a, need->bytes[cell], false);
			for (int before = 0; before < cell; before++)
				if (call->taking & 1u << before)
					count_out(&call->process->pools.graph[before], need->bytes[before], false);
			finish(call);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		call->taking |= 1u << cell;
	}
	return CUDA_SUCCESS;
}

void graph_upload_failed(struct graph_call *call, const struct graph_need *need)
{
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++)
		if (need->bytes[cell])
			count_out(&call->process->pools.graph[cell], need->bytes[cell], true);
}

bool graph_made(CUgraphExec exec, const struct graph_need *need, bool uploaded)
{
	struct process *p = process_get();

	for (int cell = 0; p && cell < VGPU_MAX_DEVICES; cell++) {
		if (!need->bytes[cell])
			continue;
		graph_account(p, need->dev[cell]);
		limits_warn_unmovable(cell);
		if (!ledger_put(&p->ledger, entry_of(exec, cell, need->bytes[cell], uploaded ? LEDGER_GRAPH_RUN : LEDGER_GRAPH)))
			return false;
		atomic_fetch_add_explicit(&graphs_with_memory, 1, memory_order_relaxed);
	}
	return p != NULL;
}

/* Takes the graph out of the ledger before the driver is called, because the driver may reuse the
 * handle right after. */
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct process *p = process_peek();
	struct ledger_entry found[VGPU_MAX_DEVICES];
	uint32_t had = 0;

	for (int cell = 0; p && graphs_take_memory() && cell < VGPU_MAX_DEVICES; cell++)
		if (ledger_take(&p->ledger, LEDGER_GRAPH_RUN, key_of(exec, cell), &found[cell]) ||
		    ledger_take(&p->ledger, LEDGER_GRAPH, key_of(exec, cell), &found[cell]))
			had |= 1u << cell;
	CUresult result = REAL(cuGraphExecDestroy)(exec);
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++) {
		if (!(had & 1u << cell))
			continue;
		if (result != CUDA_SUCCESS) {
			ledger_put(&p->ledger, found[cell]);
			continue;
		}
		atomic_fetch_sub_explicit(&graphs_with_memory, 1, memory_order_relaxed);
		if (found[cell].kind == LEDGER_GRAPH_RUN) {
			count_out(&p->pools.graph[cell], found[cell].size, true);
			account_refresh(p, &p->pools.graph[cell]);
		}
	}
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	CUresult result = REAL(cuDeviceGraphMemTrim)(dev);
	struct process *p = process_peek();
	struct account *a = p ? graph_account(p, dev) : NULL;

	if (a && !account_empty(a))
		account_refresh(p, a);
	return result;
}
