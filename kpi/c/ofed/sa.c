/*
 * The subnet administrator (rdma/ib_sa.h).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>

#include <rdma/ib_sa.h>

#include "internal.h"

static void	path_answered(int status, struct ib_sa_path_rec *record,
		    void *context);
static void	capabilities_answered(int status,
		    struct ib_class_port_info *info, void *context);
static int	group_answered(int status, struct ib_sa_multicast *membership);

/* A context has room for a number. */
_Static_assert(sizeof(void *) == sizeof(uint64_t), "64 bits");

static void *
to_context(uint64_t id)
{

	return ((void *)(uintptr_t)id);
}

static uint64_t
to_id(void *context)
{

	return ((uintptr_t)context);
}

int
rust_helper_sa_query_path(struct ib_device *device, uint8_t port, uint64_t id,
    const struct kpi_path *path, uint32_t timeout_ms, int *query_id,
    struct ib_sa_query **query)
{
	struct ib_sa_path_rec record;
	int error;

	memset(&record, 0, sizeof(record));
	memcpy(record.dgid.raw, path->destination, sizeof(path->destination));
	memcpy(record.sgid.raw, path->source, sizeof(path->source));
	record.pkey = cpu_to_be16(path->pkey);
	record.numb_path = 1;
	record.reversible = 1;
	error = ib_sa_path_rec_get(&kpi_sa_client, device, port, &record,
	    IB_SA_PATH_REC_DGID | IB_SA_PATH_REC_SGID | IB_SA_PATH_REC_PKEY |
	    IB_SA_PATH_REC_NUMB_PATH | IB_SA_PATH_REC_REVERSIBLE, timeout_ms,
	    GFP_KERNEL, path_answered, to_context(id), query);
	if (error < 0)
		return (kpi_errno(error));
	*query_id = error;
	return (0);
}

static void
path_answered(int status, struct ib_sa_path_rec *record, void *context)
{
	struct kpi_path path;

	if (status != 0 || record == NULL) {
		kpi_ofed_callbacks->path_answered(to_id(context),
		    status != 0 ? kpi_errno(status) : EIO, NULL);
		return;
	}
	memset(&path, 0, sizeof(path));
	memcpy(path.destination, record->dgid.raw, sizeof(path.destination));
	memcpy(path.source, record->sgid.raw, sizeof(path.source));
	path.flow_label = be32_to_cpu(record->flow_label);
	path.destination_lid = be16_to_cpu(record->dlid);
	path.source_lid = be16_to_cpu(record->slid);
	path.pkey = be16_to_cpu(record->pkey);
	path.sl = record->sl;
	path.mtu = record->mtu;
	path.rate = record->rate;
	path.hop_limit = record->hop_limit;
	path.traffic_class = record->traffic_class;
	path.packet_life_time = record->packet_life_time;
	kpi_ofed_callbacks->path_answered(to_id(context), 0, &path);
}

int
rust_helper_sa_query_capabilities(struct ib_device *device, uint8_t port,
    uint64_t id, uint32_t timeout_ms, int *query_id,
    struct ib_sa_query **query)
{
	int error;

	error = ib_sa_classport_info_rec_query(&kpi_sa_client, device, port,
	    timeout_ms, GFP_KERNEL, capabilities_answered, to_context(id),
	    query);
	if (error < 0)
		return (kpi_errno(error));
	*query_id = error;
	return (0);
}

static void
capabilities_answered(int status, struct ib_class_port_info *info,
    void *context)
{
	uint32_t mask2;

	mask2 = 0;
	if (status == 0) {
		if (info == NULL)
			status = -EIO;
		else
			mask2 = ib_get_cpi_capmask2(info);
	}
	kpi_ofed_callbacks->capabilities_answered(to_id(context),
	    kpi_errno(status), mask2);
}

void
rust_helper_sa_cancel(int query_id, struct ib_sa_query *query)
{

	ib_sa_cancel_query(query_id, query);
}

/*
 * What exists is joined with the components that must be there; what is to be
 * created is described in full (IBA 15.2.5.17).
 */
int
rust_helper_sa_join(struct ib_device *device, uint8_t port, uint64_t id,
    const struct kpi_group *group, struct ib_sa_multicast **membership)
{
	struct ib_sa_mcmember_rec record;
	struct ib_sa_multicast *made;
	ib_sa_comp_mask mask;

	memset(&record, 0, sizeof(record));
	memcpy(record.mgid.raw, group->mgid, sizeof(group->mgid));
	memcpy(record.port_gid.raw, group->port_gid, sizeof(group->port_gid));
	record.pkey = cpu_to_be16(group->pkey);
	record.join_state = group->join_state;
	mask = IB_SA_MCMEMBER_REC_MGID | IB_SA_MCMEMBER_REC_PORT_GID |
	    IB_SA_MCMEMBER_REC_PKEY | IB_SA_MCMEMBER_REC_JOIN_STATE;
	if (group->creates) {
		record.qkey = cpu_to_be32(group->qkey);
		record.mtu_selector = IB_SA_EQ;
		record.mtu = group->mtu;
		record.rate_selector = IB_SA_EQ;
		record.rate = group->rate;
		record.sl = group->sl;
		record.flow_label = cpu_to_be32(group->flow_label);
		record.hop_limit = group->hop_limit;
		record.traffic_class = group->traffic_class;
		mask |= IB_SA_MCMEMBER_REC_QKEY |
		    IB_SA_MCMEMBER_REC_MTU_SELECTOR | IB_SA_MCMEMBER_REC_MTU |
		    IB_SA_MCMEMBER_REC_RATE_SELECTOR |
		    IB_SA_MCMEMBER_REC_RATE | IB_SA_MCMEMBER_REC_SL |
		    IB_SA_MCMEMBER_REC_FLOW_LABEL |
		    IB_SA_MCMEMBER_REC_HOP_LIMIT |
		    IB_SA_MCMEMBER_REC_TRAFFIC_CLASS;
	}
	made = ib_sa_join_multicast(&kpi_sa_client, device, port, &record,
	    mask, GFP_KERNEL, group_answered, to_context(id));
	if (IS_ERR(made))
		return (kpi_errno(PTR_ERR(made)));
	*membership = made;
	return (0);
}

static int
group_answered(int status, struct ib_sa_multicast *membership)
{
	const struct ib_sa_mcmember_rec *record;
	struct kpi_group group;

	record = &membership->rec;
	memset(&group, 0, sizeof(group));
	memcpy(group.mgid, record->mgid.raw, sizeof(group.mgid));
	memcpy(group.port_gid, record->port_gid.raw, sizeof(group.port_gid));
	group.qkey = be32_to_cpu(record->qkey);
	group.flow_label = be32_to_cpu(record->flow_label);
	group.mlid = be16_to_cpu(record->mlid);
	group.pkey = be16_to_cpu(record->pkey);
	group.mtu = record->mtu;
	group.rate = record->rate;
	group.sl = record->sl;
	group.packet_life_time = record->packet_life_time;
	group.hop_limit = record->hop_limit;
	group.traffic_class = record->traffic_class;
	group.join_state = record->join_state;
	return (kpi_ofed_callbacks->group_answered(to_id(membership->context),
	    kpi_errno(status), membership, &group));
}

void
rust_helper_sa_leave(struct ib_sa_multicast *membership)
{

	ib_sa_free_multicast(membership);
}
