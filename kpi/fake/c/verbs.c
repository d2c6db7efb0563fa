/*
 * Queues of an HCA, on a host.
 */
#include <errno.h>
#include <string.h>

#include "object.h"

#define	QUEUE_LEN	32
#define	QPS_MAX		64

struct ib_pd {
	struct object	object;
	struct ib_device *device;
};

struct ib_ah {
	struct object	object;
	struct ib_pd	*pd;
};

struct kpi_cq {
	struct object	object;
	struct ib_device *device;
	void		*context;
	bool		is_armed;
	uint32_t	count;
	struct kpi_completion completions[QUEUE_LEN];
	struct ib_qp	*owners[QUEUE_LEN];
};

/* Work requests that are posted, oldest first. */
struct ring {
	uint32_t	count;
	uint64_t	wr_ids[QUEUE_LEN];
};

struct ib_srq {
	struct object	object;
	struct ib_pd	*pd;
	struct ring	receives;
};

struct ib_qp {
	struct object	object;
	struct ib_pd	*pd;
	struct kpi_qp_config config;
	uint32_t	qpn;
	uint32_t	state;
	struct ring	sends;
	struct ring	receives;
	bool			 is_stopped;	/* SQE */
};

static struct ib_qp *qps[QPS_MAX];
static uint32_t next_qpn = 0x100;

static int
push(struct ring *ring, uint64_t wr_id)
{

	if (ring->count == QUEUE_LEN || fake_fails(FAKE_FAULT_POST))
		return (ENOMEM);
	ring->wr_ids[ring->count++] = wr_id;
	return (0);
}

static uint64_t
pop(struct ring *ring)
{
	uint64_t wr_id;

	fake_check(ring->count > 0, "nothing is posted that could complete");
	wr_id = ring->wr_ids[0];
	ring->count--;
	memmove(ring->wr_ids, ring->wr_ids + 1,
	    ring->count * sizeof(ring->wr_ids[0]));
	return (wr_id);
}

static struct ib_qp *
find(uint32_t qpn)
{
	size_t i;

	for (i = 0; i < QPS_MAX; i++)
		if (qps[i] != NULL && qps[i]->qpn == qpn)
			return (qps[i]);
	fake_check(false, "there is no such queue pair");
	return (NULL);
}

static void
complete(struct ib_qp *qp, struct kpi_cq *cq, uint64_t wr_id, uint32_t status,
    uint32_t bytes, bool is_receive)
{
	struct kpi_completion *completion;

	fake_check(cq->count < QUEUE_LEN, "a completion queue is full");
	cq->owners[cq->count] = qp;
	completion = &cq->completions[cq->count++];
	memset(completion, 0, sizeof(*completion));
	completion->wr_id = wr_id;
	completion->status = status;
	if (qp->config.context != NULL)
		completion->qp_number = qp->config.context->number;
	if (is_receive && status == KPI_STATUS_SUCCESS) {
		completion->bytes = bytes;
		completion->flags = KPI_COMPLETION_RECEIVE;
		completion->source_qpn = 0x42;
		completion->source_lid = 7;
	}
	if (cq->is_armed) {
		cq->is_armed = false;
		fake_callbacks->completed(cq->context);
	}
}

/* Takes the completions of a queue pair out of a queue. */
static void
purge(struct kpi_cq *cq, struct ib_qp *qp)
{
	uint32_t from, to;

	for (from = to = 0; from < cq->count; from++) {
		if (cq->owners[from] == qp)
			continue;
		cq->owners[to] = cq->owners[from];
		cq->completions[to++] = cq->completions[from];
	}
	cq->count = to;
}

static int
enter(struct ib_qp *qp, uint32_t state)
{

	object_use(qp);
	qp->state = state;
	if (state == KPI_QPS_RESET) {
		qp->sends.count = 0;
		qp->receives.count = 0;
		purge(qp->config.send_cq, qp);
		purge(qp->config.receive_cq, qp);
	}
	if (state == KPI_QPS_ERROR) {
		while (qp->sends.count > 0)
			complete(qp, qp->config.send_cq, pop(&qp->sends),
			    KPI_STATUS_FLUSHED, 0, false);
		while (qp->receives.count > 0)
			complete(qp, qp->config.receive_cq, pop(&qp->receives),
			    KPI_STATUS_FLUSHED, 0, true);
	}
	return (0);
}

