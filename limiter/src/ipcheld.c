#include "ipcheld.h"

#include "ipcrecord.h"
#include "process.h"

static uint32_t own_slot(const struct process *p)
{
	return (uint32_t)(p->owner.slot - p->usage->slots);
}

/* This process can open what it has open also when its maker has left it. The driver may use its handle again. */
int ipcheld_begin(struct process *p, uint64_t key)
{
	if (!lock_unless_mine(&p->ipcheld.lock))
		return -1;
	int record = ipcrecord_find(p->usage, key);
	if (record >= 0 && !p->ipcheld.uses[record] && !ipcrecord_hold(p->usage, record, own_slot(p), key)) {
		ipcrecord_let_go(p->usage, record, own_slot(p));
		record = -1;
	}
	for (uint32_t i = 0, high = ipcrecord_high(p->usage); i < high && record < 0; i++)
		if (p->ipcheld.uses[i] && atomic_load(&p->usage->ipc.key[i]) == key)
			record = (int)i;
	if (record >= 0)
		p->ipcheld.uses[record]++;
	lock_give(&p->ipcheld.lock);
	return record;
}

void ipcheld_end(struct process *p, int record)
{
	if (!lock_unless_mine(&p->ipcheld.lock))
		return; /* it stays charged until this process ends */
	if (!--p->ipcheld.uses[record])
		ipcrecord_let_go(p->usage, record, own_slot(p));
	lock_give(&p->ipcheld.lock);
}

void ipcheld_ended(struct process *p, const struct ledger_entry *entry)
{
	int record = (int)((entry->size & LEDGER_RECORD) >> LEDGER_RECORD_BIT) - 1;

	if (entry->kind == LEDGER_IPC)
		ipcheld_end(p, record);
	else
		ipcrecord_leave(p->usage, record);
}
