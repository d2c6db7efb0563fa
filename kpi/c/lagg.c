/*
 * A lagg and its ports, between the network stack and what drives the lagg.
 *
 * A port is an interface whose ioctl and output are ours while it is one, as it
 * is with if_lagg(4).  What a port is to whom is found in the net epoch, and
 * changed with kpi_lagg_mtx held; that is a leaf, and nothing is called under
 * it.
 */
#include "opt_inet.h"
#include "opt_inet6.h"

#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>
#include <sys/callout.h>
#include <sys/eventhandler.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/malloc.h>
#include <sys/mbuf.h>
#include <sys/mutex.h>
#include <sys/priv.h>
#include <sys/proc.h>
#include <sys/socket.h>
#include <sys/sockio.h>
#include <sys/sx.h>
#include <sys/sysctl.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_dl.h>
#include <net/if_media.h>
#include <net/if_types.h>
#include <net/ethernet.h>
#include <net/infiniband.h>
#include <net/if_lagg.h>
#include <net/route.h>
#include <net/vnet.h>

#include <netinet/in.h>
#include <netinet/if_ether.h>
#ifdef INET6
#include <netinet6/in6_var.h>
#include <netinet6/in6_ifattach.h>
#include <netinet6/nd6.h>
#endif

#if __FreeBSD_version >= 1400092
#include <net/if_private.h>
#endif

#include "lagg.h"
#include "link.h"

/* Flags of a lagg that its ports have for it. */
#define	KPI_LAGG_PORT_FLAGS	(IFF_PROMISC | IFF_ALLMULTI)
/* Of an interface of another driver, which says itself what it does not take. */
#define	KPI_LAGG_MTU_MAX	65520
/* What has not been given a cookie is no port to the driver. */
#define	KPI_LAGG_NO_COOKIE	UINT64_MAX

struct kpi_lagg_port {
	struct kpi_ifnet *lagg;
	if_t		 ifp;		/* A reference is held. */
	struct kpi_ifnet *own;		/* NULL: of another driver. */
	uint64_t	 cookie;
	int		 flags;		/* Those it has for the lagg. */
	/* What it had before, and has again afterwards. */
	u_char		 type;
	int		(*ioctl)(if_t, u_long, caddr_t);
	int		(*output)(if_t, struct mbuf *, const struct sockaddr *,
			    struct route *);
};

static struct mtx kpi_lagg_mtx;
static bool kpi_lagg_is_alone;
static eventhandler_tag kpi_lagg_on_departure;
static eventhandler_tag kpi_lagg_on_address;
static eventhandler_tag kpi_lagg_on_link;

extern struct mbuf *(*lagg_input_infiniband_p)(struct ifnet *, struct mbuf *);

/* In the net epoch, or with the mutex held. */
static struct kpi_lagg_port *
kpi_lagg_port_of(if_t ifp)
{
	struct kpi_ifnet *own;

	if (ifp->if_transmit == kpi_if_transmit) {
		own = kpi_if_of(ifp);
		return (own == NULL ? NULL :
		    (void *)atomic_load_acq_ptr((void *)&own->lagg_port));
	}
	/* With if_lagg(4) beside us, this is its own. */
	return (kpi_lagg_is_alone ? ifp->if_lagg : NULL);
}

/* The lagg of a port, for a thread that may sleep; to be given back. */
static struct kpi_ifnet *
kpi_lagg_hold(if_t ifp, uint64_t *cookie)
{
	struct kpi_ifnet *lagg = NULL;
	struct kpi_lagg_port *port;
	struct epoch_tracker et;

	NET_EPOCH_ENTER(et);
	port = kpi_lagg_port_of(ifp);
	if (port != NULL) {
		*cookie = port->cookie;
		lagg = kpi_if_hold(port->lagg->ifp);
	}
	NET_EPOCH_EXIT(et);
	return (lagg);
}

static void
kpi_lagg_depart(if_t ifp)
{
	struct kpi_ifnet *lagg;
	uint64_t cookie;

	lagg = kpi_lagg_hold(ifp, &cookie);
	if (lagg == NULL)
		return;
	lagg->lagg->port_departs(lagg->driver, cookie);
	kpi_if_release(lagg);
}

