/*
 * Connections (rdma/ib_cm.h).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>

#include <rdma/ib_cm.h>

#include "internal.h"

static int	cm_event(struct ib_cm_id *cm_id, struct ib_cm_event *event);
static int	cm_requested(struct ib_cm_id *cm_id,
		    struct ib_cm_event *event);

int
rust_helper_cm_create(struct ib_device *device, uint64_t id,
    struct ib_cm_id **cm_id)
{
	struct ib_cm_id *made;

	made = ib_create_cm_id(device, cm_event, (void *)(uintptr_t)id);
	if (IS_ERR(made))
		return (kpi_errno(PTR_ERR(made)));
	*cm_id = made;
	return (0);
}

void
rust_helper_cm_destroy(struct ib_cm_id *cm_id)
{

	ib_destroy_cm_id(cm_id);
}

void
rust_helper_cm_set_id(struct ib_cm_id *cm_id, uint64_t id)
{

	cm_id->context = (void *)(uintptr_t)id;
}

/*
 * Runs in a thread of the communication manager, one at a time for an id.
 */
static int
cm_event(struct ib_cm_id *cm_id, struct ib_cm_event *event)
{
	struct kpi_cm_event told;

	memset(&told, 0, sizeof(told));
	switch (event->event) {
	case IB_CM_REQ_RECEIVED:
		return (cm_requested(cm_id, event));
	case IB_CM_REP_RECEIVED:
		told.type = KPI_CM_REPLIED;
		memcpy(told.private_data, event->private_data,
		    sizeof(told.private_data));
		break;
	case IB_CM_RTU_RECEIVED:
	case IB_CM_USER_ESTABLISHED:
		told.type = KPI_CM_ESTABLISHED;
		break;
	case IB_CM_REJ_RECEIVED:
		told.type = KPI_CM_REJECTED;
		told.reject_reason = event->param.rej_rcvd.reason;
		break;
	case IB_CM_REQ_ERROR:
	case IB_CM_REP_ERROR:
		told.type = KPI_CM_UNSENT;
		if (event->param.send_status == IB_WC_RESP_TIMEOUT_ERR)
			told.type = KPI_CM_TIMED_OUT;
		break;
	case IB_CM_DREQ_RECEIVED:
		told.type = KPI_CM_DISCONNECT_REQUESTED;
		break;
	case IB_CM_DREP_RECEIVED:
	case IB_CM_DREQ_ERROR:
		told.type = KPI_CM_DISCONNECTED;
		break;
	case IB_CM_TIMEWAIT_EXIT:
		told.type = KPI_CM_TIMEWAIT_EXITED;
		break;
	case IB_CM_SIDR_REQ_RECEIVED:
		/* Not for this service: the answer is that of its end. */
		return (-EINVAL);
	default:
		/* Nothing changes. */
		return (0);
	}
	return (kpi_ofed_callbacks->cm_event((uintptr_t)cm_id->context, cm_id,
	    &told));
}

/*
 * The id is new and has the context of the listener.
 */
static int
cm_requested(struct ib_cm_id *cm_id, struct ib_cm_event *event)
{
	const struct ib_cm_req_event_param *param;
	struct kpi_cm_request request;

	param = &event->param.req_rcvd;
	memset(&request, 0, sizeof(request));
	memcpy(request.gid, param->primary_path->dgid.raw,
	    sizeof(request.gid));
	memcpy(request.private_data, event->private_data,
	    sizeof(request.private_data));
	request.qpn = param->remote_qpn;
	request.pkey = be16_to_cpu(param->primary_path->pkey);
	request.port = param->port;
	request.mtu = param->primary_path->mtu;
	if (param->qp_type != IB_QPT_RC) {
		(void)ib_send_cm_rej(cm_id, IB_CM_REJ_INVALID_TRANSPORT_TYPE,
		    NULL, 0, NULL, 0);
		return (-EINVAL);
	}
	/* Not ENOMEM, which would keep the peer waiting. */
	return (kpi_ofed_callbacks->cm_requested((uintptr_t)cm_id->context,
	    cm_id, &request) != 0 ? -EINVAL : 0);
}

int
rust_helper_cm_listen(struct ib_cm_id *cm_id, uint64_t service)
{

	return (kpi_errno(ib_cm_listen(cm_id, cpu_to_be64(service), 0)));
}

