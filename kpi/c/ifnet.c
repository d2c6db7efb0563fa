/*
 * ifnet(9), as an InfiniBand interface needs it.
 */
#include "opt_inet.h"
#include "opt_inet6.h"

#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>
#include <sys/eventhandler.h>
#include <sys/kernel.h>
#include <sys/malloc.h>
#include <sys/mbuf.h>
#include <sys/socket.h>
#include <sys/sockio.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_dl.h>
#include <net/if_media.h>
#include <net/if_types.h>
#include <net/bpf.h>
#include <net/ethernet.h>
#include <net/if_vlan_var.h>
#include <net/infiniband.h>
#include <net/vnet.h>

#include <netinet/in.h>
#include <netinet/if_ether.h>
#ifdef INET6
#include <netinet/ip6.h>
#include <netinet/icmp6.h>
#include <netinet6/in6_var.h>
#include <netinet6/nd6.h>
#include <netinet6/scope6_var.h>
#endif

#if __FreeBSD_version >= 1400092
/* Two handlers of an interface have no accessor. */
#include <net/if_private.h>
#endif

#include "link.h"

_Static_assert(sizeof(struct kpi_link_header) ==
    sizeof(struct infiniband_header), "what transmit is handed");
_Static_assert(KPI_LINK_ADDRESS_LEN == INFINIBAND_ADDR_LEN, "an address");

MALLOC_DEFINE(M_KPI_IFNET, "ib_ifnet", "InfiniBand interfaces");

static void
kpi_if_init(void *argument __unused)
{
	/* Nothing is to be done beside what SIOCSIFFLAGS says. */
}

struct kpi_ifnet *
kpi_if_of(if_t ifp)
{

	if (ifp->if_type == IFT_L2VLAN)
		return (VLAN_COOKIE(ifp));
	return (if_getsoftc(ifp));
}

struct kpi_ifnet *
kpi_if_hold(if_t ifp)
{
	struct epoch_tracker et;
	struct kpi_ifnet *interface;

	NET_EPOCH_ENTER(et);
	interface = kpi_if_of(ifp);
	if (interface != NULL)
		atomic_add_acq_int(&interface->users, 1);
	NET_EPOCH_EXIT(et);
	return (interface);
}

void
kpi_if_release(struct kpi_ifnet *interface)
{

	atomic_subtract_rel_int(&interface->users, 1);
}

/* Nobody finds it any more. */
void
kpi_if_wait_for_users(struct kpi_ifnet *interface)
{

	NET_EPOCH_WAIT();
	while (atomic_load_acq_int(&interface->users) != 0)
		pause("ibuser", 1);
}

int
kpi_if_transmit(if_t ifp, struct mbuf *m)
{
	struct kpi_ifnet *interface = kpi_if_of(ifp);

	if (interface == NULL) {
		m_freem(m);
		return (ENETDOWN);
	}
	return (interface->callbacks->transmit(interface->driver, m));
}

void
kpi_if_qflush(if_t ifp)
{
	struct kpi_ifnet *interface = kpi_if_hold(ifp);

	if (interface == NULL)
		return;
	interface->callbacks->flush_queue(interface->driver);
	kpi_if_release(interface);
}

static uint64_t
kpi_if_counter(struct kpi_ifnet *interface, ift_counter which)
{
	uint64_t (*counter)(void *, uint32_t) = interface->callbacks->counter;
	void *driver = interface->driver;
	if_t ifp = interface->ifp;

	switch (which) {
	case IFCOUNTER_IPACKETS:
		return (counter(driver, KPI_IF_IPACKETS));
	case IFCOUNTER_IERRORS:
		return (counter(driver, KPI_IF_IERRORS) +
		    if_get_counter_default(ifp, which));
	case IFCOUNTER_IBYTES:
		return (counter(driver, KPI_IF_IBYTES));
	case IFCOUNTER_IMCASTS:
		return (counter(driver, KPI_IF_IMCASTS));
	case IFCOUNTER_IQDROPS:
		return (counter(driver, KPI_IF_IQDROPS));
	case IFCOUNTER_OPACKETS:
		return (counter(driver, KPI_IF_OPACKETS));
	case IFCOUNTER_OERRORS:
		return (counter(driver, KPI_IF_OERRORS) +
		    if_get_counter_default(ifp, which));
	case IFCOUNTER_OBYTES:
		return (counter(driver, KPI_IF_OBYTES));
	case IFCOUNTER_OMCASTS:
		return (counter(driver, KPI_IF_OMCASTS));
	case IFCOUNTER_OQDROPS:
		return (counter(driver, KPI_IF_OQDROPS));
	default:
		return (if_get_counter_default(ifp, which));
	}
}