static void
kpi_lagg_departed(void *argument __unused, if_t ifp)
{

	if ((if_getflags(ifp) & IFF_RENAMING) == 0)
		kpi_lagg_depart(ifp);
}

/* A child may go without its interface. */
void
kpi_lagg_port_departs(struct kpi_ifnet *interface)
{

	if (interface->lagg_port != NULL)
		kpi_lagg_depart(interface->ifp);
}

static void
kpi_lagg_changed(if_t ifp)
{
	struct kpi_lagg_port *port;
	struct epoch_tracker et;

	NET_EPOCH_ENTER(et);
	port = kpi_lagg_port_of(ifp);
	if (port != NULL)
		port->lagg->lagg->ports_changed(port->lagg->driver);
	NET_EPOCH_EXIT(et);
}

void
kpi_lagg_port_changed(struct kpi_ifnet *interface)
{

	if (interface->lagg_port != NULL)
		kpi_lagg_changed(interface->ifp);
}

/* Whether it is one: it has no IP addresses, so the lagg announces. */
bool
kpi_lagg_port_moved(struct kpi_ifnet *interface)
{
	struct kpi_lagg_port *port;
	struct epoch_tracker et;

	NET_EPOCH_ENTER(et);
	port = (void *)atomic_load_acq_ptr((void *)&interface->lagg_port);
	if (port != NULL)
		port->lagg->lagg->port_moved(port->lagg->driver, port->cookie);
	NET_EPOCH_EXIT(et);
	return (port != NULL);
}

static void
kpi_lagg_address_changed(void *argument __unused, if_t ifp)
{

	kpi_lagg_changed(ifp);
}

static void
kpi_lagg_link_changed(void *argument __unused, if_t ifp, int state __unused)
{

	kpi_lagg_changed(ifp);
}

/* Consumes the packet, which has no link header.  In the net epoch. */
void
kpi_lagg_receive(struct kpi_lagg_port *port, struct mbuf *m,
    const struct kpi_link_received *received)
{
	struct kpi_link_header room;
	struct kpi_ifnet *lagg = port->lagg;
	uint32_t cast = KPI_IF_UNICAST;

	if ((m->m_flags & M_BCAST) != 0)
		cast = KPI_IF_BROADCAST;
	else if ((m->m_flags & M_MCAST) != 0)
		cast = KPI_IF_MULTICAST;
	if (lagg->lagg->receives(lagg->driver, port->cookie, cast) != 0) {
		m_freem(m);
		return;
	}
	CURVNET_SET_QUIET(lagg->ifp->if_vnet);
	m->m_pkthdr.rcvif = lagg->ifp;
	if (kpi_link_is_tapped(lagg))
		kpi_link_tap(lagg, m, kpi_link_header_of(received, &room));
	kpi_link_receive(lagg, m, received);
	CURVNET_RESTORE();
}

/* A packet of another driver's interface, with the link header in front. */
static struct mbuf *
kpi_lagg_input(if_t ifp, struct mbuf *m)
{
	struct kpi_link_header header;
	struct kpi_link_received received;
	struct kpi_lagg_port *port;

	port = kpi_lagg_port_of(ifp);
	if (port == NULL || m->m_pkthdr.len < (int)sizeof(header)) {
		m_freem(m);
		return (NULL);
	}
	m_copydata(m, 0, sizeof(header), (caddr_t)&header);
	m_adj(m, sizeof(header));
	received = (struct kpi_link_received){ .header = &header,
	    .protocol = header.protocol };
	kpi_lagg_receive(port, m, &received);
	return (NULL);
}

/* The stack calls it for every port; our news come from the event. */
static void
kpi_lagg_linkstate(if_t ifp __unused, int state __unused)
{
}