int
rust_helper_cm_connect(struct ib_cm_id *cm_id,
    const struct kpi_cm_connect *connect)
{
	const struct kpi_path *path;
	struct ib_cm_req_param param;
	struct ib_sa_path_rec record;

	path = &connect->path;
	memset(&record, 0, sizeof(record));
	memcpy(record.dgid.raw, path->destination, sizeof(path->destination));
	memcpy(record.sgid.raw, path->source, sizeof(path->source));
	record.dlid = cpu_to_be16(path->destination_lid);
	record.slid = cpu_to_be16(path->source_lid);
	record.flow_label = cpu_to_be32(path->flow_label);
	record.hop_limit = path->hop_limit;
	record.traffic_class = path->traffic_class;
	record.reversible = 1;
	record.numb_path = 1;
	record.pkey = cpu_to_be16(path->pkey);
	record.sl = path->sl;
	record.mtu_selector = IB_SA_EQ;
	record.mtu = path->mtu;
	record.rate_selector = IB_SA_EQ;
	record.rate = path->rate;
	record.packet_life_time_selector = IB_SA_EQ;
	record.packet_life_time = path->packet_life_time;
	record.gid_type = IB_GID_TYPE_IB;

	memset(&param, 0, sizeof(param));
	param.primary_path = &record;
	param.service_id = cpu_to_be64(connect->service);
	param.qp_num = connect->qpn;
	param.qp_type = IB_QPT_RC;
	param.starting_psn = connect->starting_psn;
	param.private_data = connect->private_data;
	param.private_data_len = sizeof(connect->private_data);
	param.remote_cm_response_timeout = connect->response_timeout;
	param.local_cm_response_timeout = connect->response_timeout;
	param.max_cm_retries = connect->max_retries;
	param.srq = connect->has_srq;
	/* RFC 4755 3.7 advises against retries: what is lost is lost. */
	param.retry_count = 0;
	param.rnr_retry_count = 0;
	return (kpi_errno(ib_send_cm_req(cm_id, &param)));
}

int
rust_helper_cm_modify_qp(struct ib_cm_id *cm_id, struct ib_qp *qp,
    uint32_t state, const uint32_t *receive_psn)
{
	struct ib_qp_attr attr;
	int error, mask;

	memset(&attr, 0, sizeof(attr));
	switch (state) {
	case KPI_QPS_INIT:
		attr.qp_state = IB_QPS_INIT;
		break;
	case KPI_QPS_RTR:
		attr.qp_state = IB_QPS_RTR;
		break;
	case KPI_QPS_RTS:
		attr.qp_state = IB_QPS_RTS;
		break;
	default:
		return (EINVAL);
	}
	error = ib_cm_init_qp_attr(cm_id, &attr, &mask);
	if (error != 0)
		return (kpi_errno(error));
	/* Sends only: peers get no access to memory. */
	attr.qp_access_flags = IB_ACCESS_LOCAL_WRITE;
	if (receive_psn != NULL)
		attr.rq_psn = *receive_psn;
	return (kpi_errno(ib_modify_qp(qp, &attr, mask)));
}

int
rust_helper_cm_establish(struct ib_cm_id *cm_id)
{

	return (kpi_errno(ib_send_cm_rtu(cm_id, NULL, 0)));
}

int
rust_helper_cm_reply(struct ib_cm_id *cm_id, const struct kpi_cm_reply *reply)
{
	struct ib_cm_rep_param param;

	memset(&param, 0, sizeof(param));
	param.qp_num = reply->qpn;
	param.starting_psn = reply->starting_psn;
	param.private_data = reply->private_data;
	param.private_data_len = sizeof(reply->private_data);
	param.rnr_retry_count = 0;
	param.srq = reply->has_srq;
	return (kpi_errno(ib_send_cm_rep(cm_id, &param)));
}

int
rust_helper_cm_reject(struct ib_cm_id *cm_id, uint32_t reason)
{

	return (kpi_errno(ib_send_cm_rej(cm_id, reason, NULL, 0, NULL, 0)));
}

int
rust_helper_cm_answer_disconnect(struct ib_cm_id *cm_id)
{

	return (kpi_errno(ib_send_cm_drep(cm_id, NULL, 0)));
}