uint64_t
kpi_if_get_counter(if_t ifp, ift_counter which)
{
	struct kpi_ifnet *interface = kpi_if_hold(ifp);
	uint64_t count;

	if (interface == NULL)
		return (if_get_counter_default(ifp, which));
	count = kpi_if_counter(interface, which);
	kpi_if_release(interface);
	return (count);
}

/*
 * The last call decides, whichever was the last to read the flags.
 */
void
kpi_if_set_flags(struct kpi_ifnet *interface, bool is_new)
{
	if_t ifp = interface->ifp;
	bool is_running, is_up;

	sx_xlock(&interface->flags_sx);
	is_running = !is_new &&
	    (if_getdrvflags(ifp) & IFF_DRV_RUNNING) != 0;
	is_up = (if_getflags(ifp) & IFF_UP) != 0;
	if (is_up && !is_running) {
		if_setdrvflagbits(ifp, IFF_DRV_RUNNING, 0);
		interface->callbacks->set_up(interface->driver, 1);
	} else if (!is_up && is_running) {
		interface->callbacks->set_up(interface->driver, 0);
		if_setdrvflagbits(ifp, 0, IFF_DRV_RUNNING);
	}
	sx_xunlock(&interface->flags_sx);
}

/* What the stack leaves to the adapter. */
static void
kpi_if_set_assist(struct kpi_ifnet *interface)
{
	if_t ifp = interface->ifp;
	bool assists;

	assists = interface->leaves_checksums &&
	    (if_getcapenable(ifp) & IFCAP_TXCSUM) != 0;
	if_sethwassist(ifp, assists ? CSUM_IP | CSUM_TCP | CSUM_UDP : 0);
	VLAN_CAPABILITIES(ifp);
}

static void
kpi_if_set_capabilities(struct kpi_ifnet *interface, int wanted)
{
	if_t ifp = interface->ifp;
	int changed;

	changed = (wanted ^ if_getcapenable(ifp)) & if_getcapabilities(ifp) &
	    (IFCAP_HWCSUM | IFCAP_VLAN_HWCSUM);
	if_togglecapenable(ifp, changed);
	kpi_if_set_assist(interface);
}

int
kpi_if_control(struct kpi_ifnet *interface, u_long command, caddr_t data)
{
	if_t ifp = interface->ifp;
	struct ifreq *ifr = (struct ifreq *)data;
	struct ifaddr *ifa = (struct ifaddr *)data;
	int error;

	switch (command) {
	case SIOCSIFFLAGS:
		kpi_if_set_flags(interface, false);
		return (0);
	case SIOCADDMULTI:
	case SIOCDELMULTI:
		interface->callbacks->groups_changed(interface->driver);
		return (0);
	case SIOCSIFADDR:
		if_setflagbits(ifp, IFF_UP, 0);
		kpi_if_set_flags(interface, false);
#ifdef INET
		if (ifa->ifa_addr->sa_family == AF_INET)
			arp_ifinit(ifp, ifa);
#endif
		return (0);
	case SIOCGIFADDR:
		/*
		 * The field has room for 14 bytes, an address has 20: the rest
		 * is to be had from the interface's link-level sockaddr.
		 */
		memcpy(ifr->ifr_addr.sa_data, if_getlladdr(ifp),
		    MIN(sizeof(ifr->ifr_addr.sa_data), KPI_LINK_ADDRESS_LEN));
		return (0);
	case SIOCSIFCAP:
		kpi_if_set_capabilities(interface, ifr->ifr_reqcap);
		return (0);
	case SIOCSIFMTU:
		if (ifr->ifr_mtu < 0)
			return (EINVAL);
		error = interface->callbacks->set_mtu(interface->driver,
		    ifr->ifr_mtu);
		if (error == 0)
			if_setmtu(ifp, ifr->ifr_mtu);
		return (error);
	default:
		return (EINVAL);
	}
}

static int
kpi_if_ioctl(if_t ifp, u_long command, caddr_t data)
{
	struct kpi_ifnet *interface = kpi_if_hold(ifp);
	int error;

	if (interface == NULL)
		return (ENXIO);
	if (interface->lagg != NULL)
		error = kpi_lagg_control(interface, command, data);
	else
		error = kpi_if_control(interface, command, data);
	kpi_if_release(interface);
	return (error);
}

static void
kpi_if_set_handlers(if_t ifp)
{

	if_setinitfn(ifp, kpi_if_init);
	if_setioctlfn(ifp, kpi_if_ioctl);
	if_settransmitfn(ifp, kpi_if_transmit);
	if_setqflushfn(ifp, kpi_if_qflush);
	if_setgetcounterfn(ifp, kpi_if_get_counter);
}

