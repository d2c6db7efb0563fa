/*
 * Performance management: the counters of a port as management datagrams ask
 * for them (IBA 16.1), and as sys.class.infiniband shows them. Counters that
 * are not kept are 0.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>

/* Of 16 and 32 bits, which stay at their largest value (IBA 16.1.3.5). */
static __be16
softib_counter16(uint64_t value)
{

	return (cpu_to_be16(MIN(value, 0xffff)));
}

static __be32
softib_counter32(uint64_t value)
{

	return (cpu_to_be32(MIN(value, 0xffffffff)));
}

static void
softib_fill_class_port_info(struct ib_pma_mad *mad)
{
	struct ib_class_port_info *info = (void *)mad->data;

	info->base_version = IB_MGMT_BASE_VERSION;
	info->class_version = 1;
	/* Counters of 64 bits, without those for unicast and multicast. */
	info->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH_NOIETF;
}

static void
softib_fill_counters(struct ib_pma_mad *mad,
    const struct softib_counters *counters)
{
	struct ib_pma_portcounters *out = (void *)mad->data;

	out->port_rcv_errors = softib_counter16(counters->receive_errors);
	out->port_xmit_discards = softib_counter16(counters->send_discards);
	out->port_xmit_packets = softib_counter32(counters->sent);
	out->port_rcv_packets = softib_counter32(counters->received);
}

static void
softib_fill_extended(struct ib_pma_mad *mad,
    const struct softib_counters *counters)
{
	struct ib_pma_portcounters_ext *out = (void *)mad->data;

	out->port_xmit_packets = cpu_to_be64(counters->sent);
	out->port_rcv_packets = cpu_to_be64(counters->received);
}

/*
 * Answers what the adapter itself is asked; the rest is for ibcore's agents.
 */
static int
softib_process_mad(struct ib_device *ib, int flags __unused, u8 number,
    const struct ib_wc *in_wc __unused, const struct ib_grh *in_grh __unused,
    const struct ib_mad_hdr *in, size_t in_size, struct ib_mad_hdr *out,
    size_t *out_size, u16 *pkey_index __unused)
{
	struct softib_device *device = softib_device_of(ib);
	struct ib_pma_mad *mad = (struct ib_pma_mad *)out;
	struct softib_counters counters;

	if (in->mgmt_class != IB_MGMT_CLASS_PERF_MGMT ||
	    in->method != IB_MGMT_METHOD_GET || in_size < sizeof(*mad) ||
	    *out_size < sizeof(*mad))
		return (IB_MAD_RESULT_SUCCESS);

	if (softib_rs_port_counters(device->softib, device->index, number,
	    &counters) != 0)
		return (IB_MAD_RESULT_FAILURE);
	memset(mad, 0, sizeof(*mad));
	*out = *in;
	/* Which port the counters are of is repeated. */
	mad->data[1] = ((const struct ib_pma_mad *)in)->data[1];
	out->method = IB_MGMT_METHOD_GET_RESP;
	if (in->attr_id == IB_PMA_CLASS_PORT_INFO)
		softib_fill_class_port_info(mad);
	else if (in->attr_id == IB_PMA_PORT_COUNTERS)
		softib_fill_counters(mad, &counters);
	else if (in->attr_id == IB_PMA_PORT_COUNTERS_EXT)
		softib_fill_extended(mad, &counters);
	else
		out->status =
		    cpu_to_be16(IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	return (IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY);
}

void
softib_set_perf_ops(struct ib_device *ib)
{

	ib->process_mad = softib_process_mad;
}
