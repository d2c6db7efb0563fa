/*
 * Posting work. Callers hold locks and may be inside a network epoch: nothing
 * here sleeps.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

/* Lists of segments are handed to Rust as they are. */
_Static_assert(sizeof(struct softib_segment) == sizeof(struct ib_sge), "size");
_Static_assert(offsetof(struct softib_segment, address) ==
    offsetof(struct ib_sge, addr), "layout");
_Static_assert(offsetof(struct softib_segment, length) ==
    offsetof(struct ib_sge, length), "layout");

static int
softib_post_one_send(struct softib *softib, struct softib_qp *qp,
    const struct ib_send_wr *wr)
{
	struct softib_send send = { 0 };
	const struct ib_ud_wr *ud;

	/* No RDMA: whoever asks is told. */
	if (wr->opcode != IB_WR_SEND)
		return (EINVAL);
	send.wr_id = wr->wr_id;
	send.segments = (const struct softib_segment *)wr->sg_list;
	send.segment_count = wr->num_sge;
	send.is_signalled = (wr->send_flags & IB_SEND_SIGNALED) != 0;
	if (qp->ib.qp_type != IB_QPT_RC) {
		ud = container_of(wr, const struct ib_ud_wr, wr);
		send.address_handle = container_of(ud->ah, struct softib_ah,
		    ib)->handle;
		send.remote_qpn = ud->remote_qpn;
		send.qkey = ud->remote_qkey;
		send.pkey_index = ud->pkey_index;
		send.wants_checksums =
		    (wr->send_flags & IB_SEND_IP_CSUM) != 0;
	}
	return (softib_rs_post_send(softib, qp->handle, &send));
}

static int
softib_post_send(struct ib_qp *ib, const struct ib_send_wr *wr,
    const struct ib_send_wr **bad_wr)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);
	int error;

	for (; wr != NULL; wr = wr->next) {
		error = softib_post_one_send(softib, qp, wr);
		if (error != 0) {
			*bad_wr = wr;
			return (-error);
		}
	}
	return (0);
}

static void
softib_fill_receive(struct softib_receive *receive, const struct ib_recv_wr *wr)
{

	receive->wr_id = wr->wr_id;
	receive->segments = (const struct softib_segment *)wr->sg_list;
	receive->segment_count = wr->num_sge;
	receive->reserved = 0;
}

static int
softib_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr,
    const struct ib_recv_wr **bad_wr)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_qp *qp = container_of(ib, struct softib_qp, ib);
	struct softib_receive receive;
	int error;

	for (; wr != NULL; wr = wr->next) {
		softib_fill_receive(&receive, wr);
		error = softib_rs_post_receive(softib, qp->handle, &receive);
		if (error != 0) {
			*bad_wr = wr;
			return (-error);
		}
	}
	return (0);
}

static int
softib_post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr,
    const struct ib_recv_wr **bad_wr)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_srq *srq = container_of(ib, struct softib_srq, ib);
	struct softib_receive receive;
	int error;

	for (; wr != NULL; wr = wr->next) {
		softib_fill_receive(&receive, wr);
		error = softib_rs_post_shared(softib, srq->handle, &receive);
		if (error != 0) {
			*bad_wr = wr;
			return (-error);
		}
	}
	return (0);
}

void
softib_set_post_ops(struct ib_device *ib)
{

	ib->post_send = softib_post_send;
	ib->post_recv = softib_post_recv;
	ib->post_srq_recv = softib_post_srq_recv;
}