void
rust_helper_lagg_start(int is_alone)
{

	mtx_init(&kpi_lagg_mtx, "ipoib lagg ports", NULL, MTX_DEF);
	kpi_lagg_is_alone = is_alone != 0;
	if (kpi_lagg_is_alone) {
		lagg_input_infiniband_p = kpi_lagg_input;
		lagg_linkstate_p = kpi_lagg_linkstate;
	}
	kpi_lagg_on_departure = EVENTHANDLER_REGISTER(ifnet_departure_event,
	    kpi_lagg_departed, NULL, EVENTHANDLER_PRI_ANY);
	kpi_lagg_on_address = EVENTHANDLER_REGISTER(iflladdr_event,
	    kpi_lagg_address_changed, NULL, EVENTHANDLER_PRI_ANY);
	kpi_lagg_on_link = EVENTHANDLER_REGISTER(ifnet_link_event,
	    kpi_lagg_link_changed, NULL, EVENTHANDLER_PRI_ANY);
}

void
rust_helper_lagg_stop(void)
{

	/* Each waits for handlers that run. */
	EVENTHANDLER_DEREGISTER(ifnet_departure_event, kpi_lagg_on_departure);
	EVENTHANDLER_DEREGISTER(iflladdr_event, kpi_lagg_on_address);
	EVENTHANDLER_DEREGISTER(ifnet_link_event, kpi_lagg_on_link);
	if (kpi_lagg_is_alone) {
		lagg_input_infiniband_p = NULL;
		lagg_linkstate_p = NULL;
	}
	NET_EPOCH_WAIT();
	mtx_destroy(&kpi_lagg_mtx);
}

/* The interface that a request is about; ifioctl() has checked its own only. */
static struct ifnet *
kpi_lagg_named(struct lagg_reqport *request)
{

	if (strnlen(request->rp_portname, sizeof(request->rp_portname)) ==
	    sizeof(request->rp_portname))
		return (NULL);
	return (ifunit_ref(request->rp_portname));
}

static int
kpi_lagg_request(struct kpi_ifnet *lagg, enum kpi_lagg_request request,
    caddr_t data)
{
	struct ifnet *named = NULL;

	switch (request) {
	case KPI_LAGG_GET_PORT:
	case KPI_LAGG_ADD_PORT:
	case KPI_LAGG_REMOVE_PORT:
		named = kpi_lagg_named((struct lagg_reqport *)data);
		if (named == NULL)
			return (EINVAL);
		break;
	default:
		break;
	}
	return (lagg->lagg->request(lagg->driver, request, data, named));
}

static int
kpi_lagg_change(struct kpi_ifnet *lagg, enum kpi_lagg_request request,
    caddr_t data)
{
	int error;

	error = priv_check(curthread, PRIV_NET_LAGG);
	if (error != 0)
		return (error);
	return (kpi_lagg_request(lagg, request, data));
}

/* What is asked of the lagg. */
int
kpi_lagg_control(struct kpi_ifnet *lagg, u_long command, caddr_t data)
{
	int error;

	switch (command) {
	case SIOCGLAGG:
		return (kpi_lagg_request(lagg, KPI_LAGG_GET, data));
	case SIOCSLAGG:
		return (kpi_lagg_change(lagg, KPI_LAGG_SET, data));
	case SIOCGLAGGFLAGS:
		return (kpi_lagg_request(lagg, KPI_LAGG_GET_FLAGS, data));
	case SIOCSLAGGHASH:
		return (kpi_lagg_change(lagg, KPI_LAGG_SET_HASH, data));
	case SIOCGLAGGOPTS:
		return (kpi_lagg_request(lagg, KPI_LAGG_GET_OPTIONS, data));
	case SIOCSLAGGOPTS:
		return (kpi_lagg_change(lagg, KPI_LAGG_SET_OPTIONS, data));
	case SIOCGLAGGPORT:
		return (kpi_lagg_request(lagg, KPI_LAGG_GET_PORT, data));
	case SIOCSLAGGPORT:
		return (kpi_lagg_change(lagg, KPI_LAGG_ADD_PORT, data));
	case SIOCSLAGGDELPORT:
		return (kpi_lagg_change(lagg, KPI_LAGG_REMOVE_PORT, data));
	case SIOCSIFCAP:
		/* A lagg can do what its ports do. */
		return (EINVAL);
	case SIOCSIFFLAGS:
		error = kpi_if_control(lagg, command, data);
		lagg->lagg->flags_changed(lagg->driver);
		return (error);
	default:
		return (kpi_if_control(lagg, command, data));
	}
}

