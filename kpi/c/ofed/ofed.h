/*
 * What Rust knows of the InfiniBand stack: functions of the files beside this
 * one, plain structures, and pointers that only these functions look behind.
 * No header of ofed or LinuxKPI is needed to read it.
 *
 * Errors are numbers of errno(2), positive; 0 is success.  "May sleep" means
 * that the caller holds no mutex and is in no epoch.
 */
#ifndef _KPI_OFED_H_
#define	_KPI_OFED_H_

#include <sys/types.h>

struct ib_ah;
struct ib_cm_id;
struct ib_device;
struct ib_pd;
struct ib_qp;
struct ib_sa_multicast;
struct ib_sa_query;
struct ib_srq;
struct ifnet;
struct kpi_cq;
struct kpi_port_watch;
struct mbuf;

/* Segments that one work request has at most. */
#define	KPI_SEGMENTS_MAX	18
/* A GID has this many bytes, in network order. */
#define	KPI_GID_LEN		16
/* Private data of a REQ (IBA 12.6.5) and a REP (12.6.8) that are handed on. */
#define	KPI_PRIVATE_LEN		8

/* client.c */

struct kpi_device_attributes {
	uint64_t	node_guid;	/* In host order. */
	uint32_t	max_qp_wr;
	uint32_t	max_send_sge;
	uint32_t	max_cqe;
	uint32_t	max_srq_wr;	/* 0 without shared receive queues. */
	uint32_t	max_srq_sge;
	uint32_t	flags;
#define	KPI_DEVICE_UD_IP_CSUM		0x01
#define	KPI_DEVICE_LOCAL_DMA_LKEY	0x02
#define	KPI_DEVICE_BLOCK_LOOPBACK	0x04
#define	KPI_DEVICE_KNOWS_EPOCH		0x08
	uint8_t		first_port;
	uint8_t		last_port;
	uint8_t		reserved[6];
};

struct kpi_port_attributes {
	uint8_t		gid[KPI_GID_LEN];	/* At index 0. */
	uint16_t	lid;			/* 0 if there is none. */
	uint8_t		max_mtu;		/* A code of IBA 14.2.5.6. */
	uint8_t		is_active;
	uint32_t	max_message_bytes;
};

enum kpi_port_event {
	KPI_PORT_ACTIVE = 1,
	KPI_PORT_ERROR,
	KPI_PORT_LID_CHANGED,
	KPI_PORT_PKEY_CHANGED,
	KPI_PORT_SM_CHANGED,
	KPI_PORT_CLIENT_REREGISTER,
	KPI_PORT_GID_CHANGED,
};

/* verbs.c */

/* Laid out like struct ib_sge. */
struct kpi_segment {
	uint64_t	address;
	uint32_t	bytes;
	uint32_t	lkey;
};

/* What a queue pair says of itself in its completions and events. */
struct kpi_qp_context {
	uint32_t	number;
};

enum kpi_status {
	KPI_STATUS_SUCCESS = 1,
	KPI_STATUS_FLUSHED,
	KPI_STATUS_FAILED,
};

struct kpi_completion {
	uint64_t	wr_id;
	uint32_t	status;		/* enum kpi_status */
	uint32_t	vendor_error;
	uint32_t	bytes;
	uint32_t	source_qpn;	/* Of a datagram. */
	uint32_t	qp_number;	/* struct kpi_qp_context */
	uint16_t	source_lid;	/* Of a datagram. */
	uint8_t		flags;
#define	KPI_COMPLETION_HAS_GRH		0x01
#define	KPI_COMPLETION_CSUM_OK		0x02
#define	KPI_COMPLETION_RECEIVE		0x04	/* If it succeeded. */
	uint8_t		raw_status;	/* IBA 11.6.2, as ofed numbers it. */
};

struct kpi_qp_config {
	struct kpi_cq		*send_cq;
	struct kpi_cq		*receive_cq;
	struct ib_srq		*srq;		/* Or NULL. */
	struct kpi_qp_context	*context;
	uint32_t		max_sends;
	uint32_t		max_receives;
	uint32_t		max_send_segments;
	uint32_t		max_receive_segments;
	uint8_t			is_connected;	/* RC, else UD. */
	uint8_t			blocks_loopback;
	uint8_t			reserved[6];
};

enum kpi_qp_event {
	KPI_QP_LAST_WQE = 1,
	KPI_QP_FAILED,
};

