/*
 * Between the C half of softib.ko, which knows the structures of ibcore, and
 * the Rust half, which holds the fabric. Plain values only: an object is known
 * to Rust by a number, its handle, and to C by a pointer, its context. Rust
 * hands contexts back and does not look behind them.
 *
 * What is declared here stands in softib/src/layout.rs and softib/src/abi.rs
 * once more. Both halves assert the sizes.
 */
#ifndef _SOFTIB_H_
#define	_SOFTIB_H_

#include <sys/types.h>

/* The handle of no object. */
#define	SOFTIB_NONE		0

/* The state of a queue pair (IBA 10.3.1). */
enum softib_state {
	SOFTIB_RESET,
	SOFTIB_INIT,
	SOFTIB_RTR,
	SOFTIB_RTS,
	SOFTIB_SQD,
	SOFTIB_SQE,
	SOFTIB_ERR,
};

/* The service of a queue pair. */
enum softib_service {
	SOFTIB_SMI,
	SOFTIB_GSI,
	SOFTIB_UD,
	SOFTIB_RC,
};

/* How a work request ended. */
enum softib_status {
	SOFTIB_SUCCESS,
	SOFTIB_FLUSHED,
	SOFTIB_LOCAL_LENGTH,
	SOFTIB_LOCAL_QP_OPERATION,
	SOFTIB_REMOTE_INVALID_REQUEST,
	SOFTIB_RETRY_EXCEEDED,
	SOFTIB_RNR_RETRY_EXCEEDED,
};

/* What happened to a queue pair, a queue or a port. */
enum softib_event {
	SOFTIB_COMMUNICATION_ESTABLISHED,
	SOFTIB_LAST_WQE_REACHED,
	SOFTIB_CQ_OVERRUN,
	SOFTIB_SRQ_LIMIT_REACHED,
	SOFTIB_CLIENT_REREGISTER,
	SOFTIB_GID_CHANGED,
	SOFTIB_LID_CHANGED,
	SOFTIB_PKEY_CHANGED,
	SOFTIB_PORT_ACTIVE,
	SOFTIB_PORT_ERROR,
	SOFTIB_SM_CHANGED,
};

/* What the loader said. */
struct softib_config {
	uint32_t device_count;
	uint32_t receive_segments_max;
	uint32_t reserved[2];
	uint64_t seed;			/* of what is left to chance */
};
_Static_assert(sizeof(struct softib_config) == 24, "layout");

struct softib_port {
	uint8_t	 gid[16];		/* at index 0 */
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t	 sm_sl;
	uint8_t	 mtu_code;
	uint8_t	 is_active;
	uint8_t	 reserved;
};
_Static_assert(sizeof(struct softib_port) == 24, "layout");

struct softib_counters {
	uint64_t sent;
	uint64_t received;
	uint64_t send_discards;
	uint64_t receive_errors;
};
_Static_assert(sizeof(struct softib_counters) == 32, "layout");

/* Where packets go (IBA 11.2.2). */
struct softib_address {
	uint8_t	 gid[16];
	uint32_t flow_label;
	uint16_t lid;
	uint8_t	 sl;
	uint8_t	 rate_code;
	uint8_t	 hop_limit;
	uint8_t	 traffic_class;
	uint8_t	 has_grh;
	uint8_t	 reserved;
};
_Static_assert(sizeof(struct softib_address) == 28, "layout");

/* A piece of memory: the layout of struct ib_sge. */
struct softib_segment {
	uint64_t address;		/* in the kernel's address space */
	uint32_t length;
	uint32_t local_key;
};
_Static_assert(sizeof(struct softib_segment) == 16, "layout");

struct softib_pair_config {
	void	*context;
	uint32_t send_queue;		/* handles of completion queues */
	uint32_t receive_queue;
	uint32_t shared_queue;
	uint32_t service;
	uint32_t sends_max;
	uint32_t receives_max;
	uint32_t receive_segments_max;
	uint8_t	 port;
	uint8_t	 signals_all;
	uint8_t	 reserved[2];
};
_Static_assert(sizeof(struct softib_pair_config) == 40, "layout");

struct softib_change {
	struct softib_address address;
	uint32_t state;
	uint32_t qkey;
	uint32_t remote_qpn;
	uint32_t receive_psn;
	uint32_t send_psn;
	uint16_t pkey_index;
	uint8_t	 has_pkey_index;
	uint8_t	 has_qkey;
	uint8_t	 port;
	uint8_t	 path_mtu_code;
	uint8_t	 rnr_timer;
	uint8_t	 retry_count;
	uint8_t	 rnr_retry_count;
	uint8_t	 reserved[3];
};
_Static_assert(sizeof(struct softib_change) == 60, "layout");

