/*
 * Completions, and what ibcore is told by the thread.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

/* Completions that are taken with the lock held once. */
#define	SOFTIB_BATCH	16

static enum ib_wc_status
softib_wc_status(uint32_t status)
{

	switch (status) {
	case SOFTIB_SUCCESS:
		return (IB_WC_SUCCESS);
	case SOFTIB_FLUSHED:
		return (IB_WC_WR_FLUSH_ERR);
	case SOFTIB_LOCAL_LENGTH:
		return (IB_WC_LOC_LEN_ERR);
	case SOFTIB_LOCAL_QP_OPERATION:
		return (IB_WC_LOC_QP_OP_ERR);
	case SOFTIB_REMOTE_INVALID_REQUEST:
		return (IB_WC_REM_INV_REQ_ERR);
	case SOFTIB_RETRY_EXCEEDED:
		return (IB_WC_RETRY_EXC_ERR);
	case SOFTIB_RNR_RETRY_EXCEEDED:
		return (IB_WC_RNR_RETRY_EXC_ERR);
	default:
		return (IB_WC_GENERAL_ERR);
	}
}

static void
softib_fill_wc(struct ib_wc *wc, const struct softib_completion *completion)
{

	memset(wc, 0, sizeof(*wc));
	wc->wr_id = completion->wr_id;
	wc->status = softib_wc_status(completion->status);
	wc->opcode = completion->is_receive ? IB_WC_RECV : IB_WC_SEND;
	wc->byte_len = completion->byte_count;
	wc->qp = &((struct softib_qp *)completion->pair)->ib;
	wc->src_qp = completion->source_qpn;
	wc->wc_flags = (completion->has_grh ? IB_WC_GRH : 0) |
	    (completion->has_right_checksums ? IB_WC_IP_CSUM_OK : 0);
	wc->pkey_index = completion->pkey_index;
	wc->slid = completion->source_lid;
	wc->sl = completion->sl;
}

static int
softib_poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_cq *cq = container_of(ib, struct softib_cq, ib);
	struct softib_completion batch[SOFTIB_BATCH];
	uint32_t i, polled, wanted;
	int done;

	for (done = 0; done < count; done += polled) {
		wanted = MIN(count - done, SOFTIB_BATCH);
		memset(batch, 0, wanted * sizeof(batch[0]));
		polled = softib_rs_poll_queue(softib, cq->handle, batch,
		    wanted);
		for (i = 0; i < polled; i++)
			softib_fill_wc(&wc[done + i], &batch[i]);
		if (polled < wanted) {
			done += polled;
			break;
		}
	}
	return (done);
}

static int
softib_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_cq *cq = container_of(ib, struct softib_cq, ib);
	int missed;

	missed = softib_rs_arm_queue(softib, cq->handle);
	return ((flags & IB_CQ_REPORT_MISSED_EVENTS) != 0 ? missed : 0);
}

void
softib_c_complete(void *queue)
{
	struct softib_cq *cq = queue;

	/* A queue that is polled only has no handler. */
	if (cq->ib.comp_handler != NULL)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

static enum ib_event_type
softib_event_type(uint32_t event)
{

	switch (event) {
	case SOFTIB_COMMUNICATION_ESTABLISHED:
		return (IB_EVENT_COMM_EST);
	case SOFTIB_LAST_WQE_REACHED:
		return (IB_EVENT_QP_LAST_WQE_REACHED);
	case SOFTIB_CQ_OVERRUN:
		return (IB_EVENT_CQ_ERR);
	case SOFTIB_SRQ_LIMIT_REACHED:
		return (IB_EVENT_SRQ_LIMIT_REACHED);
	case SOFTIB_CLIENT_REREGISTER:
		return (IB_EVENT_CLIENT_REREGISTER);
	case SOFTIB_GID_CHANGED:
		return (IB_EVENT_GID_CHANGE);
	case SOFTIB_LID_CHANGED:
		return (IB_EVENT_LID_CHANGE);
	case SOFTIB_PKEY_CHANGED:
		return (IB_EVENT_PKEY_CHANGE);
	case SOFTIB_PORT_ACTIVE:
		return (IB_EVENT_PORT_ACTIVE);
	case SOFTIB_PORT_ERROR:
		return (IB_EVENT_PORT_ERR);
	case SOFTIB_SM_CHANGED:
		return (IB_EVENT_SM_CHANGE);
	default:
		return (IB_EVENT_DEVICE_FATAL);
	}
}

void
softib_c_queue_event(void *queue, uint32_t type)
{
	struct softib_cq *cq = queue;
	struct ib_event event = {
		.device = cq->ib.device,
		.element.cq = &cq->ib,
		.event = softib_event_type(type),
	};

	if (cq->ib.event_handler != NULL)
		cq->ib.event_handler(&event, cq->ib.cq_context);
}

void
softib_c_pair_event(void *pair, uint32_t type)
{
	struct softib_qp *qp = pair;
	struct ib_event event = {
		.device = qp->ib.device,
		.element.qp = &qp->ib,
		.event = softib_event_type(type),
	};

	if (qp->ib.event_handler != NULL)
		qp->ib.event_handler(&event, qp->ib.qp_context);
}

void
softib_c_shared_event(void *shared, uint32_t type)
{
	struct softib_srq *srq = shared;
	struct ib_event event = {
		.device = srq->ib.device,
		.element.srq = &srq->ib,
		.event = softib_event_type(type),
	};

	if (srq->ib.event_handler != NULL)
		srq->ib.event_handler(&event, srq->ib.srq_context);
}

void
softib_c_port_event(void *context, uint8_t port, uint32_t type)
{
	struct softib_device *device = context;
	struct ib_event event = {
		.device = &device->ib,
		.element.port_num = port,
		.event = softib_event_type(type),
	};

	ib_dispatch_event(&event);
}

void
softib_set_poll_ops(struct ib_device *ib)
{

	ib->poll_cq = softib_poll_cq;
	ib->req_notify_cq = softib_req_notify_cq;
}
