/*
 * Queues and what is posted to them (rdma/ib_verbs.h).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/malloc.h>
#include <sys/mutex.h>

#include <rdma/ib_verbs.h>

#include "internal.h"

/* Completions that are taken from an HCA at once. */
#define	POLL_MAX	16

_Static_assert(sizeof(struct kpi_segment) == sizeof(struct ib_sge) &&
    offsetof(struct kpi_segment, address) == offsetof(struct ib_sge, addr) &&
    offsetof(struct kpi_segment, bytes) == offsetof(struct ib_sge, length) &&
    offsetof(struct kpi_segment, lkey) == offsetof(struct ib_sge, lkey),
    "a segment is laid out like struct ib_sge");

static MALLOC_DEFINE(M_KPI_CQ, "kpi_cq", "InfiniBand completion queues");

/*
 * The mutex is held from the moment that completions leave the HCA until
 * nobody looks behind the pointers in them any more.
 */
struct kpi_cq {
	struct ib_cq	*cq;
	void		*context;
	struct mtx	 poll_mtx;
	struct ib_wc	 polled[POLL_MAX];
};

static void	completed(struct ib_cq *cq, void *context);
static void	translate(const struct ib_wc *wc,
		    struct kpi_completion *completion);
static void	wait_for_polls(struct kpi_cq *cq);
static void	qp_event(struct ib_event *event, void *context);

int
rust_helper_ib_alloc_pd(struct ib_device *device, struct ib_pd **pd)
{
	struct ib_pd *made;

	made = ib_alloc_pd(device, 0);
	if (IS_ERR(made))
		return (kpi_errno(PTR_ERR(made)));
	*pd = made;
	return (0);
}

void
rust_helper_ib_dealloc_pd(struct ib_pd *pd)
{

	ib_dealloc_pd(pd);
}

uint32_t
rust_helper_ib_local_dma_lkey(struct ib_pd *pd)
{

	return (pd->local_dma_lkey);
}

int
rust_helper_ib_create_cq(struct ib_device *device, uint32_t entries,
    void *context, struct kpi_cq **cq)
{
	struct ib_cq_init_attr attr;
	struct kpi_cq *made;
	int error;

	made = malloc(sizeof(*made), M_KPI_CQ, M_WAITOK | M_ZERO);
	made->context = context;
	mtx_init(&made->poll_mtx, "kpi cq poll", NULL, MTX_DEF | MTX_NEW);
	memset(&attr, 0, sizeof(attr));
	attr.cqe = entries;
	made->cq = ib_create_cq(device, completed, NULL, made, &attr);
	if (IS_ERR(made->cq)) {
		error = kpi_errno(PTR_ERR(made->cq));
		mtx_destroy(&made->poll_mtx);
		free(made, M_KPI_CQ);
		return (error);
	}
	*cq = made;
	return (0);
}

void
rust_helper_ib_destroy_cq(struct kpi_cq *cq)
{

	ib_destroy_cq(cq->cq);
	mtx_destroy(&cq->poll_mtx);
	free(cq, M_KPI_CQ);
}

static void
completed(struct ib_cq *cq __unused, void *context)
{
	struct kpi_cq *made;

	made = context;
	kpi_ofed_callbacks->completed(made->context);
}

int
rust_helper_ib_poll_cq(struct kpi_cq *cq, struct kpi_completion *completions,
    uint32_t count)
{
	int i, polled;

	mtx_lock(&cq->poll_mtx);
	polled = ib_poll_cq(cq->cq, MIN(count, POLL_MAX), cq->polled);
	for (i = 0; i < polled; i++)
		translate(&cq->polled[i], &completions[i]);
	mtx_unlock(&cq->poll_mtx);
	return (polled);
}

static void
translate(const struct ib_wc *wc, struct kpi_completion *completion)
{
	const struct kpi_qp_context *context;

	memset(completion, 0, sizeof(*completion));
	completion->wr_id = wc->wr_id;
	completion->raw_status = wc->status;
	completion->vendor_error = wc->vendor_err;
	context = wc->qp != NULL ? wc->qp->qp_context : NULL;
	if (context != NULL)
		completion->qp_number = context->number;
	switch (wc->status) {
	case IB_WC_SUCCESS:
		completion->status = KPI_STATUS_SUCCESS;
		break;
	case IB_WC_WR_FLUSH_ERR:
		completion->status = KPI_STATUS_FLUSHED;
		return;
	default:
		completion->status = KPI_STATUS_FAILED;
		return;
	}
	/* The rest says nothing of a work request that failed. */
	if ((wc->opcode & IB_WC_RECV) == 0)
		return;
	completion->flags = KPI_COMPLETION_RECEIVE;
	completion->bytes = wc->byte_len;
	completion->source_qpn = wc->src_qp;
	completion->source_lid = wc->slid;
	if ((wc->wc_flags & IB_WC_GRH) != 0)
		completion->flags |= KPI_COMPLETION_HAS_GRH;
	if ((wc->wc_flags & IB_WC_IP_CSUM_OK) != 0)
		completion->flags |= KPI_COMPLETION_CSUM_OK;
}