struct softib_send {
	uint64_t wr_id;
	const struct softib_segment *segments;
	uint32_t segment_count;
	uint32_t address_handle;	/* the rest is for datagrams */
	uint32_t remote_qpn;
	uint32_t qkey;
	uint16_t pkey_index;
	uint8_t	 is_signalled;
	uint8_t	 wants_checksums;
	uint8_t	 reserved[4];
};
_Static_assert(sizeof(struct softib_send) == 40, "layout");

struct softib_receive {
	uint64_t wr_id;
	const struct softib_segment *segments;
	uint32_t segment_count;
	uint32_t reserved;
};
_Static_assert(sizeof(struct softib_receive) == 24, "layout");

struct softib_completion {
	uint64_t wr_id;
	void	*pair;			/* context */
	uint32_t status;
	uint32_t byte_count;
	uint32_t source_qpn;
	uint16_t source_lid;
	uint16_t pkey_index;
	uint8_t	 sl;
	uint8_t	 is_receive;
	uint8_t	 has_grh;
	uint8_t	 has_right_checksums;
	uint8_t	 reserved[4];
};
_Static_assert(sizeof(struct softib_completion) == 40, "layout");

/* One fabric with its subnet manager, and the thread that moves packets. */
struct softib;

/*
 * softib/src/abi.rs. All take one lock, under which nobody is called. None but
 * the first two sleeps.
 */
int	softib_rs_create(struct softib **, struct softib_config *);
void	softib_rs_destroy(struct softib *);
int	softib_rs_is_calling(struct softib *, const void *context);
void	softib_rs_set_context(struct softib *, uint32_t device, void *context);

int	softib_rs_query_port(struct softib *, uint32_t device, uint8_t port,
	    struct softib_port *);
uint16_t softib_rs_query_pkey(struct softib *, uint32_t device, uint8_t port,
	    uint16_t index);
int	softib_rs_port_counters(struct softib *, uint32_t device, uint8_t port,
	    struct softib_counters *);
uint64_t softib_rs_guid(struct softib *, uint32_t device);

int	softib_rs_create_address(struct softib *, uint32_t device, uint8_t port,
	    const struct softib_address *, uint32_t *handle);
void	softib_rs_destroy_address(struct softib *, uint32_t handle);

int	softib_rs_create_queue(struct softib *, uint32_t device,
	    uint32_t entries, void *context, uint32_t *handle);
int	softib_rs_destroy_queue(struct softib *, uint32_t handle);
int	softib_rs_arm_queue(struct softib *, uint32_t handle);
uint32_t softib_rs_poll_queue(struct softib *, uint32_t handle,
	    struct softib_completion *, uint32_t count);

int	softib_rs_create_shared(struct softib *, uint32_t device,
	    uint32_t receives_max, uint32_t segments_max, void *context,
	    uint32_t *handle);
int	softib_rs_destroy_shared(struct softib *, uint32_t handle);
int	softib_rs_limit_shared(struct softib *, uint32_t handle,
	    uint32_t limit);
int	softib_rs_post_shared(struct softib *, uint32_t handle,
	    const struct softib_receive *);

int	softib_rs_create_pair(struct softib *, uint32_t device,
	    const struct softib_pair_config *, uint32_t *handle, uint32_t *qpn);
int	softib_rs_destroy_pair(struct softib *, uint32_t handle);
uint32_t softib_rs_pair_state(struct softib *, uint32_t handle);
int	softib_rs_modify_pair(struct softib *, uint32_t handle,
	    const struct softib_change *);
int	softib_rs_post_send(struct softib *, uint32_t handle,
	    const struct softib_send *);
int	softib_rs_post_receive(struct softib *, uint32_t handle,
	    const struct softib_receive *);
int	softib_rs_attach(struct softib *, uint32_t handle,
	    const uint8_t gid[16], uint16_t lid);
int	softib_rs_detach(struct softib *, uint32_t handle,
	    const uint8_t gid[16], uint16_t lid);

/* poll.c: called by the thread of softib, without the lock. */
void	softib_c_complete(void *queue);
void	softib_c_queue_event(void *queue, uint32_t event);
void	softib_c_pair_event(void *pair, uint32_t event);
void	softib_c_shared_event(void *shared, uint32_t event);
void	softib_c_port_event(void *device, uint8_t port, uint32_t event);

#endif
