/*
 * HCAs and their ports (rdma/ib_verbs.h).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/malloc.h>
#include <sys/module.h>
#include <sys/mutex.h>

#include <rdma/ib_sa.h>
#include <rdma/ib_verbs.h>

#include "internal.h"

/* Since FreeBSD 15; before, no HCA has it. */
#if __FreeBSD_version >= 1500000
#define	CAP_KNOWS_EPOCH	IB_DEVICE_KNOWSEPOCH
#else
#define	CAP_KNOWS_EPOCH	0
#endif

MODULE_DEPEND(kpi_ofed, ibcore, 1, 1, 1);
MODULE_DEPEND(kpi_ofed, linuxkpi, 1, 1, 1);

static MALLOC_DEFINE(M_KPI_OFED, "kpi_ofed", "InfiniBand objects");

/* Of the numbers that the stack hands back with its answers. */
static struct mtx registry_mtx;
MTX_SYSINIT(kpi_ofed_registry, &registry_mtx, "kpi ofed", MTX_DEF);

struct kpi_port_watch {
	struct ib_event_handler	handler;
	void			*context;
	uint8_t			port;
};

const struct kpi_ofed_callbacks *kpi_ofed_callbacks;
struct ib_sa_client kpi_sa_client;

static void	add_device(struct ib_device *device);
static void	remove_device(struct ib_device *device, void *data);
static struct ifnet *find_interface(struct ib_device *device, u8 port,
		    u16 pkey, const union ib_gid *gid,
		    const struct sockaddr *address, void *data);

static void *registered_client;
static struct ib_client ofed_client = {
	.name = __DECONST(char *, KPI_MODULE),
	.add = add_device,
	.remove = remove_device,
	.get_net_dev_by_params = find_interface,
};

int
rust_helper_ofed_register(const struct kpi_ofed_callbacks *callbacks,
    void *client)
{
	int error;

	if (registered_client != NULL)
		return (EEXIST);
	kpi_ofed_callbacks = callbacks;
	registered_client = client;
	ib_sa_register_client(&kpi_sa_client);
	error = ib_register_client(&ofed_client);
	if (error != 0) {
		ib_sa_unregister_client(&kpi_sa_client);
		registered_client = NULL;
	}
	return (kpi_errno(error));
}

void
rust_helper_ofed_unregister(void)
{

	ib_unregister_client(&ofed_client);
	/* Waits for the last answer, late ones included. */
	ib_sa_unregister_client(&kpi_sa_client);
	registered_client = NULL;
}

static void
add_device(struct ib_device *device)
{
	void *data;

	data = kpi_ofed_callbacks->device_added(registered_client, device);
	ib_set_client_data(device, &ofed_client, data);
}

static void
remove_device(struct ib_device *device __unused, void *data)
{

	if (data != NULL)
		kpi_ofed_callbacks->device_removed(registered_client, data);
}

/*
 * Whoever manages connections by IP addresses asks this, and compares addresses
 * and routes itself.  The stack does not have the device removed meanwhile.
 */
static struct ifnet *
find_interface(struct ib_device *device __unused, u8 port, u16 pkey,
    const union ib_gid *gid __unused, const struct sockaddr *address __unused,
    void *data)
{

	if (data == NULL)
		return (NULL);
	return (kpi_ofed_callbacks->find_interface(registered_client, data,
	    port, pkey));
}

void
rust_helper_ofed_lock(void)
{

	mtx_lock(&registry_mtx);
}

void
rust_helper_ofed_unlock(void)
{

	mtx_unlock(&registry_mtx);
}

void
rust_helper_ofed_wait(void)
{

	pause("kpiofed", MAX(hz / 10, 1));
}

const char *
rust_helper_ib_device_name(struct ib_device *device)
{

	return (device->name);
}

int
rust_helper_ib_device_attributes(struct ib_device *device,
    struct kpi_device_attributes *attributes)
{
	const struct ib_device_attr *attrs;

	if (device->node_type != RDMA_NODE_IB_CA)
		return (EOPNOTSUPP);
	attrs = &device->attrs;
	memset(attributes, 0, sizeof(*attributes));
	attributes->node_guid = be64_to_cpu(device->node_guid);
	attributes->max_qp_wr = attrs->max_qp_wr;
	attributes->max_send_sge =
	    attrs->max_sge > 0 ? attrs->max_sge : attrs->max_send_sge;
	attributes->max_cqe = attrs->max_cqe;
	if (device->create_srq != NULL) {
		attributes->max_srq_wr = attrs->max_srq_wr;
		attributes->max_srq_sge = attrs->max_srq_sge;
	}
	if ((attrs->device_cap_flags & IB_DEVICE_UD_IP_CSUM) != 0)
		attributes->flags |= KPI_DEVICE_UD_IP_CSUM;
	if ((attrs->device_cap_flags & IB_DEVICE_LOCAL_DMA_LKEY) != 0)
		attributes->flags |= KPI_DEVICE_LOCAL_DMA_LKEY;
	if ((attrs->device_cap_flags & IB_DEVICE_BLOCK_MULTICAST_LOOPBACK) != 0)
		attributes->flags |= KPI_DEVICE_BLOCK_LOOPBACK;
	if ((attrs->device_cap_flags & CAP_KNOWS_EPOCH) != 0)
		attributes->flags |= KPI_DEVICE_KNOWS_EPOCH;
	attributes->first_port = rdma_start_port(device);
	attributes->last_port = rdma_end_port(device);
	return (0);
}