/*
 * No completion that left the HCA before this is still being looked at.
 */
static void
wait_for_polls(struct kpi_cq *cq)
{

	mtx_lock(&cq->poll_mtx);
	mtx_unlock(&cq->poll_mtx);
}

int
rust_helper_ib_arm_cq(struct kpi_cq *cq)
{

	return (ib_req_notify_cq(cq->cq,
	    IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS));
}

int
rust_helper_ib_create_srq(struct ib_pd *pd, uint32_t max_receives,
    uint32_t max_segments, struct ib_srq **srq)
{
	struct ib_srq_init_attr attr;
	struct ib_srq *made;

	memset(&attr, 0, sizeof(attr));
	attr.srq_type = IB_SRQT_BASIC;
	attr.attr.max_wr = max_receives;
	attr.attr.max_sge = max_segments;
	made = ib_create_srq(pd, &attr);
	if (IS_ERR(made))
		return (kpi_errno(PTR_ERR(made)));
	*srq = made;
	return (0);
}

int
rust_helper_ib_destroy_srq(struct ib_srq *srq)
{

	return (kpi_errno(ib_destroy_srq(srq)));
}

int
rust_helper_ib_create_qp(struct ib_pd *pd, const struct kpi_qp_config *config,
    struct ib_qp **qp, uint32_t *qpn)
{
	struct ib_qp_init_attr attr;
	struct ib_qp *made;

	memset(&attr, 0, sizeof(attr));
	attr.event_handler = qp_event;
	attr.qp_context = config->context;
	attr.send_cq = config->send_cq->cq;
	attr.recv_cq = config->receive_cq->cq;
	attr.srq = config->srq;
	attr.cap.max_send_wr = config->max_sends;
	attr.cap.max_send_sge = config->max_send_segments;
	if (config->srq == NULL) {
		attr.cap.max_recv_wr = config->max_receives;
		attr.cap.max_recv_sge = config->max_receive_segments;
	}
	attr.sq_sig_type = IB_SIGNAL_ALL_WR;
	attr.qp_type = config->is_connected ? IB_QPT_RC : IB_QPT_UD;
	if (config->blocks_loopback)
		attr.create_flags = IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK;
	made = ib_create_qp(pd, &attr);
	if (IS_ERR(made))
		return (kpi_errno(PTR_ERR(made)));
	*qp = made;
	*qpn = made->qp_num;
	return (0);
}

int
rust_helper_ib_destroy_qp(struct ib_qp *qp, struct kpi_cq *send_cq,
    struct kpi_cq *receive_cq, int *is_quiet)
{

	/*
	 * A reset takes the completions of the queue pair out of its queues.
	 * Those that were taken out before have a pointer to it.
	 */
	*is_quiet = rust_helper_ib_modify_qp(qp, KPI_QPS_RESET) == 0;
	wait_for_polls(send_cq);
	if (receive_cq != send_cq)
		wait_for_polls(receive_cq);
	return (kpi_errno(ib_destroy_qp(qp)));
}

static void
qp_event(struct ib_event *event, void *context)
{

	switch (event->event) {
	case IB_EVENT_QP_LAST_WQE_REACHED:
		kpi_ofed_callbacks->qp_event(context, KPI_QP_LAST_WQE);
		break;
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
		kpi_ofed_callbacks->qp_event(context, KPI_QP_FAILED);
		break;
	default:
		break;
	}
}

int
rust_helper_ib_init_ud_qp(struct ib_qp *qp, uint8_t port, uint16_t pkey_index,
    uint32_t qkey)
{
	struct ib_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_INIT;
	attr.port_num = port;
	attr.pkey_index = pkey_index;
	attr.qkey = qkey;
	return (kpi_errno(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PORT |
	    IB_QP_PKEY_INDEX | IB_QP_QKEY)));
}

int
rust_helper_ib_init_rc_qp(struct ib_qp *qp, uint8_t port, uint16_t pkey_index)
{
	struct ib_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_INIT;
	attr.port_num = port;
	attr.pkey_index = pkey_index;
	/* Sends only: peers get no access to memory. */
	attr.qp_access_flags = IB_ACCESS_LOCAL_WRITE;
	return (kpi_errno(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PORT |
	    IB_QP_PKEY_INDEX | IB_QP_ACCESS_FLAGS)));
}

/*
 * To a state for which nothing else needs to be said.  RTR and RTS are for
 * datagrams.
 */
int
rust_helper_ib_modify_qp(struct ib_qp *qp, uint32_t state)
{
	struct ib_qp_attr attr;
	int mask;

	memset(&attr, 0, sizeof(attr));
	mask = IB_QP_STATE;
	switch (state) {
	case KPI_QPS_RESET:
		attr.qp_state = IB_QPS_RESET;
		break;
	case KPI_QPS_RTR:
		attr.qp_state = IB_QPS_RTR;
		break;
	case KPI_QPS_RTS:
		attr.qp_state = IB_QPS_RTS;
		mask |= IB_QP_SQ_PSN;
		break;
	case KPI_QPS_ERROR:
		attr.qp_state = IB_QPS_ERR;
		break;
	default:
		return (EINVAL);
	}
	return (kpi_errno(ib_modify_qp(qp, &attr, mask)));
}