/* if_attach() sets defaults, so these come after it. */
static void
kpi_if_set_link_handlers(if_t ifp)
{

	ifp->if_output = kpi_link_output;
	ifp->if_input = kpi_link_input;
	ifp->if_resolvemulti = kpi_link_resolvemulti;
	ifp->if_requestencap = kpi_link_requestencap;
}

void
kpi_if_write_address(struct kpi_ifnet *interface, const uint8_t *address)
{
	if_t ifp = interface->ifp;
	struct sockaddr_dl *sdl;

	memcpy(interface->address, address, KPI_LINK_ADDRESS_LEN);
	sdl = (struct sockaddr_dl *)if_getifaddr(ifp)->ifa_addr;
	/* That of a child stays what vlan(4) has made it. */
	sdl->sdl_type = ifp->if_type == IFT_L2VLAN ? IFT_L2VLAN :
	    IFT_INFINIBAND;
	sdl->sdl_alen = KPI_LINK_ADDRESS_LEN;
	memcpy(LLADDR(sdl), address, KPI_LINK_ADDRESS_LEN);
}

int
rust_helper_if_create(const struct kpi_ifnet_config *config,
    struct kpi_ifnet **out)
{
	struct kpi_ifnet *interface;
	if_t ifp;

	interface = malloc(sizeof(*interface), M_KPI_IFNET, M_WAITOK | M_ZERO);
	ifp = if_alloc(IFT_INFINIBAND);
	if (ifp == NULL) {
		free(interface, M_KPI_IFNET);
		return (ENOMEM);
	}
	sx_init(&interface->flags_sx, "ipoib flags");
	interface->ifp = ifp;
	interface->callbacks = config->callbacks;
	interface->driver = config->driver;
	interface->lagg = config->lagg;
	memcpy(interface->broadcast, config->broadcast, KPI_LINK_ADDRESS_LEN);

	if_setsoftc(ifp, interface);
	if_initname(ifp, config->name, config->unit);
	if_setflags(ifp, IFF_BROADCAST | IFF_MULTICAST);
	kpi_if_set_handlers(ifp);
	ifp->if_addrlen = KPI_LINK_ADDRESS_LEN;
	ifp->if_hdrlen = INFINIBAND_HDR_LEN;
	if_setbaudrate(ifp, config->bits_per_second);
	if_setcapabilities(ifp, IFCAP_VLAN_HWTAGGING | IFCAP_VLAN_MTU |
	    IFCAP_LINKSTATE | (config->has_checksums ?
	    IFCAP_HWCSUM | IFCAP_VLAN_HWCSUM : 0));
	if_setcapenable(ifp, if_getcapabilities(ifp));

	if_attach(ifp);
	kpi_if_set_link_handlers(ifp);
	ifp->if_broadcastaddr = interface->broadcast;
	if_setmtu(ifp, config->mtu);
	kpi_if_write_address(interface, config->address);
	/* Tools expect Ethernet; those that know better ask for IPoIB. */
	bpfattach(ifp, DLT_EN10MB, ETHER_HDR_LEN);
	bpfattach2(ifp, DLT_IPOIB, sizeof(struct kpi_capture_header),
	    &interface->tap);
	if_link_state_change(ifp, LINK_STATE_DOWN);
	kpi_vlan_watch(interface);
	EVENTHANDLER_INVOKE(infiniband_ifattach_event, ifp);
	*out = interface;
	return (0);
}

void
rust_helper_if_detach(struct kpi_ifnet *interface)
{

	if (interface->port != NULL) {
		kpi_lagg_port_departs(interface);
		kpi_vlan_abandon(interface);
		return;
	}
	/* Also those of DLT_IPOIB. */
	bpfdetach(interface->ifp);
	/* Waits for output that is under way, and has vlan(4) take its
	   interfaces off. */
	if_detach(interface->ifp);
	/* Who has read a handler before that finds nothing. */
	if_setsoftc(interface->ifp, NULL);
	kpi_vlan_unwatch(interface);
	kpi_if_wait_for_users(interface);
}

void
rust_helper_if_free(struct kpi_ifnet *interface)
{

	if (interface->port == NULL)
		if_free(interface->ifp);
	sx_destroy(&interface->flags_sx);
	free(interface, M_KPI_IFNET);
}

const char *
rust_helper_if_name(struct kpi_ifnet *interface)
{

	return (if_name(interface->ifp));
}

struct ifnet *
rust_helper_if_reference(struct kpi_ifnet *interface)
{

	if_ref(interface->ifp);
	return (interface->ifp);
}

void
rust_helper_if_release(struct ifnet *ifp)
{

	if_rele(ifp);
}

