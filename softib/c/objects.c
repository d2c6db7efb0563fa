/*
 * Protection domains, memory regions, address handles, completion queues and
 * shared receive queues.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

/*
 * Waits until the thread is not telling anybody about an object. The caller has
 * seen to it that it will not again. No handler ends the object that it is told
 * about: ibcore's users do that from threads of their own.
 */
void
softib_wait_for_calls(struct softib *softib, const void *context)
{

	while (softib_rs_is_calling(softib, context))
		pause("softib", 1);
}

void
softib_fill_address(struct softib_address *address,
    const struct ib_ah_attr *attr)
{

	memset(address, 0, sizeof(*address));
	address->lid = attr->dlid;
	address->sl = attr->sl;
	address->rate_code = attr->static_rate;
	if ((attr->ah_flags & IB_AH_GRH) != 0) {
		address->has_grh = 1;
		memcpy(address->gid, attr->grh.dgid.raw, sizeof(address->gid));
		address->flow_label = attr->grh.flow_label;
		address->hop_limit = attr->grh.hop_limit;
		address->traffic_class = attr->grh.traffic_class;
	}
}

static int
softib_alloc_pd(struct ib_pd *pd __unused, struct ib_udata *udata __unused)
{

	return (0);
}

static void
softib_dealloc_pd(struct ib_pd *pd __unused, struct ib_udata *udata __unused)
{
}

/* ibcore wants these, and uses them for devices without a local DMA key. */
static struct ib_mr *
softib_get_dma_mr(struct ib_pd *pd __unused, int access __unused)
{

	return (malloc(sizeof(struct ib_mr), M_SOFTIB, M_WAITOK | M_ZERO));
}

static int
softib_dereg_mr(struct ib_mr *mr, struct ib_udata *udata __unused)
{

	free(mr, M_SOFTIB);
	return (0);
}

static int
softib_create_ah(struct ib_ah *ib, struct ib_ah_attr *attr, u32 flags __unused,
    struct ib_udata *udata __unused)
{
	struct softib_device *device = softib_device_of(ib->device);
	struct softib_ah *ah = container_of(ib, struct softib_ah, ib);
	struct softib_address address;

	ah->attr = *attr;
	softib_fill_address(&address, attr);
	return (-softib_rs_create_address(device->softib, device->index,
	    attr->port_num, &address, &ah->handle));
}

/* ib_mad finds the request of an answer by it. */
static int
softib_query_ah(struct ib_ah *ib, struct ib_ah_attr *attr)
{

	*attr = container_of(ib, struct softib_ah, ib)->attr;
	return (0);
}

static void
softib_destroy_ah(struct ib_ah *ib, u32 flags __unused)
{
	struct softib_ah *ah = container_of(ib, struct softib_ah, ib);

	softib_rs_destroy_address(softib_device_of(ib->device)->softib,
	    ah->handle);
}

static int
softib_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
    struct ib_udata *udata __unused)
{
	struct softib_device *device = softib_device_of(ib->device);
	struct softib_cq *cq = container_of(ib, struct softib_cq, ib);

	if (attr->cqe == 0 || attr->cqe > device->ib.attrs.max_cqe)
		return (-EINVAL);
	ib->cqe = attr->cqe;
	return (-softib_rs_create_queue(device->softib, device->index,
	    attr->cqe, cq, &cq->handle));
}

static void
softib_destroy_cq(struct ib_cq *ib, struct ib_udata *udata __unused)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_cq *cq = container_of(ib, struct softib_cq, ib);
	int error;

	error = softib_rs_destroy_queue(softib, cq->handle);
	KASSERT(error == 0, ("a completion queue is in use: %d", error));
	(void)error;
	softib_wait_for_calls(softib, cq);
}

static int
softib_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init,
    struct ib_udata *udata __unused)
{
	struct softib_device *device = softib_device_of(ib->device);
	struct softib_srq *srq = container_of(ib, struct softib_srq, ib);
	const struct ib_srq_attr *attr = &init->attr;

	if (init->srq_type != IB_SRQT_BASIC)
		return (-EOPNOTSUPP);
	if (attr->max_wr == 0 || attr->max_wr > device->ib.attrs.max_srq_wr ||
	    attr->max_sge > device->ib.attrs.max_srq_sge)
		return (-EINVAL);
	srq->attr = *attr;
	/*
	 * One segment more than asked for: the stock ipoib(4) posts one more,
	 * because it needs room for 20 bytes beyond max_sge pages.
	 */
	return (-softib_rs_create_shared(device->softib, device->index,
	    attr->max_wr, attr->max_sge + 1, srq, &srq->handle));
}

static int
softib_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr,
    enum ib_srq_attr_mask mask, struct ib_udata *udata __unused)
{
	struct softib_srq *srq = container_of(ib, struct softib_srq, ib);
	int error;

	/* IB_DEVICE_SRQ_RESIZE is not claimed. */
	if ((mask & ~IB_SRQ_LIMIT) != 0)
		return (-EINVAL);
	error = softib_rs_limit_shared(softib_device_of(ib->device)->softib,
	    srq->handle, attr->srq_limit);
	if (error == 0)
		srq->attr.srq_limit = attr->srq_limit;
	return (-error);
}

static int
softib_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{

	*attr = container_of(ib, struct softib_srq, ib)->attr;
	return (0);
}

static void
softib_destroy_srq(struct ib_srq *ib, struct ib_udata *udata __unused)
{
	struct softib *softib = softib_device_of(ib->device)->softib;
	struct softib_srq *srq = container_of(ib, struct softib_srq, ib);
	int error;

	error = softib_rs_destroy_shared(softib, srq->handle);
	KASSERT(error == 0, ("a shared receive queue is in use: %d", error));
	(void)error;
	softib_wait_for_calls(softib, srq);
}

void
softib_set_object_ops(struct ib_device *ib)
{

	ib->alloc_pd = softib_alloc_pd;
	ib->dealloc_pd = softib_dealloc_pd;
	ib->get_dma_mr = softib_get_dma_mr;
	ib->dereg_mr = softib_dereg_mr;
	ib->create_ah = softib_create_ah;
	ib->query_ah = softib_query_ah;
	ib->destroy_ah = softib_destroy_ah;
	ib->create_cq = softib_create_cq;
	ib->destroy_cq = softib_destroy_cq;
	ib->create_srq = softib_create_srq;
	ib->modify_srq = softib_modify_srq;
	ib->query_srq = softib_query_srq;
	ib->destroy_srq = softib_destroy_srq;
}