/*
 * A send that failed has stopped the queue (SQE).  A queue in another state is
 * left alone: it may be on its way to it, or have been reset.
 */
int
rust_helper_ib_restart_sends(struct ib_qp *qp)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	int error;

	memset(&attr, 0, sizeof(attr));
	memset(&init, 0, sizeof(init));
	error = ib_query_qp(qp, &attr, IB_QP_STATE, &init);
	if (error != 0)
		return (kpi_errno(error));
	if (attr.qp_state != IB_QPS_SQE)
		return (EBUSY);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTS;
	return (kpi_errno(ib_modify_qp(qp, &attr, IB_QP_STATE)));
}

int
rust_helper_ib_set_qkey(struct ib_qp *qp, uint32_t qkey)
{
	struct ib_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qkey = qkey;
	return (kpi_errno(ib_modify_qp(qp, &attr, IB_QP_QKEY)));
}

int
rust_helper_ib_attach_mcast(struct ib_qp *qp, const uint8_t *mgid,
    uint16_t mlid)
{
	union ib_gid gid;

	memcpy(gid.raw, mgid, sizeof(gid.raw));
	return (kpi_errno(ib_attach_mcast(qp, &gid, mlid)));
}

int
rust_helper_ib_detach_mcast(struct ib_qp *qp, const uint8_t *mgid,
    uint16_t mlid)
{
	union ib_gid gid;

	memcpy(gid.raw, mgid, sizeof(gid.raw));
	return (kpi_errno(ib_detach_mcast(qp, &gid, mlid)));
}

int
rust_helper_ib_create_ah(struct ib_pd *pd, const struct kpi_address *address,
    struct ib_ah **ah)
{
	struct ib_ah_attr attr;
	struct ib_ah *made;

	memset(&attr, 0, sizeof(attr));
	attr.dlid = address->lid;
	attr.sl = address->sl;
	attr.static_rate = address->rate;
	attr.port_num = address->port;
	if (address->has_grh) {
		attr.ah_flags = IB_AH_GRH;
		memcpy(attr.grh.dgid.raw, address->gid, sizeof(address->gid));
		attr.grh.flow_label = address->flow_label;
		attr.grh.hop_limit = address->hop_limit;
		attr.grh.traffic_class = address->traffic_class;
	}
	made = ib_create_ah(pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
	if (IS_ERR(made))
		return (kpi_errno(PTR_ERR(made)));
	*ah = made;
	return (0);
}

void
rust_helper_ib_destroy_ah(struct ib_ah *ah)
{

	/* Without RDMA_DESTROY_AH_SLEEPABLE, it does not sleep. */
	(void)ib_destroy_ah(ah, 0);
}

int
rust_helper_ib_post_send(struct ib_qp *qp, uint64_t wr_id,
    const struct kpi_segment *segments, uint32_t count,
    const struct kpi_datagram *datagram)
{
	const struct ib_send_wr *bad;
	struct ib_ud_wr wr;

	memset(&wr, 0, sizeof(wr));
	wr.wr.wr_id = wr_id;
	/* The HCA reads it only. */
	wr.wr.sg_list = __DECONST(struct ib_sge *, segments);
	wr.wr.num_sge = count;
	wr.wr.opcode = IB_WR_SEND;
	wr.wr.send_flags = IB_SEND_SIGNALED;
	if (datagram != NULL) {
		wr.ah = datagram->ah;
		wr.remote_qpn = datagram->remote_qpn;
		wr.remote_qkey = datagram->qkey;
		if (datagram->wants_ip_csum)
			wr.wr.send_flags |= IB_SEND_IP_CSUM;
	}
	return (kpi_errno(ib_post_send(qp, &wr.wr, &bad)));
}

int
rust_helper_ib_post_receive(struct ib_qp *qp, uint64_t wr_id,
    const struct kpi_segment *segments, uint32_t count)
{
	const struct ib_recv_wr *bad;
	struct ib_recv_wr wr;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = wr_id;
	wr.sg_list = __DECONST(struct ib_sge *, segments);
	wr.num_sge = count;
	return (kpi_errno(ib_post_recv(qp, &wr, &bad)));
}

int
rust_helper_ib_post_srq_receive(struct ib_srq *srq, uint64_t wr_id,
    const struct kpi_segment *segments, uint32_t count)
{
	const struct ib_recv_wr *bad;
	struct ib_recv_wr wr;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = wr_id;
	wr.sg_list = __DECONST(struct ib_sge *, segments);
	wr.num_sge = count;
	return (kpi_errno(ib_post_srq_recv(srq, &wr, &bad)));
}