int
rust_helper_ib_is_infiniband(struct ib_device *device, uint8_t port)
{

	return (rdma_protocol_ib(device, port) && rdma_cap_ib_sa(device, port));
}

int
rust_helper_ib_query_port(struct ib_device *device, uint8_t port,
    struct kpi_port_attributes *attributes)
{
	struct ib_port_attr attrs;
	union ib_gid gid;
	int error;

	error = ib_query_port(device, port, &attrs);
	if (error == 0)
		error = ib_query_gid(device, port, 0, &gid, NULL);
	if (error != 0)
		return (kpi_errno(error));
	memset(attributes, 0, sizeof(*attributes));
	memcpy(attributes->gid, gid.raw, sizeof(attributes->gid));
	attributes->lid = attrs.lid;
	attributes->max_mtu = attrs.max_mtu;
	attributes->is_active = attrs.state == IB_PORT_ACTIVE;
	attributes->max_message_bytes = attrs.max_msg_sz;
	return (0);
}

/*
 * IBA 14.2.5.6: LinkWidthActive and LinkSpeedActive, each of them one bit.
 */
int
rust_helper_ib_query_rate(struct ib_device *device, uint8_t port,
    uint64_t *bits_per_second)
{
	static const uint8_t lanes[] = { 1, 4, 8, 12, 2 };
	/* SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR; in Mb/s for each lane. */
	static const uint32_t speeds[] = { 2500, 5000, 10000, 10312, 14062,
	    25781, 53125, 106250 };
	struct ib_port_attr attrs;
	int error;
	u_int speed, width;

	error = ib_query_port(device, port, &attrs);
	if (error != 0)
		return (kpi_errno(error));
	speed = ffs(attrs.active_speed) - 1;
	width = ffs(attrs.active_width) - 1;
	if (speed >= nitems(speeds) || width >= nitems(lanes))
		return (EINVAL);
	*bits_per_second = (uint64_t)speeds[speed] * lanes[width] * 1000000;
	return (0);
}

int
rust_helper_ib_query_pkey(struct ib_device *device, uint8_t port,
    uint16_t index, uint16_t *pkey)
{

	return (kpi_errno(ib_query_pkey(device, port, index, pkey)));
}

int
rust_helper_ib_find_pkey(struct ib_device *device, uint8_t port, uint16_t pkey,
    uint16_t *index)
{

	return (kpi_errno(ib_find_pkey(device, port, pkey, index)));
}

/*
 * Called with the lock of the device's list of handlers.
 */
static void
port_event(struct ib_event_handler *handler, struct ib_event *event)
{
	struct kpi_port_watch *watch;
	uint32_t told;

	watch = container_of(handler, struct kpi_port_watch, handler);
	switch (event->event) {
	case IB_EVENT_DEVICE_FATAL:
		/* It concerns every port, whatever it names. */
		kpi_ofed_callbacks->port_changed(watch->context,
		    KPI_PORT_ERROR);
		return;
	case IB_EVENT_PORT_ACTIVE:
		told = KPI_PORT_ACTIVE;
		break;
	case IB_EVENT_PORT_ERR:
		told = KPI_PORT_ERROR;
		break;
	case IB_EVENT_LID_CHANGE:
		told = KPI_PORT_LID_CHANGED;
		break;
	case IB_EVENT_PKEY_CHANGE:
		told = KPI_PORT_PKEY_CHANGED;
		break;
	case IB_EVENT_SM_CHANGE:
		told = KPI_PORT_SM_CHANGED;
		break;
	case IB_EVENT_CLIENT_REREGISTER:
		told = KPI_PORT_CLIENT_REREGISTER;
		break;
	case IB_EVENT_GID_CHANGE:
		told = KPI_PORT_GID_CHANGED;
		break;
	default:
		/* Of queues, not of ports. */
		return;
	}
	if (event->element.port_num == watch->port)
		kpi_ofed_callbacks->port_changed(watch->context, told);
}

int
rust_helper_ib_watch_port(struct ib_device *device, uint8_t port,
    void *context, struct kpi_port_watch **watch)
{
	struct kpi_port_watch *made;
	int error;

	made = malloc(sizeof(*made), M_KPI_OFED, M_WAITOK | M_ZERO);
	made->context = context;
	made->port = port;
	INIT_IB_EVENT_HANDLER(&made->handler, device, port_event);
	error = ib_register_event_handler(&made->handler);
	if (error != 0)
		free(made, M_KPI_OFED);
	else
		*watch = made;
	return (kpi_errno(error));
}

void
rust_helper_ib_unwatch_port(struct kpi_port_watch *watch)
{

	(void)ib_unregister_event_handler(&watch->handler);
	free(watch, M_KPI_OFED);
}
