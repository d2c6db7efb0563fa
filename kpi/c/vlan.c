/*
 * Children: interfaces that vlan(4) puts on that of a port, and that the driver
 * then drives, each in the partition that its tag says.
 *
 * vlan(4) takes a child to be a tag on packets of the port.  It gives it the
 * address, the MTU and the link state of the port, and does so again whenever
 * the port's change; a child has its own, which are put back each time.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>
#include <sys/eventhandler.h>
#include <sys/kernel.h>
#include <sys/mbuf.h>
#include <sys/socket.h>
#include <sys/sockio.h>
#include <sys/taskqueue.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_dl.h>
#include <net/if_types.h>
#include <net/ethernet.h>
#include <net/if_vlan_var.h>
#include <net/infiniband.h>
#include <net/vnet.h>

#if __FreeBSD_version >= 1400092
#include <net/if_private.h>
#endif

#include "link.h"

/* What the driver answers itself; vlan(4) knows the rest. */
static bool
kpi_vlan_is_of_driver(u_long command)
{

	switch (command) {
	case SIOCSIFFLAGS:
	case SIOCADDMULTI:
	case SIOCDELMULTI:
	case SIOCSIFADDR:
	case SIOCGIFADDR:
	case SIOCSIFMTU:
		return (true);
	default:
		return (false);
	}
}

static int
kpi_vlan_ioctl(if_t ifp, u_long command, caddr_t data)
{
	struct kpi_ifnet *child = kpi_if_hold(ifp);
	if_ioctl_fn_t stock_ioctl;
	int error;

	if (child == NULL)
		return (ENXIO);
	if (kpi_vlan_is_of_driver(command)) {
		error = kpi_if_control(child, command, data);
		kpi_if_release(child);
		return (error);
	}
	/* It may be what takes the child away. */
	stock_ioctl = child->stock_ioctl;
	kpi_if_release(child);
	return (stock_ioctl(ifp, command, data));
}

static void
kpi_vlan_take(struct kpi_ifnet *child)
{
	if_t ifp = child->ifp;

	child->stock_transmit = ifp->if_transmit;
	child->stock_qflush = ifp->if_qflush;
	child->stock_ioctl = ifp->if_ioctl;
	child->stock_get_counter = ifp->if_get_counter;
	child->stock_requestencap = ifp->if_requestencap;
	/* It was set by vlan(4), and means nothing yet. */
	if_setdrvflagbits(ifp, 0, IFF_DRV_RUNNING);
	ifp->if_addrlen = KPI_LINK_ADDRESS_LEN;
	ifp->if_hdrlen = INFINIBAND_HDR_LEN;
	ifp->if_broadcastaddr = child->broadcast;
	ifp->if_input = kpi_link_input;
	ifp->if_resolvemulti = kpi_link_resolvemulti;
	ifp->if_requestencap = kpi_link_requestencap;
	if_setqflushfn(ifp, kpi_if_qflush);
	if_setgetcounterfn(ifp, kpi_if_get_counter);
	if_setioctlfn(ifp, kpi_vlan_ioctl);
	if_settransmitfn(ifp, kpi_if_transmit);
}

/*
 * What vlan(4) itself does not set again.  What it has overwritten before we
 * were told is not known, and becomes something that does no harm to an
 * interface that carries nothing.
 */
static void
kpi_vlan_give_back(struct kpi_ifnet *child)
{
	if_t ifp = child->ifp;

	/* The stack has taken all handlers away already. */
	if ((if_getflags(ifp) & IFF_DYING) != 0)
		return;
	ifp->if_transmit = child->stock_transmit;
	ifp->if_qflush = child->stock_qflush;
	ifp->if_ioctl = child->stock_ioctl;
	ifp->if_get_counter = child->stock_get_counter;
	ifp->if_requestencap = child->stock_requestencap;
	ifp->if_input = ether_demux;
	ifp->if_resolvemulti = NULL;
	ifp->if_addrlen = ETHER_ADDR_LEN;
	ifp->if_hdrlen = ETHER_VLAN_ENCAP_LEN;
	((struct sockaddr_dl *)if_getifaddr(ifp)->ifa_addr)->sdl_alen =
	    ETHER_ADDR_LEN;
	/* Anything that lives as long as the interface. */
	ifp->if_broadcastaddr = if_getlladdr(ifp);
}

int
rust_helper_if_adopt(const struct kpi_vlan *vlan,
    const struct kpi_ifnet_config *config, struct kpi_ifnet **out)
{
	struct kpi_ifnet *child;
	if_t ifp = vlan->interface;

	child = malloc(sizeof(*child), M_KPI_IFNET, M_WAITOK | M_ZERO);
	sx_init(&child->flags_sx, "ipoib flags");
	child->ifp = ifp;
	child->callbacks = config->callbacks;
	child->driver = config->driver;
	child->port = vlan->port;
	child->tag = vlan->tag;
	child->link_state = LINK_STATE_DOWN;
	memcpy(child->broadcast, config->broadcast, KPI_LINK_ADDRESS_LEN);
	VLAN_SETCOOKIE(ifp, child);
	kpi_vlan_take(child);
	if_setmtu(ifp, config->mtu);
	mtx_lock(&child->port->children_mtx);
	LIST_INSERT_HEAD(&child->port->children, child, siblings);
	kpi_if_write_address(child, config->address);
	if_link_state_change(ifp, LINK_STATE_DOWN);
	mtx_unlock(&child->port->children_mtx);
	*out = child;
	return (0);
}

