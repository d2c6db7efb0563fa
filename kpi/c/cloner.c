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
#include <sys/malloc.h>
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

/* The cloner of one vnet. */
struct kpi_vnet_cloner {
	SLIST_ENTRY(kpi_vnet_cloner) others;
	struct vnet	*vnet;
	struct if_clone	*cloner;
};

/*
 * All of them, and the vnet whose one is just being taken away.  The mutex is a
 * leaf: neither it nor the lock of the list of vnets is held while interfaces
 * are destroyed.
 */
static struct mtx kpi_cloner_mtx;
static SLIST_HEAD(, kpi_vnet_cloner) kpi_vnet_cloners;
static struct kpi_vnet_cloner *kpi_cloner_going;

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

static int
kpi_cloner_enter(void)
{
	struct kpi_vnet_cloner *one;

	one = malloc(sizeof(*one), M_KPI_IFNET, M_WAITOK | M_ZERO);
	one->vnet = curvnet;
	one->cloner = kpi_cloner_add();
	if (one->cloner == NULL) {
		free(one, M_KPI_IFNET);
		return (EEXIST);
	}
	mtx_lock(&kpi_cloner_mtx);
	SLIST_INSERT_HEAD(&kpi_vnet_cloners, one, others);
	mtx_unlock(&kpi_cloner_mtx);
	return (0);
}

/*
 * Takes the cloner of a vnet out, or any if that is NULL.  They are taken away
 * one at a time, so that no vnet goes while its cloner does.
 */
static struct kpi_vnet_cloner *
kpi_cloner_take(struct vnet *vnet)
{
	struct kpi_vnet_cloner *one;

	mtx_lock(&kpi_cloner_mtx);
	while (kpi_cloner_going != NULL)
		mtx_sleep(&kpi_cloner_going, &kpi_cloner_mtx, 0, "ibclon", 0);
	SLIST_FOREACH(one, &kpi_vnet_cloners, others)
		if (vnet == NULL || one->vnet == vnet)
			break;
	if (one != NULL)
		SLIST_REMOVE(&kpi_vnet_cloners, one, kpi_vnet_cloner, others);
	kpi_cloner_going = one;
	mtx_unlock(&kpi_cloner_mtx);
	return (one);
}

/* Destroys all that it created. */
static void
kpi_cloner_leave(struct kpi_vnet_cloner *one)
{

	CURVNET_SET_QUIET(one->vnet);
	kpi_cloner_remove(one->cloner);
	CURVNET_RESTORE();
	mtx_lock(&kpi_cloner_mtx);
	kpi_cloner_going = NULL;
	wakeup(&kpi_cloner_going);
	mtx_unlock(&kpi_cloner_mtx);
	free(one, M_KPI_IFNET);
}

void
kpi_cloner_enter_vnet(void)
{

	/* A vnet that cannot have one is without. */
	if (kpi_cloner.name != NULL)
		(void)kpi_cloner_enter();
}

void
kpi_cloner_leave_vnet(void)
{
	struct kpi_vnet_cloner *one;

	if (kpi_cloner.name == NULL)
		return;
	one = kpi_cloner_take(curvnet);
	if (one != NULL)
		kpi_cloner_leave(one);
}

int
rust_helper_cloner_attach(const char *name,
    const struct kpi_cloner_callbacks *callbacks, void *owner)
{
	VNET_ITERATOR_DECL(vnet);
	int error = 0;

	mtx_init(&kpi_cloner_mtx, "ipoib cloners", NULL, MTX_DEF);
	kpi_cloner.callbacks = callbacks;
	kpi_cloner.owner = owner;
	kpi_cloner.name = name;
	VNET_LIST_RLOCK();
	VNET_FOREACH(vnet) {
		CURVNET_SET(vnet);
		if (error == 0)
			error = kpi_cloner_enter();
		CURVNET_RESTORE();
	}
	VNET_LIST_RUNLOCK();
	if (error != 0)
		rust_helper_cloner_detach();
	return (error);
}

void
rust_helper_cloner_detach(void)
{
	struct kpi_vnet_cloner *one;

	while ((one = kpi_cloner_take(NULL)) != NULL)
		kpi_cloner_leave(one);
	kpi_cloner.name = NULL;
	mtx_destroy(&kpi_cloner_mtx);
}
