/*
 * Loading and unloading.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>
#include <sys/kernel.h>
#include <sys/malloc.h>
#include <sys/module.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

#define	SOFTIB_DEVICES_MAX	16

MALLOC_DEFINE(M_SOFTIB, "softib_qp", "queue pairs of softib");

/* What adapters say; read when one is registered. */
uint32_t softib_srq_sge_max;
int softib_checksums;

static struct softib		*softib;
static struct softib_device	*softib_devices[SOFTIB_DEVICES_MAX];

static void
softib_stop(void)
{
	u_int i;

	/* First: the users of the adapters end their work, with our help. */
	for (i = 0; i < nitems(softib_devices); i++) {
		if (softib_devices[i] != NULL)
			softib_detach(softib_devices[i]);
		softib_devices[i] = NULL;
	}
	if (softib != NULL)
		softib_rs_destroy(softib);
	softib = NULL;
}

static int
softib_start(void)
{
	struct softib_config config = { 0 };
	uint32_t i;
	int error;

	error = softib_rs_create(&softib, &config);
	softib_srq_sge_max = config.receive_segments_max;
	softib_checksums = 0;
	TUNABLE_INT_FETCH("hw.softib.checksums", &softib_checksums);
	for (i = 0; error == 0 && i < config.device_count; i++)
		error = softib_attach(softib, i, &softib_devices[i]);
	if (error != 0) {
		printf("softib: cannot start, error %d\n", error);
		softib_stop();
	} else
		printf("softib: %u adapters of %u ports\n",
		    config.device_count, SOFTIB_PORTS);
	return (error);
}

static int
softib_modevent(module_t module __unused, int event, void *argument __unused)
{

	switch (event) {
	case MOD_LOAD:
		return (softib_start());
	case MOD_UNLOAD:
		softib_stop();
		return (0);
	default:
		return (EOPNOTSUPP);
	}
}

static moduledata_t softib_module = {
	.name = "softib",
	.evhand = softib_modevent,
};

/* After ibcore, wherever that is. */
DECLARE_MODULE(softib, softib_module, SI_SUB_LAST, SI_ORDER_ANY);
MODULE_VERSION(softib, 1);
MODULE_DEPEND(softib, ibcore, 1, 1, 1);
MODULE_DEPEND(softib, linuxkpi, 1, 1, 1);