struct kpi_address {
	uint8_t		gid[KPI_GID_LEN];	/* With has_grh. */
	uint32_t	flow_label;
	uint16_t	lid;
	uint8_t		sl;
	uint8_t		rate;
	uint8_t		has_grh;
	uint8_t		hop_limit;
	uint8_t		traffic_class;
	uint8_t		port;
};

struct kpi_datagram {
	struct ib_ah	*ah;
	uint32_t	remote_qpn;
	uint32_t	qkey;
	uint8_t		wants_ip_csum;
	uint8_t		reserved[7];
};

/* sa.c */

struct kpi_path {
	uint8_t		destination[KPI_GID_LEN];
	uint8_t		source[KPI_GID_LEN];
	uint32_t	flow_label;
	uint16_t	destination_lid;
	uint16_t	source_lid;
	uint16_t	pkey;
	uint8_t		sl;
	uint8_t		mtu;
	uint8_t		rate;
	uint8_t		hop_limit;
	uint8_t		traffic_class;
	uint8_t		packet_life_time;
};

struct kpi_group {
	uint8_t		mgid[KPI_GID_LEN];
	uint8_t		port_gid[KPI_GID_LEN];
	uint32_t	qkey;
	uint32_t	flow_label;
	uint16_t	mlid;
	uint16_t	pkey;
	uint8_t		mtu;
	uint8_t		rate;
	uint8_t		sl;
	uint8_t		packet_life_time;
	uint8_t		hop_limit;
	uint8_t		traffic_class;
	uint8_t		join_state;
	uint8_t		creates;	/* All of the above are components. */
};

/* cm.c */

struct kpi_cm_request {
	uint8_t		gid[KPI_GID_LEN];	/* Of the peer's port. */
	uint8_t		private_data[KPI_PRIVATE_LEN];
	uint32_t	qpn;
	uint16_t	pkey;
	uint8_t		port;
	uint8_t		mtu;
};

enum kpi_cm_event_type {
	KPI_CM_REPLIED = 1,
	KPI_CM_ESTABLISHED,
	KPI_CM_REJECTED,
	KPI_CM_TIMED_OUT,		/* No answer to a REQ or REP. */
	KPI_CM_UNSENT,			/* A REQ or REP was given up. */
	KPI_CM_DISCONNECT_REQUESTED,
	KPI_CM_DISCONNECTED,		/* DREP, or none in time. */
	KPI_CM_TIMEWAIT_EXITED,
};

struct kpi_cm_event {
	uint32_t	type;		/* enum kpi_cm_event_type */
	uint32_t	reject_reason;
	uint8_t		private_data[KPI_PRIVATE_LEN];	/* Of a REP. */
};

struct kpi_cm_connect {
	struct kpi_path	path;
	uint64_t	service;
	uint32_t	qpn;
	uint32_t	starting_psn;
	uint8_t		private_data[KPI_PRIVATE_LEN];
	uint8_t		response_timeout;	/* A code of IBA 12.7.4. */
	uint8_t		max_retries;
	uint8_t		has_srq;
	uint8_t		reserved[5];
};

struct kpi_cm_reply {
	uint32_t	qpn;
	uint32_t	starting_psn;
	uint8_t		private_data[KPI_PRIVATE_LEN];
	uint8_t		has_srq;
	uint8_t		reserved[7];
};

/* Rust asserts the same of what it was told by bindgen. */
_Static_assert(sizeof(struct kpi_device_attributes) == 40, "layout");
_Static_assert(sizeof(struct kpi_port_attributes) == 24, "layout");
_Static_assert(sizeof(struct kpi_segment) == 16, "layout");
_Static_assert(sizeof(struct kpi_completion) == 32, "layout");
_Static_assert(sizeof(struct kpi_qp_config) == 56, "layout");
_Static_assert(sizeof(struct kpi_address) == 28, "layout");
_Static_assert(sizeof(struct kpi_datagram) == 24, "layout");
_Static_assert(sizeof(struct kpi_path) == 48, "layout");
_Static_assert(sizeof(struct kpi_group) == 52, "layout");
_Static_assert(sizeof(struct kpi_cm_request) == 32, "layout");
_Static_assert(sizeof(struct kpi_cm_event) == 16, "layout");
_Static_assert(sizeof(struct kpi_cm_connect) == 80, "layout");
_Static_assert(sizeof(struct kpi_cm_reply) == 24, "layout");

enum kpi_qp_state {
	KPI_QPS_RESET = 1,
	KPI_QPS_INIT,
	KPI_QPS_RTR,
	KPI_QPS_RTS,
	KPI_QPS_ERROR,
};

