/*
 * Objects, HCAs and chains of mbufs of a kernel, on a host.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "object.h"

#define	GUID	0x0002c90300000001ull
#define	PKEY	0xffff

struct kpi_port_watch {
	struct object	object;
	struct ib_device *device;
	void		*context;
	uint8_t		port;
};

const struct kpi_ofed_callbacks *fake_callbacks;
static void *registered_client;
static uint32_t objects;
static uint32_t next_fault;
static struct mbuf *last_mapped;

void
fake_reset(void)
{

	next_fault = FAKE_FAULT_NONE;
	registered_client = NULL;
	__atomic_store_n(&objects, 0, __ATOMIC_SEQ_CST);
	fake_forget_numbers();
}

void
fake_fail_next(uint32_t fault)
{

	next_fault = fault;
}

bool
fake_fails(uint32_t fault)
{

	if (next_fault != fault)
		return (false);
	next_fault = FAKE_FAULT_NONE;
	return (true);
}

uint32_t
fake_objects(void)
{

	return (__atomic_load_n(&objects, __ATOMIC_SEQ_CST));
}

void *
object_new(size_t size)
{
	struct object *object;

	if (fake_fails(FAKE_FAULT_CREATE))
		return (NULL);
	object = calloc(1, size);
	fake_check(object != NULL, "no memory");
	object->magic = OBJECT_ALIVE;
	__atomic_add_fetch(&objects, 1, __ATOMIC_SEQ_CST);
	return (object);
}

void
object_use(const void *object)
{

	fake_check(((const struct object *)object)->magic == OBJECT_ALIVE,
	    "an object is used that is gone");
}

void
object_free(void *object)
{
	struct object *gone;

	gone = object;
	object_use(gone);
	fake_check(gone->users == 0, "an object goes that is in use");
	gone->magic = OBJECT_DEAD;
	free(gone);
	__atomic_sub_fetch(&objects, 1, __ATOMIC_SEQ_CST);
}

int
rust_helper_ofed_register(const struct kpi_ofed_callbacks *callbacks,
    void *client)
{

	if (registered_client != NULL)
		return (EEXIST);
	fake_callbacks = callbacks;
	registered_client = client;
	return (0);
}

void
rust_helper_ofed_unregister(void)
{

	fake_check(registered_client != NULL, "no client is registered");
	registered_client = NULL;
}

struct ib_device *
fake_device_add(void)
{
	struct ib_device *device;

	device = object_new(sizeof(*device));
	device->data = fake_callbacks->device_added(registered_client, device);
	return (device);
}

void
fake_device_remove(struct ib_device *device)
{

	if (device->data != NULL)
		fake_callbacks->device_removed(registered_client,
		    device->data);
	object_free(device);
}

const char *
rust_helper_ib_device_name(struct ib_device *device)
{

	object_use(device);
	return ("fake0");
}

int
rust_helper_ib_device_attributes(struct ib_device *device,
    struct kpi_device_attributes *attributes)
{

	object_use(device);
	*attributes = (struct kpi_device_attributes) {
		.node_guid = GUID,
		.max_qp_wr = 1024,
		.max_send_sge = 4,
		.max_cqe = 4096,
		.max_srq_wr = 1024,
		.max_srq_sge = 16,
		.first_port = 1,
		.last_port = 2,
	};
	return (0);
}

int
rust_helper_ib_is_infiniband(struct ib_device *device, uint8_t port)
{

	object_use(device);
	return (port == 1 || port == 2);
}

int
rust_helper_ib_query_port(struct ib_device *device, uint8_t port,
    struct kpi_port_attributes *attributes)
{

	object_use(device);
	*attributes = (struct kpi_port_attributes) {
		.gid = { 0xfe, 0x80, [15] = port },
		.lid = port,
		.max_mtu = 4,
		.is_active = 1,
		.max_message_bytes = 1u << 30,
	};
	return (0);
}

int
rust_helper_ib_query_pkey(struct ib_device *device, uint8_t port,
    uint16_t index, uint16_t *pkey)
{

	(void)port;
	object_use(device);
	if (index != 0)
		return (EINVAL);
	*pkey = PKEY;
	return (0);
}

int
rust_helper_ib_find_pkey(struct ib_device *device, uint8_t port, uint16_t pkey,
    uint16_t *index)
{

	(void)port;
	object_use(device);
	if (pkey != PKEY)
		return (ENOENT);
	*index = 0;
	return (0);
}

int
rust_helper_ib_watch_port(struct ib_device *device, uint8_t port,
    void *context, struct kpi_port_watch **watch)
{
	struct kpi_port_watch *made;
	size_t i;

	for (i = 0; device->watches[i] != NULL; i++)
		fake_check(i < 3, "a device has room for few watches");
	made = object_new(sizeof(*made));
	if (made == NULL)
		return (ENOMEM);
	made->device = device;
	made->context = context;
	made->port = port;
	device->watches[i] = made;
	device->object.users++;
	*watch = made;
	return (0);
}

void
rust_helper_ib_unwatch_port(struct kpi_port_watch *watch)
{
	struct ib_device *device;
	size_t i;

	device = watch->device;
	for (i = 0; device->watches[i] != watch; i++)
		fake_check(i < 3, "a watch is over already");
	device->watches[i] = NULL;
	device->object.users--;
	object_free(watch);
}

void
fake_port_event(struct ib_device *device, uint8_t port, uint32_t event)
{
	size_t i;

	for (i = 0; i < 4; i++)
		if (device->watches[i] != NULL &&
		    device->watches[i]->port == port)
			fake_callbacks->port_changed(
			    device->watches[i]->context, event);
}

struct mbuf *
fake_mbuf_new(uint32_t length, uint32_t segments)
{
	struct mbuf *mbuf;

	mbuf = calloc(1, sizeof(*mbuf) + length);
	fake_check(mbuf != NULL, "no memory");
	mbuf->length = length;
	mbuf->segments = segments;
	__atomic_add_fetch(&objects, 1, __ATOMIC_SEQ_CST);
	return (mbuf);
}

void
fake_mbuf_free(struct mbuf *mbuf)
{

	fake_check(!mbuf->is_mapped, "a chain is freed that is mapped");
	free(mbuf);
	__atomic_sub_fetch(&objects, 1, __ATOMIC_SEQ_CST);
}

void
fake_mbuf_free_mapped(void)
{

	last_mapped->is_mapped = false;
	fake_mbuf_free(last_mapped);
}

uint32_t
fake_mbuf_length(const struct mbuf *mbuf)
{

	return (mbuf->length);
}

/*
 * An address of the HCA is that of the byte itself.  The chain is found by its
 * first segment again.
 */