/* What is asked of a port. */
static int
kpi_lagg_port_ioctl(if_t ifp, u_long command, caddr_t data)
{
	int (*ioctl)(if_t, u_long, caddr_t) = NULL;
	struct kpi_lagg_port *port;
	struct epoch_tracker et;
	int error = ENXIO;

	NET_EPOCH_ENTER(et);
	port = kpi_lagg_port_of(ifp);
	if (port == NULL) {
		/* It has left just now. */
		if (ifp->if_ioctl != kpi_lagg_port_ioctl)
			ioctl = ifp->if_ioctl;
	} else if (command == SIOCGLAGGPORT) {
		error = port->lagg->lagg->describe(port->lagg->driver,
		    port->cookie, data);
	} else if (command == SIOCSIFMTU) {
		/* That is for the lagg to say. */
		error = EINVAL;
	} else
		ioctl = port->ioctl;
	NET_EPOCH_EXIT(et);
	if (ioctl != NULL)
		error = ioctl(ifp, command, data);
	if (command == SIOCSIFCAP)
		kpi_lagg_changed(ifp);
	return (error);
}

/* A port sends what has a link header already; all else is for the lagg. */
static int
kpi_lagg_port_output(if_t ifp, struct mbuf *m, const struct sockaddr *dst,
    struct route *ro)
{
	struct kpi_lagg_port *port;

	NET_EPOCH_ASSERT();
	port = kpi_lagg_port_of(ifp);
	if (port != NULL && (dst->sa_family == pseudo_AF_HDRCMPLT ||
	    dst->sa_family == AF_UNSPEC))
		return (port->output(ifp, m, dst, ro));
	m_freem(m);
	return (ENETDOWN);
}

/* The mutex is held. */
static int
kpi_lagg_port_check(struct kpi_ifnet *lagg, if_t ifp, struct kpi_ifnet *own)
{
	struct kpi_lagg_port *port;

	/* A lagg is no port, least of all its own. */
	if (own != NULL && own->lagg != NULL)
		return (EINVAL);
	port = kpi_lagg_port_of(ifp);
	if (port != NULL)
		return (port->lagg == lagg ? EEXIST : EBUSY);
	/* Of an if_lagg(4). */
	if (ifp->if_lagg != NULL)
		return (EBUSY);
	/* A child of ours is an interface of vlan(4). */
	if (own != NULL)
		return (0);
	if (ifp->if_type != IFT_INFINIBAND || !kpi_lagg_is_alone)
		return (EPROTONOSUPPORT);
	return (0);
}

/* The mutex is held. */
static void
kpi_lagg_port_take(struct kpi_lagg_port *port)
{
	if_t ifp = port->ifp;

	port->type = ifp->if_type;
	port->ioctl = ifp->if_ioctl;
	port->output = ifp->if_output;
	if (port->own != NULL)
		atomic_store_rel_ptr((void *)&port->own->lagg_port,
		    (uintptr_t)port);
	else
		ifp->if_lagg = port;
	/* By which its structure is found. */
	if (ifp->if_type != IFT_L2VLAN)
		ifp->if_type = IFT_INFINIBANDLAG;
	ifp->if_ioctl = kpi_lagg_port_ioctl;
	ifp->if_output = kpi_lagg_port_output;
}

static void
kpi_lagg_port_give_back(struct kpi_lagg_port *port)
{
	if_t ifp = port->ifp;

	mtx_lock(&kpi_lagg_mtx);
	ifp->if_type = port->type;
	ifp->if_ioctl = port->ioctl;
	ifp->if_output = port->output;
	if (port->own != NULL)
		atomic_store_rel_ptr((void *)&port->own->lagg_port,
		    (uintptr_t)NULL);
	else
		ifp->if_lagg = NULL;
	mtx_unlock(&kpi_lagg_mtx);
	/* Of those who have found it. */
	NET_EPOCH_WAIT();
}