void
rust_helper_if_refresh(struct kpi_ifnet *interface)
{

	/* Who was to be told before may not have been there yet. */
	kpi_if_set_flags(interface, true);
}

void
kpi_vlan_abandon(struct kpi_ifnet *child)
{

	mtx_lock(&child->port->children_mtx);
	LIST_REMOVE(child, siblings);
	mtx_unlock(&child->port->children_mtx);
	VLAN_SETCOOKIE(child->ifp, NULL);
	kpi_vlan_give_back(child);
	kpi_if_wait_for_users(child);
}

void
kpi_vlan_set_link(struct kpi_ifnet *child, int link_state)
{

	mtx_lock(&child->port->children_mtx);
	child->link_state = link_state;
	/* Once it is abandoned, it is not ours to change. */
	if (VLAN_COOKIE(child->ifp) == child)
		if_link_state_change(child->ifp, link_state);
	mtx_unlock(&child->port->children_mtx);
}

/* The child of an interface of vlan(4), or with a tag. */
static struct kpi_ifnet *
kpi_vlan_find(struct kpi_ifnet *port, if_t ifp, uint16_t tag)
{
	struct kpi_ifnet *child;

	mtx_lock(&port->children_mtx);
	LIST_FOREACH(child, &port->children, siblings)
		if (ifp != NULL ? child->ifp == ifp : child->tag == tag)
			break;
	mtx_unlock(&port->children_mtx);
	return (child);
}

/* Events of vlan(4) come one at a time: it holds its lock, which may sleep. */
static void
kpi_vlan_remove(struct kpi_ifnet *port, struct kpi_ifnet *child)
{
	if_t ifp = child->ifp;

	port->callbacks->child_unconfigured(port->driver, child->tag);
	/* A change of the link that was still to be told. */
	taskqueue_drain(taskqueue_swi, &ifp->if_linktask);
}

static void
kpi_vlan_configured(void *argument, if_t parent, uint16_t tag)
{
	struct kpi_ifnet *port = argument, *child;
	struct kpi_vlan vlan = { .port = port, .tag = tag };
	struct epoch_tracker et;

	if (parent != port->ifp)
		return;
	NET_EPOCH_ENTER(et);
	vlan.interface = VLAN_DEVAT(parent, tag);
	NET_EPOCH_EXIT(et);
	if (vlan.interface == NULL)
		return;
	child = kpi_vlan_find(port, vlan.interface, 0);
	if (child != NULL) {
		if (child->tag == tag)
			return;
		/* Since FreeBSD 15: it was given another tag. */
		kpi_vlan_remove(port, child);
	}
	port->callbacks->child_configured(port->driver, &vlan);
}

static void
kpi_vlan_unconfigured(void *argument, if_t parent, uint16_t tag)
{
	struct kpi_ifnet *port = argument, *child;

	if (parent != port->ifp)
		return;
	child = kpi_vlan_find(port, NULL, tag);
	if (child != NULL)
		kpi_vlan_remove(port, child);
}

/* After vlan(4) has given the port's address to all of them, or somebody
   another one to one of them. */
static void
kpi_vlan_address_changed(void *argument, if_t ifp)
{
	struct kpi_ifnet *port = argument, *child;

	mtx_lock(&port->children_mtx);
	LIST_FOREACH(child, &port->children, siblings)
		if ((ifp == port->ifp || ifp == child->ifp) &&
		    memcmp(if_getlladdr(child->ifp), child->address,
		    KPI_LINK_ADDRESS_LEN) != 0)
			kpi_if_write_address(child, child->address);
	mtx_unlock(&port->children_mtx);
}

/* After vlan(4) has given the port's state to all of them. */
static void
kpi_vlan_link_changed(void *argument, if_t ifp, int link_state __unused)
{
	struct kpi_ifnet *port = argument, *child;

	if (ifp != port->ifp)
		return;
	mtx_lock(&port->children_mtx);
	LIST_FOREACH(child, &port->children, siblings)
		if_link_state_change(child->ifp, child->link_state);
	mtx_unlock(&port->children_mtx);
}

void
kpi_vlan_watch(struct kpi_ifnet *port)
{

	mtx_init(&port->children_mtx, "ipoib children", NULL, MTX_DEF);
	LIST_INIT(&port->children);
	port->on_vlan_config = EVENTHANDLER_REGISTER(vlan_config,
	    kpi_vlan_configured, port, EVENTHANDLER_PRI_FIRST);
	port->on_vlan_unconfig = EVENTHANDLER_REGISTER(vlan_unconfig,
	    kpi_vlan_unconfigured, port, EVENTHANDLER_PRI_FIRST);
	port->on_address = EVENTHANDLER_REGISTER(iflladdr_event,
	    kpi_vlan_address_changed, port, EVENTHANDLER_PRI_LAST);
	port->on_link = EVENTHANDLER_REGISTER(ifnet_link_event,
	    kpi_vlan_link_changed, port, EVENTHANDLER_PRI_FIRST);
}

void
kpi_vlan_unwatch(struct kpi_ifnet *port)
{

	/* Each waits for events that are being told. */
	EVENTHANDLER_DEREGISTER(vlan_config, port->on_vlan_config);
	EVENTHANDLER_DEREGISTER(vlan_unconfig, port->on_vlan_unconfig);
	EVENTHANDLER_DEREGISTER(iflladdr_event, port->on_address);
	EVENTHANDLER_DEREGISTER(ifnet_link_event, port->on_link);
	mtx_destroy(&port->children_mtx);
}