int
rust_helper_ib_alloc_pd(struct ib_device *device, struct ib_pd **pd)
{

	object_use(device);
	*pd = object_new(sizeof(**pd));
	if (*pd == NULL)
		return (ENOMEM);
	(*pd)->device = device;
	device->object.users++;
	return (0);
}

void
rust_helper_ib_dealloc_pd(struct ib_pd *pd)
{

	object_use(pd);
	pd->device->object.users--;
	object_free(pd);
}

uint32_t
rust_helper_ib_local_dma_lkey(struct ib_pd *pd)
{

	object_use(pd);
	return (0x1234);
}

int
rust_helper_ib_create_cq(struct ib_device *device, uint32_t entries,
    void *context, struct kpi_cq **cq)
{

	(void)entries;
	object_use(device);
	*cq = object_new(sizeof(**cq));
	if (*cq == NULL)
		return (ENOMEM);
	(*cq)->device = device;
	(*cq)->context = context;
	device->object.users++;
	return (0);
}

void
rust_helper_ib_destroy_cq(struct kpi_cq *cq)
{

	object_use(cq);
	cq->device->object.users--;
	object_free(cq);
}

int
rust_helper_ib_poll_cq(struct kpi_cq *cq, struct kpi_completion *completions,
    uint32_t count)
{
	uint32_t i, polled;

	object_use(cq);
	polled = cq->count < count ? cq->count : count;
	for (i = 0; i < polled; i++) {
		object_use(cq->owners[i]);
		completions[i] = cq->completions[i];
	}
	cq->count -= polled;
	memmove(cq->completions, cq->completions + polled,
	    cq->count * sizeof(cq->completions[0]));
	memmove(cq->owners, cq->owners + polled,
	    cq->count * sizeof(cq->owners[0]));
	return ((int)polled);
}

int
rust_helper_ib_arm_cq(struct kpi_cq *cq)
{

	object_use(cq);
	cq->is_armed = true;
	return (cq->count > 0);
}

int
rust_helper_ib_create_srq(struct ib_pd *pd, uint32_t max_receives,
    uint32_t max_segments, struct ib_srq **srq)
{

	(void)max_receives;
	(void)max_segments;
	object_use(pd);
	*srq = object_new(sizeof(**srq));
	if (*srq == NULL)
		return (ENOMEM);
	(*srq)->pd = pd;
	pd->object.users++;
	return (0);
}

void
rust_helper_ib_destroy_srq(struct ib_srq *srq)
{

	object_use(srq);
	srq->pd->object.users--;
	object_free(srq);
}

int
rust_helper_ib_create_qp(struct ib_pd *pd, const struct kpi_qp_config *config,
    struct ib_qp **qp, uint32_t *qpn)
{
	struct ib_qp *made;
	size_t place;

	object_use(pd);
	made = object_new(sizeof(*made));
	if (made == NULL)
		return (ENOMEM);
	for (place = 0; qps[place] != NULL; place++)
		fake_check(place < QPS_MAX - 1, "too many queue pairs");
	made->pd = pd;
	made->config = *config;
	made->qpn = next_qpn++;
	made->state = KPI_QPS_RESET;
	pd->object.users++;
	config->send_cq->object.users++;
	config->receive_cq->object.users++;
	if (config->srq != NULL)
		config->srq->object.users++;
	qps[place] = made;
	*qp = made;
	*qpn = made->qpn;
	return (0);
}

void
rust_helper_ib_destroy_qp(struct ib_qp *qp, struct kpi_cq *send_cq,
    struct kpi_cq *receive_cq)
{
	size_t i;

	enter(qp, KPI_QPS_RESET);
	fake_check(send_cq == qp->config.send_cq &&
	    receive_cq == qp->config.receive_cq, "queues of another queue pair");
	for (i = 0; i < QPS_MAX; i++)
		if (qps[i] == qp)
			qps[i] = NULL;
	send_cq->object.users--;
	receive_cq->object.users--;
	if (qp->config.srq != NULL)
		qp->config.srq->object.users--;
	qp->pd->object.users--;
	object_free(qp);
}

int
rust_helper_ib_init_ud_qp(struct ib_qp *qp, uint8_t port, uint16_t pkey_index,
    uint32_t qkey)
{

	(void)port;
	(void)pkey_index;
	(void)qkey;
	return (enter(qp, KPI_QPS_INIT));
}