/*
 * What the stack calls.  Every "context" is what the object was created with;
 * every "id" is a number of the registry, which may be stale.
 */
struct kpi_ofed_callbacks {
	/* May sleep.  What it returns is handed to device_removed. */
	void	*(*device_added)(void *client, struct ib_device *device);
	/* May sleep.  When it returns, nothing of the device is left. */
	void	 (*device_removed)(void *client, void *device);
	/*
	 * May sleep.  The interface of a port in a partition, counted for the
	 * caller; NULL if there is none.  "device" is what device_added
	 * returned.
	 */
	struct ifnet *(*find_interface)(void *client, void *device,
		    uint8_t port, uint16_t pkey);
	/* The rest must not sleep, unless it says so. */
	void	 (*port_changed)(void *context, uint32_t event);
	void	 (*completed)(void *context);
	void	 (*qp_event)(struct kpi_qp_context *context, uint32_t event);
	void	 (*path_answered)(uint64_t id, int error,
		    const struct kpi_path *path);
	void	 (*capabilities_answered)(uint64_t id, int error,
		    uint32_t capability_mask2);
	/* Not 0 to have the membership freed. */
	int	 (*group_answered)(uint64_t id, int error,
		    struct ib_sa_multicast *membership,
		    const struct kpi_group *group);
	/* Not 0 to have the id destroyed.  Both may sleep. */
	int	 (*cm_requested)(uint64_t id, struct ib_cm_id *cm_id,
		    const struct kpi_cm_request *request);
	int	 (*cm_event)(uint64_t id, struct ib_cm_id *cm_id,
		    const struct kpi_cm_event *event);
};

/* client.c: may sleep, unless it says otherwise. */
int	rust_helper_ofed_register(const struct kpi_ofed_callbacks *callbacks,
	    void *client);
void	rust_helper_ofed_unregister(void);
void	rust_helper_ofed_lock(void);			/* Does not sleep. */
void	rust_helper_ofed_unlock(void);
void	rust_helper_ofed_wait(void);			/* A tenth of a second. */
const char *rust_helper_ib_device_name(struct ib_device *device);
int	rust_helper_ib_device_attributes(struct ib_device *device,
	    struct kpi_device_attributes *attributes);
int	rust_helper_ib_is_infiniband(struct ib_device *device, uint8_t port);
int	rust_helper_ib_query_port(struct ib_device *device, uint8_t port,
	    struct kpi_port_attributes *attributes);
int	rust_helper_ib_query_rate(struct ib_device *device, uint8_t port,
	    uint64_t *bits_per_second);
int	rust_helper_ib_query_pkey(struct ib_device *device, uint8_t port,
	    uint16_t index, uint16_t *pkey);
int	rust_helper_ib_find_pkey(struct ib_device *device, uint8_t port,
	    uint16_t pkey, uint16_t *index);
int	rust_helper_ib_watch_port(struct ib_device *device, uint8_t port,
	    void *context, struct kpi_port_watch **watch);
void	rust_helper_ib_unwatch_port(struct kpi_port_watch *watch);

/* verbs.c: creating, modifying and destroying may sleep. */
int	rust_helper_ib_alloc_pd(struct ib_device *device, struct ib_pd **pd);
void	rust_helper_ib_dealloc_pd(struct ib_pd *pd);
uint32_t rust_helper_ib_local_dma_lkey(struct ib_pd *pd);
int	rust_helper_ib_create_cq(struct ib_device *device, uint32_t entries,
	    void *context, struct kpi_cq **cq);
void	rust_helper_ib_destroy_cq(struct kpi_cq *cq);
int	rust_helper_ib_create_srq(struct ib_pd *pd, uint32_t max_receives,
	    uint32_t max_segments, struct ib_srq **srq);
int	rust_helper_ib_destroy_srq(struct ib_srq *srq);
int	rust_helper_ib_create_qp(struct ib_pd *pd,
	    const struct kpi_qp_config *config, struct ib_qp **qp,
	    uint32_t *qpn);
/* If it fails, "is_quiet" says whether it was reset at least. */
int	rust_helper_ib_destroy_qp(struct ib_qp *qp, struct kpi_cq *send_cq,
	    struct kpi_cq *receive_cq, int *is_quiet);
int	rust_helper_ib_init_ud_qp(struct ib_qp *qp, uint8_t port,
	    uint16_t pkey_index, uint32_t qkey);
