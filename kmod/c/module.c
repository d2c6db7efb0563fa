/*
 * What the kernel's linker wants to find in a module.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>
#include <sys/kernel.h>
#include <sys/module.h>

#include "ipoib_rs.h"

static struct ipoib_rs_module *ipoib_rs;

static int
ipoib_rs_modevent(module_t module __unused, int event, void *argument __unused)
{

	switch (event) {
	case MOD_LOAD:
		return (ipoib_rs_load(&ipoib_rs));
	case MOD_QUIESCE:
		/* Unloading would wait until the adapter gives it back. */
		return (ipoib_rs_is_pinned() ? EBUSY : 0);
	case MOD_UNLOAD:
		/* Comes after a MOD_LOAD that failed, too. */
		if (ipoib_rs != NULL)
			ipoib_rs_unload(ipoib_rs);
		ipoib_rs = NULL;
		return (0);
	default:
		return (EOPNOTSUPP);
	}
}

static moduledata_t ipoib_rs_moddata = {
	.name = "ipoib_rs",
	.evhand = ipoib_rs_modevent,
};

DECLARE_MODULE(ipoib_rs, ipoib_rs_moddata, SI_SUB_LAST, SI_ORDER_ANY);
MODULE_VERSION(ipoib_rs, 1);
#ifdef KPI_OFED
MODULE_DEPEND(ipoib_rs, ibcore, 1, 1, 1);
MODULE_DEPEND(ipoib_rs, linuxkpi, 1, 1, 1);
#endif