static void
kpi_lagg_port_set_flag(struct kpi_lagg_port *port, int flag, int wanted,
    int (*set)(if_t, int))
{
	int is_set = (port->flags & flag) != 0;

	if (is_set != wanted && set(port->ifp, wanted) == 0)
		port->flags ^= flag;
}

/* They are counted, so that nobody's are taken away. */
static void
kpi_lagg_port_set_flags(struct kpi_lagg_port *port, int flags)
{

	CURVNET_SET(port->ifp->if_vnet);
	kpi_lagg_port_set_flag(port, IFF_PROMISC, (flags & IFF_PROMISC) != 0,
	    ifpromisc);
	kpi_lagg_port_set_flag(port, IFF_ALLMULTI,
	    (flags & IFF_ALLMULTI) != 0, if_allmulti);
	CURVNET_RESTORE();
}

static bool
kpi_lagg_is_there(if_t ifp)
{
	if_t found;

	CURVNET_SET(ifp->if_vnet);
	found = ifunit_ref(if_name(ifp));
	CURVNET_RESTORE();
	if (found != NULL)
		if_rele(found);
	return (found == ifp);
}

#ifdef INET6
/* Two interfaces of one link must not have link-local addresses (RFC 4007). */
static void
kpi_lagg_remove_link_local(if_t ifp)
{
	struct in6_ifaddr *address;

	CURVNET_SET(ifp->if_vnet);
	address = in6ifa_llaonifp(ifp);
	if (address != NULL)
		in6_ifdetach(ifp);
	CURVNET_RESTORE();
}
#endif

int
rust_helper_lagg_port_attach(struct kpi_ifnet *lagg, struct ifnet *ifp,
    struct kpi_lagg_port **out)
{
	struct kpi_lagg_port *port;
	int error;

	port = malloc(sizeof(*port), M_KPI_IFNET, M_WAITOK | M_ZERO);
	port->lagg = lagg;
	port->ifp = ifp;
	port->cookie = KPI_LAGG_NO_COOKIE;
	if (ifp->if_transmit == kpi_if_transmit)
		port->own = kpi_if_hold(ifp);
	mtx_lock(&kpi_lagg_mtx);
	error = kpi_lagg_port_check(lagg, ifp, port->own);
	if (error == 0)
		kpi_lagg_port_take(port);
	mtx_unlock(&kpi_lagg_mtx);
	if (error == 0 && !kpi_lagg_is_there(ifp)) {
		/* Its departure may have come before it was a port. */
		kpi_lagg_port_give_back(port);
		error = ENXIO;
	}
	if (port->own != NULL)
		kpi_if_release(port->own);
	if (error != 0) {
		free(port, M_KPI_IFNET);
		return (error);
	}
	if_ref(ifp);
#ifdef INET6
	kpi_lagg_remove_link_local(ifp);
#endif
	*out = port;
	return (0);
}

void
rust_helper_lagg_port_detach(struct kpi_lagg_port *port)
{

	kpi_lagg_port_set_flags(port, 0);
	kpi_lagg_port_give_back(port);
}

void
rust_helper_lagg_port_free(struct kpi_lagg_port *port)
{

	if_rele(port->ifp);
	free(port, M_KPI_IFNET);
}

int
rust_helper_lagg_port_is(const struct kpi_lagg_port *port,
    const struct ifnet *named)
{

	return (port->ifp == named);
}

const char *
rust_helper_lagg_port_name(const struct kpi_lagg_port *port)
{

	return (if_name(port->ifp));
}

void
rust_helper_lagg_port_set_cookie(struct kpi_lagg_port *port, uint64_t cookie)
{

	atomic_store_rel_64(&port->cookie, cookie);
}

static uint32_t
kpi_lagg_port_link(const struct kpi_lagg_port *port)
{
	if_t ifp = port->ifp;

	if (ifp->if_link_state != LINK_STATE_UP ||
	    (if_getflags(ifp) & IFF_UP) == 0)
		return (KPI_LAGG_LINK_DOWN);
	/*
	 * Ours have a link when the group is joined.  Of others nothing better
	 * is to be had.
	 */
	return (KPI_LAGG_LINK_JOINED);
}