int	rust_helper_ib_init_rc_qp(struct ib_qp *qp, uint8_t port,
	    uint16_t pkey_index);
int	rust_helper_ib_modify_qp(struct ib_qp *qp, uint32_t state);
int	rust_helper_ib_restart_sends(struct ib_qp *qp);
int	rust_helper_ib_set_qkey(struct ib_qp *qp, uint32_t qkey);
int	rust_helper_ib_attach_mcast(struct ib_qp *qp, const uint8_t *mgid,
	    uint16_t mlid);
int	rust_helper_ib_detach_mcast(struct ib_qp *qp, const uint8_t *mgid,
	    uint16_t mlid);
int	rust_helper_ib_create_ah(struct ib_pd *pd,
	    const struct kpi_address *address, struct ib_ah **ah);

/* verbs.c: does not sleep. */
void	rust_helper_ib_destroy_ah(struct ib_ah *ah);
int	rust_helper_ib_poll_cq(struct kpi_cq *cq,
	    struct kpi_completion *completions, uint32_t count);
int	rust_helper_ib_arm_cq(struct kpi_cq *cq);
int	rust_helper_ib_post_send(struct ib_qp *qp, uint64_t wr_id,
	    const struct kpi_segment *segments, uint32_t count,
	    const struct kpi_datagram *datagram);
int	rust_helper_ib_post_receive(struct ib_qp *qp, uint64_t wr_id,
	    const struct kpi_segment *segments, uint32_t count);
int	rust_helper_ib_post_srq_receive(struct ib_srq *srq, uint64_t wr_id,
	    const struct kpi_segment *segments, uint32_t count);

/* dma.c: does not sleep. */
int	rust_helper_dma_map_send(struct ib_device *device, uint32_t lkey,
	    struct mbuf **chain, struct kpi_segment *segments, uint32_t max,
	    uint32_t *count);
void	rust_helper_dma_unmap_send(struct ib_device *device,
	    const struct kpi_segment *segments, uint32_t count);
int	rust_helper_dma_map_receive(struct ib_device *device, uint32_t lkey,
	    uint32_t bytes, struct mbuf **chain, struct kpi_segment *segments,
	    uint32_t max, uint32_t *count);
void	rust_helper_dma_unmap_receive(struct ib_device *device,
	    const struct kpi_segment *segments, uint32_t count);
void	rust_helper_dma_cut_chain(struct mbuf *chain, uint32_t bytes);
void	rust_helper_dma_free_chain(struct mbuf *chain);

/* sa.c: may sleep, apart from rust_helper_sa_cancel. */
int	rust_helper_sa_query_path(struct ib_device *device, uint8_t port,
	    uint64_t id, const struct kpi_path *path, uint32_t timeout_ms,
	    int *query_id, struct ib_sa_query **query);
int	rust_helper_sa_query_capabilities(struct ib_device *device,
	    uint8_t port, uint64_t id, uint32_t timeout_ms, int *query_id,
	    struct ib_sa_query **query);
void	rust_helper_sa_cancel(int query_id, struct ib_sa_query *query);
int	rust_helper_sa_join(struct ib_device *device, uint8_t port,
	    uint64_t id, const struct kpi_group *group,
	    struct ib_sa_multicast **membership);
void	rust_helper_sa_leave(struct ib_sa_multicast *membership);

/* cm.c: may sleep. */
int	rust_helper_cm_create(struct ib_device *device, uint64_t id,
	    struct ib_cm_id **cm_id);
void	rust_helper_cm_destroy(struct ib_cm_id *cm_id);
void	rust_helper_cm_set_id(struct ib_cm_id *cm_id, uint64_t id);
int	rust_helper_cm_listen(struct ib_cm_id *cm_id, uint64_t service);
int	rust_helper_cm_connect(struct ib_cm_id *cm_id,
	    const struct kpi_cm_connect *connect);
int	rust_helper_cm_modify_qp(struct ib_cm_id *cm_id, struct ib_qp *qp,
	    uint32_t state, const uint32_t *receive_psn);
int	rust_helper_cm_establish(struct ib_cm_id *cm_id);
int	rust_helper_cm_reply(struct ib_cm_id *cm_id,
	    const struct kpi_cm_reply *reply);
int	rust_helper_cm_reject(struct ib_cm_id *cm_id, uint32_t reason);
int	rust_helper_cm_answer_disconnect(struct ib_cm_id *cm_id);

#endif