static void
map(uint32_t lkey, struct mbuf *chain, struct kpi_segment *segments,
    uint32_t *count)
{
	uint32_t i, size;

	fake_check(!chain->is_mapped, "a chain is mapped twice");
	chain->is_mapped = true;
	last_mapped = chain;
	size = chain->length / chain->segments;
	for (i = 0; i < chain->segments; i++) {
		segments[i].address = (uintptr_t)(chain->bytes + i * size);
		segments[i].bytes = size;
		segments[i].lkey = lkey;
	}
	segments[i - 1].bytes += chain->length % chain->segments;
	*count = i;
}

static void
unmap(const struct kpi_segment *segments, uint32_t count)
{
	struct mbuf *chain;

	fake_check(count > 0, "nothing is mapped");
	chain = (struct mbuf *)((uintptr_t)segments[0].address -
	    offsetof(struct mbuf, bytes));
	fake_check(chain->is_mapped, "a chain is unmapped that is not mapped");
	chain->is_mapped = false;
}

int
rust_helper_dma_map_send(struct ib_device *device, uint32_t lkey,
    struct mbuf **chain, struct kpi_segment *segments, uint32_t max,
    uint32_t *count)
{
	struct mbuf *less;

	object_use(device);
	if (fake_fails(FAKE_FAULT_MAP))
		return (ENOMEM);
	if ((*chain)->segments > max) {
		less = fake_mbuf_new((*chain)->length, max);
		memcpy(less->bytes, (*chain)->bytes, less->length);
		fake_mbuf_free(*chain);
		*chain = less;
	}
	map(lkey, *chain, segments, count);
	return (0);
}

void
rust_helper_dma_unmap_send(struct ib_device *device,
    const struct kpi_segment *segments, uint32_t count)
{

	object_use(device);
	unmap(segments, count);
}

int
rust_helper_dma_map_receive(struct ib_device *device, uint32_t lkey,
    uint32_t bytes, struct mbuf **chain, struct kpi_segment *segments,
    uint32_t max, uint32_t *count)
{
	uint32_t pages;

	object_use(device);
	pages = (bytes + 4095) / 4096;
	if (fake_fails(FAKE_FAULT_MAP) || pages > max)
		return (ENOMEM);
	*chain = fake_mbuf_new(bytes, pages);
	map(lkey, *chain, segments, count);
	return (0);
}

void
rust_helper_dma_unmap_receive(struct ib_device *device,
    const struct kpi_segment *segments, uint32_t count)
{

	object_use(device);
	unmap(segments, count);
}

void
rust_helper_dma_cut_chain(struct mbuf *chain, uint32_t bytes)
{

	fake_check(!chain->is_mapped, "a chain is cut that is mapped");
	if (bytes < chain->length)
		chain->length = bytes;
}

void
rust_helper_dma_free_chain(struct mbuf *chain)
{

	fake_mbuf_free(chain);
}
