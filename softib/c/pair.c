/*
 * Queue pairs.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

#include <linux/err.h>

/* The states have the numbers that ibcore gives them. */
_Static_assert(SOFTIB_RESET == (int)IB_QPS_RESET, "state");
_Static_assert(SOFTIB_INIT == (int)IB_QPS_INIT, "state");
_Static_assert(SOFTIB_RTR == (int)IB_QPS_RTR, "state");
_Static_assert(SOFTIB_RTS == (int)IB_QPS_RTS, "state");
_Static_assert(SOFTIB_SQD == (int)IB_QPS_SQD, "state");
_Static_assert(SOFTIB_SQE == (int)IB_QPS_SQE, "state");
_Static_assert(SOFTIB_ERR == (int)IB_QPS_ERR, "state");

static int
softib_service(enum ib_qp_type type)
{

	switch (type) {
	case IB_QPT_SMI:
		return (SOFTIB_SMI);
	case IB_QPT_GSI:
		return (SOFTIB_GSI);
	case IB_QPT_UD:
		return (SOFTIB_UD);
	case IB_QPT_RC:
		return (SOFTIB_RC);
	default:
		return (-1);
	}
}

static struct ib_qp *
softib_create_qp(struct ib_pd *pd, struct ib_qp_init_attr *init,
    struct ib_udata *udata __unused)
{
	struct softib_device *device = softib_device_of(pd->device);
	struct softib_pair_config config = { 0 };
	struct softib_qp *qp;
	int error, service;

	service = softib_service(init->qp_type);
	if (service == -1 || init->create_flags != 0)
		return (ERR_PTR(-EOPNOTSUPP));
	if (init->send_cq == NULL || init->recv_cq == NULL ||
	    init->cap.max_send_wr > device->ib.attrs.max_qp_wr ||
	    init->cap.max_recv_wr > device->ib.attrs.max_qp_wr)
		return (ERR_PTR(-EINVAL));

	qp = malloc(sizeof(*qp), M_SOFTIB, M_WAITOK | M_ZERO);
	qp->init = *init;
	config.context = qp;
	config.send_queue = container_of(init->send_cq, struct softib_cq,
	    ib)->handle;
	config.receive_queue = container_of(init->recv_cq, struct softib_cq,
	    ib)->handle;
	if (init->srq != NULL)
		config.shared_queue = container_of(init->srq,
		    struct softib_srq, ib)->handle;
	config.service = service;
	config.sends_max = init->cap.max_send_wr;
	config.receives_max = init->cap.max_recv_wr;
	config.receive_segments_max = init->cap.max_recv_sge;
	config.port = init->port_num;
	config.signals_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	error = softib_rs_create_pair(device->softib, device->index, &config,
	    &qp->handle, &qp->ib.qp_num);
	if (error != 0) {
		free(qp, M_SOFTIB);
		return (ERR_PTR(-error));
	}
	/* The queue pairs of management are on their port from the start. */
	qp->attr.port_num = init->port_num;
	qp->attr.cap = init->cap;
	return (&qp->ib);
}

static int
softib_destroy_qp(struct ib_qp *ib, struct ib_udata *udata __unused)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);
	int error;

	error = softib_rs_destroy_pair(softib, qp->handle);
	if (error != 0)
		return (-error);
	softib_wait_for_calls(softib, qp);
	free(qp, M_SOFTIB);
	return (0);
}

/* Takes over what a change says. */
static void
softib_merge(struct ib_qp_attr *attr, const struct ib_qp_attr *change, int mask)
{

#define	MERGE(flag, field) do {						\
	if ((mask & (flag)) != 0)					\
		attr->field = change->field;				\
} while (0)
	MERGE(IB_QP_ACCESS_FLAGS, qp_access_flags);
	MERGE(IB_QP_PKEY_INDEX, pkey_index);
	MERGE(IB_QP_PORT, port_num);
	MERGE(IB_QP_QKEY, qkey);
	MERGE(IB_QP_AV, ah_attr);
	MERGE(IB_QP_PATH_MTU, path_mtu);
	MERGE(IB_QP_TIMEOUT, timeout);
	MERGE(IB_QP_RETRY_CNT, retry_cnt);
	MERGE(IB_QP_RNR_RETRY, rnr_retry);
	MERGE(IB_QP_RQ_PSN, rq_psn);
	MERGE(IB_QP_SQ_PSN, sq_psn);
	MERGE(IB_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	MERGE(IB_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	MERGE(IB_QP_MIN_RNR_TIMER, min_rnr_timer);
	MERGE(IB_QP_DEST_QPN, dest_qp_num);
#undef	MERGE
}

static int
softib_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
    struct ib_udata *udata __unused)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);
	struct softib_change change = { 0 };
	enum ib_qp_state before, after;
	int error;

	before = softib_rs_pair_state(softib, qp->handle);
	after = (mask & IB_QP_STATE) != 0 ? attr->qp_state : before;
	if ((mask & IB_QP_CUR_STATE) != 0 && attr->cur_qp_state != before)
		return (-EINVAL);
	if (!ib_modify_qp_is_ok(before, after, ib->qp_type, mask))
		return (-EINVAL);

	change.state = after;
	change.qkey = attr->qkey;
	change.has_qkey = (mask & IB_QP_QKEY) != 0;
	change.pkey_index = attr->pkey_index;
	change.has_pkey_index = (mask & IB_QP_PKEY_INDEX) != 0;
	change.port = attr->port_num;
	change.remote_qpn = attr->dest_qp_num;
	change.receive_psn = attr->rq_psn;
	change.send_psn = attr->sq_psn;
	change.path_mtu_code = attr->path_mtu;
	change.rnr_timer = attr->min_rnr_timer;
	change.retry_count = attr->retry_cnt;
	change.rnr_retry_count = attr->rnr_retry;
	if ((mask & IB_QP_AV) != 0)
		softib_fill_address(&change.address, &attr->ah_attr);
	error = softib_rs_modify_pair(softib, qp->handle, &change);
	if (error == 0)
		softib_merge(&qp->attr, attr, mask);
	return (-error);
}

static int
softib_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask __unused,
    struct ib_qp_init_attr *init)
{
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);

	*attr = qp->attr;
	attr->qp_state = softib_rs_pair_state(
	    softib_device_of(ib->device)->softib, qp->handle);
	attr->cur_qp_state = attr->qp_state;
	*init = qp->init;
	return (0);
}

static int
softib_attach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);

	return (-softib_rs_attach(softib_device_of(ib->device)->softib,
	    qp->handle, gid->raw, lid));
}

static int
softib_detach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);

	return (-softib_rs_detach(softib_device_of(ib->device)->softib,
	    qp->handle, gid->raw, lid));
}

void
softib_set_pair_ops(struct ib_device *ib)
{

	ib->create_qp = softib_create_qp;
	ib->destroy_qp = softib_destroy_qp;
	ib->modify_qp = softib_modify_qp;
	ib->query_qp = softib_query_qp;
	ib->attach_mcast = softib_attach_mcast;
	ib->detach_mcast = softib_detach_mcast;
}
