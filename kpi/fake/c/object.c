/*
 * Objects of the InfiniBand stack and HCAs, on a host.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;

void
fake_check(bool holds, const char *what)
{

	if (holds)
		return;
	fprintf(stderr, "fake kernel: %s\n", what);
	abort();
}

void
rust_helper_ofed_lock(void)
{

	pthread_mutex_lock(&registry_mutex);
}

void
rust_helper_ofed_unlock(void)
{

	pthread_mutex_unlock(&registry_mutex);
}

void
rust_helper_ofed_wait(void)
{

	usleep(1000);
}

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
