/*
 * if_clone(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/callout.h>
#include <sys/errno.h>
#include <sys/eventhandler.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/mutex.h>
#include <sys/socket.h>
#include <sys/sx.h>
#include <sys/sysctl.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_clone.h>
#include <net/if_dl.h>
#include <net/if_media.h>
#include <net/ethernet.h>
#include <net/infiniband.h>
#include <net/if_lagg.h>
#include <net/vnet.h>

#include "cloner.h"
#include "link.h"

/* What all vnets have; changed by loading and unloading only. */
static struct {
	const char	*name;		/* NULL: there is no cloner. */
	const struct kpi_cloner_callbacks *callbacks;
	void		*owner;
} kpi_cloner;

VNET_DEFINE_STATIC(struct if_clone *, kpi_vnet_cloner);
#define	V_kpi_vnet_cloner	VNET(kpi_vnet_cloner)

/* "parameters" is what ifconfig(8) said, or NULL. */
static int
kpi_cloner_make(int unit, const struct iflaggparam *parameters,
    struct kpi_ifnet **interface)
{
	uint32_t kind;

	if (parameters == NULL)
		kind = KPI_CLONER_DEFAULT;
	else if (parameters->lagg_type == LAGG_TYPE_ETHERNET)
		kind = KPI_CLONER_ETHERNET;
	else if (parameters->lagg_type == LAGG_TYPE_INFINIBAND)
		kind = KPI_CLONER_INFINIBAND;
	else
		return (EINVAL);
	return (kpi_cloner.callbacks->create(kpi_cloner.owner, unit, kind,
	    interface));
}

static void
kpi_cloner_unmake(if_t ifp)
{

	/* Nobody else destroys it, so it is not to be held. */
	kpi_cloner.callbacks->destroy(kpi_cloner.owner, if_getsoftc(ifp));
}

/* Of the interface of today, which came before FreeBSD 14.0. */
#ifdef IFC_F_AUTOUNIT
static int
kpi_cloner_create(struct if_clone *cloner __unused, char *name __unused,
    size_t size __unused, struct ifc_data *data, struct ifnet **ifp)
{
	struct iflaggparam parameters;
	struct kpi_ifnet *interface;
	int error;

	if (data->params != NULL) {
		error = ifc_copyin(data, &parameters, sizeof(parameters));
		if (error != 0)
			return (error);
	}
	error = kpi_cloner_make(data->unit,
	    data->params == NULL ? NULL : &parameters, &interface);
	if (error == 0)
		*ifp = interface->ifp;
	return (error);
}

static int
kpi_cloner_destroy(struct if_clone *cloner __unused, struct ifnet *ifp,
    uint32_t flags __unused)
{

	kpi_cloner_unmake(ifp);
	return (0);
}

static struct if_clone *
kpi_cloner_add(void)
{
	struct if_clone_addreq request = {
		.create_f = kpi_cloner_create,
		.destroy_f = kpi_cloner_destroy,
		.flags = IFC_F_AUTOUNIT,
	};

	return (ifc_attach_cloner(kpi_cloner.name, &request));
}

static void
kpi_cloner_remove(struct if_clone *cloner)
{

	ifc_detach_cloner(cloner);
}
#else
static int
kpi_cloner_create(struct if_clone *cloner __unused, int unit,
    caddr_t data)
{
	struct iflaggparam parameters;
	struct kpi_ifnet *interface;
	int error;

	if (data != NULL) {
		error = copyin(data, &parameters, sizeof(parameters));
		if (error != 0)
			return (error);
	}
	return (kpi_cloner_make(unit, data == NULL ? NULL : &parameters,
	    &interface));
}

static struct if_clone *
kpi_cloner_add(void)
{

	return (if_clone_simple(kpi_cloner.name, kpi_cloner_create,
	    kpi_cloner_unmake, 0));
}

static void
kpi_cloner_remove(struct if_clone *cloner)
{

	if_clone_detach(cloner);
}
#endif

void
kpi_cloner_enter_vnet(void)
{

	if (kpi_cloner.name != NULL && V_kpi_vnet_cloner == NULL)
		V_kpi_vnet_cloner = kpi_cloner_add();
}

void
kpi_cloner_leave_vnet(void)
{
	struct if_clone *cloner = V_kpi_vnet_cloner;

	V_kpi_vnet_cloner = NULL;
	if (cloner != NULL)
		kpi_cloner_remove(cloner);
}

int
rust_helper_cloner_attach(const char *name,
    const struct kpi_cloner_callbacks *callbacks, void *owner)
{
	VNET_ITERATOR_DECL(vnet);
	bool is_everywhere = true;

	kpi_cloner.callbacks = callbacks;
	kpi_cloner.owner = owner;
	kpi_cloner.name = name;
	VNET_LIST_RLOCK();
	VNET_FOREACH(vnet) {
		CURVNET_SET(vnet);
		kpi_cloner_enter_vnet();
		is_everywhere &= V_kpi_vnet_cloner != NULL;
		CURVNET_RESTORE();
	}
	VNET_LIST_RUNLOCK();
	if (is_everywhere)
		return (0);
	rust_helper_cloner_detach();
	return (EEXIST);
}

void
rust_helper_cloner_detach(void)
{
	VNET_ITERATOR_DECL(vnet);

	VNET_LIST_RLOCK();
	VNET_FOREACH(vnet) {
		CURVNET_SET(vnet);
		kpi_cloner_leave_vnet();
		CURVNET_RESTORE();
	}
	VNET_LIST_RUNLOCK();
	kpi_cloner.name = NULL;
}
