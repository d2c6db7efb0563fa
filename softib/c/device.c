/*
 * An adapter as ibcore sees it, and its ports.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

#include <rdma/ib_mad.h>

#include <linux/device.h>
#include <linux/module.h>

/* PortInfo:PortPhysicalState (IBA 14.2.5.6). */
#define	SOFTIB_PHYS_POLLING	2
#define	SOFTIB_PHYS_LINK_UP	5

/* Of the longest packet of a connection that fabric/ has buffers for. */
#define	SOFTIB_MESSAGE_MAX	65536

static int
softib_query_device(struct ib_device *ib, struct ib_device_attr *attr,
    struct ib_udata *udata __unused)
{

	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = 1;
	attr->sys_image_guid = ib->node_guid;
	attr->max_mr_size = ~0ULL;
	attr->page_size_cap = PAGE_SIZE;
	/* No segmentation: what is sent is what arrives. */
	attr->device_cap_flags = IB_DEVICE_LOCAL_DMA_LKEY |
	    IB_DEVICE_PORT_ACTIVE_EVENT | IB_DEVICE_SYS_IMAGE_GUID;
	if (softib_checksums != 0)
		attr->device_cap_flags |= IB_DEVICE_UD_IP_CSUM;
	attr->max_qp = 4096;
	attr->max_qp_wr = 16384;
	attr->max_sge = 32;
	attr->max_sge_rd = 1;
	attr->max_cq = 8192;
	attr->max_cqe = 65536;
	attr->max_pd = 4096;
	attr->max_mcast_grp = 1024;
	attr->max_mcast_qp_attach = 1024;
	attr->max_total_mcast_qp_attach = 4096;
	attr->max_ah = 65536;
	attr->max_srq = 1024;
	attr->max_srq_wr = 16384;
	attr->max_srq_sge = softib_srq_sge_max;
	attr->max_pkeys = SOFTIB_PKEYS;
	/* 4.096 us times two to its power (IBA 11.2.1.2). */
	attr->local_ca_ack_delay = 15;
	return (0);
}

static int
softib_query_port(struct ib_device *ib, u8 number, struct ib_port_attr *attr)
{
	struct softib_device *device = softib_device_of(ib);
	struct softib_port port;
	int error;

	error = softib_rs_query_port(device->softib, device->index, number,
	    &port);
	if (error != 0)
		return (-error);
	attr->state = port.is_active ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = port.is_active ? SOFTIB_PHYS_LINK_UP :
	    SOFTIB_PHYS_POLLING;
	attr->max_mtu = port.mtu_code;
	attr->active_mtu = port.mtu_code;
	attr->gid_tbl_len = SOFTIB_GIDS;
	attr->port_cap_flags = IB_PORT_CLIENT_REG_SUP;
	attr->max_msg_sz = SOFTIB_MESSAGE_MAX;
	attr->pkey_tbl_len = SOFTIB_PKEYS;
	attr->lid = port.lid;
	attr->sm_lid = port.sm_lid;
	attr->sm_sl = port.sm_sl;
	attr->max_vl_num = 1;
	/* Four lanes of 2.5 Gb/s. */
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_SDR;
	return (0);
}

static enum rdma_link_layer
softib_link_layer(struct ib_device *ib __unused, u8 number __unused)
{

	return (IB_LINK_LAYER_INFINIBAND);
}

static int
softib_query_gid(struct ib_device *ib, u8 number, int index, union ib_gid *gid)
{
	struct softib_device *device = softib_device_of(ib);
	struct softib_port port;
	int error;

	if (index < 0 || index >= SOFTIB_GIDS)
		return (-EINVAL);
	error = softib_rs_query_port(device->softib, device->index, number,
	    &port);
	if (error != 0)
		return (-error);
	memcpy(gid->raw, port.gid, sizeof(gid->raw));
	return (0);
}

static int
softib_query_pkey(struct ib_device *ib, u8 number, u16 index, u16 *pkey)
{
	struct softib_device *device = softib_device_of(ib);

	if (index >= SOFTIB_PKEYS)
		return (-EINVAL);
	*pkey = softib_rs_query_pkey(device->softib, device->index, number,
	    index);
	return (0);
}

/*
 * ib_cm announces itself in the port's capabilities and gives up on a device
 * that refuses. There is no subnet manager that would read them.
 */
static int
softib_modify_port(struct ib_device *ib __unused, u8 number __unused,
    int mask __unused, struct ib_port_modify *modify __unused)
{

	return (0);
}

static int
softib_port_immutable(struct ib_device *ib __unused, u8 number __unused,
    struct ib_port_immutable *immutable)
{

	immutable->pkey_tbl_len = SOFTIB_PKEYS;
	immutable->gid_tbl_len = SOFTIB_GIDS;
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return (0);
}

int
softib_attach(struct softib *softib, uint32_t index,
    struct softib_device **result)
{
	struct softib_device *device;
	struct ib_device *ib;
	int error;

	device = (struct softib_device *)ib_alloc_device(sizeof(*device));
	if (device == NULL)
		return (ENOMEM);
	device->softib = softib;
	device->index = index;

	ib = &device->ib;
	strlcpy(ib->name, "softib%d", sizeof(ib->name));
	snprintf(ib->node_desc, sizeof(ib->node_desc), "softib%u", index);
	ib->owner = THIS_MODULE;
	ib->node_type = RDMA_NODE_IB_CA;
	ib->node_guid = cpu_to_be64(softib_rs_guid(softib, index));
	ib->phys_port_cnt = SOFTIB_PORTS;
	ib->num_comp_vectors = 1;
	/* A parent that every load finds again, since it never goes away. */
	ib->dma_device = &linux_root_device;
	ib->dma_ops = &softib_dma_ops;

	ib->ops.driver_id = RDMA_DRIVER_UNKNOWN;
	ib->ops.size_ib_ah = sizeof(struct softib_ah);
	ib->ops.size_ib_cq = sizeof(struct softib_cq);
	ib->ops.size_ib_pd = sizeof(struct softib_pd);
	ib->ops.size_ib_srq = sizeof(struct softib_srq);

	ib->query_device = softib_query_device;
	ib->query_port = softib_query_port;
	ib->get_link_layer = softib_link_layer;
	ib->query_gid = softib_query_gid;
	ib->query_pkey = softib_query_pkey;
	ib->modify_port = softib_modify_port;
	ib->get_port_immutable = softib_port_immutable;
	softib_set_object_ops(ib);
	softib_set_pair_ops(ib);
	softib_set_post_ops(ib);
	softib_set_poll_ops(ib);
	softib_set_perf_ops(ib);

	error = -ib_register_device(ib, NULL);
	if (error != 0) {
		ib_dealloc_device(ib);
		return (error);
	}
	softib_rs_set_context(softib, index, device);
	*result = device;
	return (0);
}

void
softib_detach(struct softib_device *device)
{

	/* From here on nobody hears of this adapter's ports. */
	softib_rs_set_context(device->softib, device->index, NULL);
	softib_wait_for_calls(device->softib, device);
	ib_unregister_device(&device->ib);
	ib_dealloc_device(&device->ib);
}