void
rust_helper_lagg_port_report(const struct kpi_lagg_port *port,
    struct kpi_lagg_report *report)
{
	struct kpi_ifnet *own = port->own;
	if_t ifp = port->ifp;

	report->supported = (uint32_t)if_getcapabilities(ifp);
	report->enabled = (uint32_t)if_getcapenable(ifp);
	report->assist = (uint32_t)if_gethwassist(ifp);
	report->bits_per_second = if_getbaudrate(ifp);
	report->link = kpi_lagg_port_link(port);
	report->mtu = if_getmtu(ifp);
	report->mtu_max = own == NULL ? KPI_LAGG_MTU_MAX :
	    own->callbacks->mtu_max(own->driver);
	memcpy(report->address, if_getlladdr(ifp), KPI_LINK_ADDRESS_LEN);
	memcpy(report->broadcast, ifp->if_broadcastaddr,
	    KPI_LINK_ADDRESS_LEN);
}

uint64_t
rust_helper_lagg_port_counter(const struct kpi_lagg_port *port,
    uint32_t counter)
{
	static const ift_counter which[] = {
		[KPI_IF_IPACKETS] = IFCOUNTER_IPACKETS,
		[KPI_IF_IERRORS] = IFCOUNTER_IERRORS,
		[KPI_IF_IBYTES] = IFCOUNTER_IBYTES,
		[KPI_IF_IMCASTS] = IFCOUNTER_IMCASTS,
		[KPI_IF_IQDROPS] = IFCOUNTER_IQDROPS,
		[KPI_IF_OPACKETS] = IFCOUNTER_OPACKETS,
		[KPI_IF_OERRORS] = IFCOUNTER_OERRORS,
		[KPI_IF_OBYTES] = IFCOUNTER_OBYTES,
		[KPI_IF_OMCASTS] = IFCOUNTER_OMCASTS,
		[KPI_IF_OQDROPS] = IFCOUNTER_OQDROPS,
	};

	if (counter < KPI_IF_IPACKETS || counter >= nitems(which))
		return (0);
	return (port->ifp->if_get_counter(port->ifp, which[counter]));
}

int
rust_helper_lagg_port_transmit(const struct kpi_lagg_port *port,
    struct mbuf *m, const struct kpi_link_header *header)
{
	if_t ifp = port->ifp;

	NET_EPOCH_ASSERT();
	M_PREPEND(m, (int)sizeof(*header), M_NOWAIT);
	if (m == NULL)
		return (ENOBUFS);
	memcpy(mtod(m, void *), header, sizeof(*header));
	return (ifp->if_transmit(ifp, m));
}

int
rust_helper_lagg_port_set_up(struct kpi_lagg_port *port, int is_up)
{
	struct ifreq ifr = { };
	if_t ifp = port->ifp;
	int error;

	CURVNET_SET(ifp->if_vnet);
	if (is_up)
		if_up(ifp);
	else
		if_down(ifp);
	error = port->ioctl(ifp, SIOCSIFFLAGS, (caddr_t)&ifr);
	CURVNET_RESTORE();
	return (error);
}

int
rust_helper_lagg_port_set_mtu(struct kpi_lagg_port *port, uint32_t mtu)
{
	struct ifreq ifr = { .ifr_mtu = mtu };
	if_t ifp = port->ifp;
	int error;

	strlcpy(ifr.ifr_name, if_name(ifp), sizeof(ifr.ifr_name));
	CURVNET_SET(ifp->if_vnet);
	error = port->ioctl(ifp, SIOCSIFMTU, (caddr_t)&ifr);
	CURVNET_RESTORE();
	return (error);
}

static struct sockaddr *
kpi_lagg_group(struct kpi_lagg_port *port, const uint8_t *group,
    struct sockaddr_dl *place)
{
	struct sockaddr_dl *sdl;

