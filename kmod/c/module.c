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
	case MOD_UNLOAD:
		/* Also called after an error of MOD_LOAD. */
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

/*
 * The driver of the base system would take the same ports and the same names.
 * With its name taken, the kernel's linker refuses whichever comes second with
 * EEXIST, and says which file has the name.
 */
static int
ipoib_modevent(module_t module __unused, int event, void *argument __unused)
{

	return (event == MOD_LOAD || event == MOD_UNLOAD ? 0 : EOPNOTSUPP);
}

static moduledata_t ipoib_moddata = {
	.name = "ipoib",
	.evhand = ipoib_modevent,
};

DECLARE_MODULE(ipoib, ipoib_moddata, SI_SUB_LAST, SI_ORDER_ANY);