int
rust_helper_ib_init_rc_qp(struct ib_qp *qp, uint8_t port, uint16_t pkey_index)
{

	(void)port;
	(void)pkey_index;
	return (enter(qp, KPI_QPS_INIT));
}

int
rust_helper_ib_modify_qp(struct ib_qp *qp, uint32_t state)
{

	return (enter(qp, state));
}

int
rust_helper_ib_restart_sends(struct ib_qp *qp)
{

	object_use(qp);
	if (!qp->is_stopped)
		return (EBUSY);
	qp->is_stopped = false;
	return (0);
}

int
rust_helper_ib_set_qkey(struct ib_qp *qp, uint32_t qkey)
{

	(void)qkey;
	object_use(qp);
	return (0);
}

int
rust_helper_ib_attach_mcast(struct ib_qp *qp, const uint8_t *mgid,
    uint16_t mlid)
{

	object_use(qp);
	return (mgid[0] == 0xff && mlid >= 0xc000 ? 0 : EINVAL);
}

int
rust_helper_ib_detach_mcast(struct ib_qp *qp, const uint8_t *mgid,
    uint16_t mlid)
{

	return (rust_helper_ib_attach_mcast(qp, mgid, mlid));
}

int
rust_helper_ib_create_ah(struct ib_pd *pd, const struct kpi_address *address,
    struct ib_ah **ah)
{

	object_use(pd);
	fake_check(address->port == 1 || address->port == 2, "no such port");
	*ah = object_new(sizeof(**ah));
	if (*ah == NULL)
		return (ENOMEM);
	(*ah)->pd = pd;
	pd->object.users++;
	return (0);
}

void
rust_helper_ib_destroy_ah(struct ib_ah *ah)
{

	object_use(ah);
	ah->pd->object.users--;
	object_free(ah);
}

int
rust_helper_ib_post_send(struct ib_qp *qp, uint64_t wr_id,
    const struct kpi_segment *segments, uint32_t count,
    const struct kpi_datagram *datagram)
{
	int error;

	object_use(qp);
	fake_check((datagram == NULL) == (qp->config.is_connected != 0),
	    "a datagram on a connection, or the reverse");
	fake_check(count <= qp->config.max_send_segments,
	    "a send has too many segments");
	fake_check(count == 0 || segments[0].lkey == 0x1234, "a wrong key");
	if (datagram != NULL)
		object_use(datagram->ah);
	error = push(&qp->sends, wr_id);
	if (error == 0 && qp->state == KPI_QPS_ERROR)
		complete(qp, qp->config.send_cq, pop(&qp->sends),
		    KPI_STATUS_FLUSHED, 0, false);
	return (error);
}

int
rust_helper_ib_post_receive(struct ib_qp *qp, uint64_t wr_id,
    const struct kpi_segment *segments, uint32_t count)
{

	(void)segments;
	object_use(qp);
	fake_check(qp->config.srq == NULL, "a receive beside a shared queue");
	fake_check(count <= qp->config.max_receive_segments,
	    "a receive has too many segments");
	return (push(&qp->receives, wr_id));
}

int
rust_helper_ib_post_srq_receive(struct ib_srq *srq, uint64_t wr_id,
    const struct kpi_segment *segments, uint32_t count)
{

	(void)segments;
	(void)count;
	object_use(srq);
	return (push(&srq->receives, wr_id));
}

void
fake_complete_send(uint32_t qpn, uint32_t status)
{
	struct ib_qp *qp;

	qp = find(qpn);
	complete(qp, qp->config.send_cq, pop(&qp->sends), status, 0, false);
	if (status == KPI_STATUS_FAILED && qp->config.is_connected == 0)
		qp->is_stopped = true;
}

void
fake_complete_receive(uint32_t qpn, uint32_t status, uint32_t bytes)
{
	struct ib_qp *qp;
	struct ring *ring;

	qp = find(qpn);
	ring = qp->config.srq != NULL ? &qp->config.srq->receives :
	    &qp->receives;
	complete(qp, qp->config.receive_cq, pop(ring), status, bytes, true);
}

void
fake_qp_event(uint32_t qpn, uint32_t event)
{

	fake_callbacks->qp_event(find(qpn)->config.context, event);
}

uint32_t
fake_qp_state(uint32_t qpn)
{

	return (find(qpn)->state);
}