	sdl = link_init_sdl(port->ifp, (struct sockaddr *)place,
	    IFT_INFINIBAND);
	sdl->sdl_alen = KPI_LINK_ADDRESS_LEN;
	memcpy(LLADDR(sdl), group, KPI_LINK_ADDRESS_LEN);
	return ((struct sockaddr *)sdl);
}

int
rust_helper_lagg_port_join(struct kpi_lagg_port *port, const uint8_t *group)
{
	struct sockaddr_dl place = { .sdl_len = sizeof(place) };
	int error;

	CURVNET_SET(port->ifp->if_vnet);
	error = if_addmulti(port->ifp, kpi_lagg_group(port, group, &place),
	    NULL);
	CURVNET_RESTORE();
	return (error);
}

int
rust_helper_lagg_port_leave(struct kpi_lagg_port *port, const uint8_t *group)
{
	struct sockaddr_dl place = { .sdl_len = sizeof(place) };
	int error;

	CURVNET_SET(port->ifp->if_vnet);
	error = if_delmulti(port->ifp, kpi_lagg_group(port, group, &place));
	CURVNET_RESTORE();
	return (error);
}

void
rust_helper_lagg_port_take_flags(struct kpi_lagg_port *port)
{

	kpi_lagg_port_set_flags(port,
	    if_getflags(port->lagg->ifp) & KPI_LAGG_PORT_FLAGS);
}

void
rust_helper_lagg_wear(struct kpi_ifnet *lagg, const uint8_t *address,
    const uint8_t *broadcast)
{

	kpi_if_write_address(lagg, address);
	memcpy(lagg->broadcast, broadcast, KPI_LINK_ADDRESS_LEN);
}

/* Not 0: the interface is up, so ARP has announced it. */
int
rust_helper_lagg_tell_address(struct kpi_ifnet *lagg)
{

	CURVNET_SET(lagg->ifp->if_vnet);
	EVENTHANDLER_INVOKE(iflladdr_event, lagg->ifp);
	CURVNET_RESTORE();
	return ((if_getflags(lagg->ifp) & IFF_UP) != 0);
}

void
rust_helper_lagg_set_capabilities(struct kpi_ifnet *lagg, uint64_t supported,
    uint64_t enabled, uint64_t assist)
{

	if_setcapabilities(lagg->ifp, supported);
	if_setcapenable(lagg->ifp, enabled);
	if_sethwassist(lagg->ifp, assist);
}

void
rust_helper_lagg_set_mtu(struct kpi_ifnet *lagg, uint32_t mtu)
{
	if_t ifp = lagg->ifp;

	if (if_getmtu(ifp) == (int)mtu)
		return;
	CURVNET_SET(ifp->if_vnet);
	if_setmtu(ifp, mtu);
	/* Routes and IPv6 follow. */
#ifdef INET6
	nd6_setmtu(ifp);
#endif
	rt_updatemtu(ifp);
	CURVNET_RESTORE();
}

#ifdef INET
static void
kpi_lagg_announce_inet(if_t ifp)
{
	struct epoch_tracker et;
	struct ifaddr *ifa;

	NET_EPOCH_ENTER(et);
	CK_STAILQ_FOREACH(ifa, &ifp->if_addrhead, ifa_link)
		if (ifa->ifa_addr->sa_family == AF_INET)
			arp_announce_ifaddr(ifp,
			    ((struct sockaddr_in *)ifa->ifa_addr)->sin_addr,
			    if_getlladdr(ifp));
	NET_EPOCH_EXIT(et);
}
#endif

void
rust_helper_lagg_announce(struct kpi_ifnet *lagg, int has_arp_announced)
{
	if_t ifp = lagg->ifp;

	if ((if_getflags(ifp) & IFF_UP) == 0)
		return;
	CURVNET_SET(ifp->if_vnet);
#ifdef INET
	if (!has_arp_announced)
		kpi_lagg_announce_inet(ifp);
#endif
#ifdef INET6
	kpi_if_advertise(ifp);
#endif
	CURVNET_RESTORE();
}

void
rust_helper_if_reference_drop(struct ifnet *named)
{

	if_rele(named);
}

int
rust_helper_copy_out(const void *from, void *to, size_t length)
{

	return (copyout(from, to, length));
}