void
rust_helper_if_set_address(struct kpi_ifnet *interface, const uint8_t *address)
{
	if_t ifp = interface->ifp;

	if (memcmp(interface->address, address, KPI_LINK_ADDRESS_LEN) == 0)
		return;
	kpi_if_write_address(interface, address);
	CURVNET_SET(ifp->if_vnet);
	/* ARP and neighbour discovery rebuild their headers, ARP announces. */
	EVENTHANDLER_INVOKE(iflladdr_event, ifp);
	CURVNET_RESTORE();
}

void
rust_helper_if_set_rate(struct kpi_ifnet *interface, uint64_t bits_per_second)
{

	if_setbaudrate(interface->ifp, bits_per_second);
}

void
rust_helper_if_set_broadcast(struct kpi_ifnet *interface,
    const uint8_t *broadcast)
{

	memcpy(interface->broadcast, broadcast, KPI_LINK_ADDRESS_LEN);
	kpi_lagg_port_changed(interface);
}

void
rust_helper_if_set_mtu(struct kpi_ifnet *interface, uint32_t mtu)
{
	if_t ifp = interface->ifp;
	struct ifreq ifr = { .ifr_mtu = mtu };

	if (if_getmtu(ifp) == (int)mtu)
		return;
	if (interface->lagg_port != NULL) {
		/* It has no addresses and no routes that were to follow. */
		if_setmtu(ifp, mtu);
		kpi_lagg_port_changed(interface);
		return;
	}
	strlcpy(ifr.ifr_name, if_name(ifp), sizeof(ifr.ifr_name));
	CURVNET_SET(ifp->if_vnet);
	/* The way that ifconfig(8) takes, so that routes and IPv6 follow. */
	(void)ifhwioctl(SIOCSIFMTU, ifp, (caddr_t)&ifr, curthread);
	CURVNET_RESTORE();
}

void
rust_helper_if_set_checksums(struct kpi_ifnet *interface, int is_wanted)
{

	/* vlan(4) sees to a child. */
	if (interface->port != NULL ||
	    interface->leaves_checksums == (is_wanted != 0))
		return;
	interface->leaves_checksums = is_wanted != 0;
	kpi_if_set_assist(interface);
}

void
rust_helper_if_set_link(struct kpi_ifnet *interface, int is_up)
{

	int link_state = is_up ? LINK_STATE_UP : LINK_STATE_DOWN;

	if (interface->port != NULL)
		kpi_vlan_set_link(interface, link_state);
	else
		if_link_state_change(interface->ifp, link_state);
}

#ifdef INET6
void
kpi_if_advertise(if_t ifp)
{
	static const struct in6_addr all_nodes =
	    IN6ADDR_LINKLOCAL_ALLNODES_INIT;
	struct epoch_tracker et;
	struct in6_addr destination;
	struct ifaddr *ifa;

	NET_EPOCH_ENTER(et);
	CK_STAILQ_FOREACH(ifa, &ifp->if_addrhead, ifa_link) {
		if (ifa->ifa_addr->sa_family != AF_INET6 ||
		    (ifatoia6(ifa)->ia6_flags & IN6_IFF_NOTREADY) != 0)
			continue;
		destination = all_nodes;
		if (in6_setscope(&destination, ifp, NULL) == 0)
			nd6_na_output(ifp, &destination, IFA_IN6(ifa),
			    ND_NA_FLAG_OVERRIDE, 1, NULL);
	}
	NET_EPOCH_EXIT(et);
}
#endif

void
rust_helper_if_announce(struct kpi_ifnet *interface)
{
	if_t ifp = interface->ifp;

	if (kpi_lagg_port_moved(interface))
		return;
	CURVNET_SET(ifp->if_vnet);
	EVENTHANDLER_INVOKE(iflladdr_event, ifp);
#ifdef INET6
	if ((if_getflags(ifp) & IFF_UP) != 0)
		kpi_if_advertise(ifp);
#endif
	CURVNET_RESTORE();
}

struct kpi_each_group {
	void	(*each)(void *, const uint8_t *, uint32_t);
	void	*argument;
};

static u_int
kpi_if_each_group(void *argument, struct sockaddr_dl *sdl,
    u_int count __unused)
{
	struct kpi_each_group *visit = argument;

	visit->each(visit->argument, (const uint8_t *)LLADDR(sdl),
	    sdl->sdl_alen);
	return (1);
}

void
rust_helper_if_each_group(struct kpi_ifnet *interface,
    void (*each)(void *, const uint8_t *, uint32_t), void *argument)
{
	struct kpi_each_group visit = { each, argument };

	if_foreach_llmaddr(interface->ifp, kpi_if_each_group, &visit);
}
