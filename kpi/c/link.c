/*
 * The link layer of an InfiniBand interface, between the network stack and
 * transmit: which address a packet goes to (RFC 4391 9), and which protocol a
 * received one is handed to.
 */
#include "opt_inet.h"
#include "opt_inet6.h"

#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>
#include <sys/mbuf.h>
#include <sys/socket.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_arp.h>
#include <net/if_dl.h>
#include <net/if_types.h>
#include <net/bpf.h>
#include <net/ethernet.h>
#include <net/if_llatbl.h>
#include <net/infiniband.h>
#include <net/netisr.h>
#include <net/route.h>
#include <net/route/nhop.h>
#include <net/vnet.h>

#include <netinet/in.h>
#include <netinet/in_systm.h>
#include <netinet/if_ether.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/ip_var.h>
#include <netinet/ip6.h>
#include <netinet/icmp6.h>
#ifdef INET6
#include <netinet6/in6_var.h>
#include <netinet6/nd6.h>
#endif

/* Not among the headers of a base system. */
#if defined(MAC) && __has_include(<security/mac/mac_framework.h>)
#include <security/mac/mac_framework.h>
#define	KPI_MAC
#endif

#if __FreeBSD_version >= 1400092
#include <net/if_private.h>
#endif

#include "link.h"

#ifdef KPI_MAC
/* A kernel may be without: a name that is nowhere is 0 then. */
#pragma weak mac_ifnet_check_transmit_fp_flag
#pragma weak mac_ifnet_check_transmit_impl
#pragma weak mac_ifnet_create_mbuf_fp_flag
#pragma weak mac_ifnet_create_mbuf_impl
#define	KPI_HAS_MAC	(&mac_ifnet_check_transmit_fp_flag != NULL)
#else
#define	KPI_HAS_MAC	false
#define	mac_ifnet_check_transmit(ifp, m)	0
#define	mac_ifnet_create_mbuf(ifp, m)		((void)0)
#endif

#define	KPI_LINK_HEADER_LEN	((int)sizeof(struct kpi_link_header))

/* A stock InfiniBand lagg takes packets here (net/if_infiniband.c). */
extern struct mbuf *(*lagg_input_infiniband_p)(struct ifnet *, struct mbuf *);

static int
kpi_link_map_group(struct kpi_ifnet *interface, uint32_t family,
    const void *group, uint8_t *address)
{

	return (interface->callbacks->map_group(interface->broadcast, family,
	    group, address));
}

/* An error consumes the packet; with EWOULDBLOCK it is sent later. */
static int
kpi_link_resolve(if_t ifp, struct mbuf *m, const struct sockaddr *dst,
    struct route *ro, struct kpi_link_header *header, uint32_t *flags,
    struct llentry **lle)
{
	struct kpi_ifnet *interface = kpi_if_of(ifp);
	int error = 0;

	header->reserved = 0;
	switch (dst->sa_family) {
#ifdef INET
	case AF_INET:
		header->protocol = htons(ETHERTYPE_IP);
		if ((m->m_flags & M_BCAST) != 0)
			memcpy(header->address, interface->broadcast,
			    KPI_LINK_ADDRESS_LEN);
		else if ((m->m_flags & M_MCAST) != 0)
			error = kpi_link_map_group(interface, KPI_IF_INET,
			    &((const struct sockaddr_in *)dst)->sin_addr,
			    header->address);
		else
			return (arpresolve(ifp, 0, m, dst, (u_char *)header,
			    flags, lle));
		break;
#endif
#ifdef INET6
	case AF_INET6:
		header->protocol = htons(ETHERTYPE_IPV6);
		if ((m->m_flags & M_MCAST) != 0) {
			error = kpi_link_map_group(interface, KPI_IF_INET6,
			    &((const struct sockaddr_in6 *)dst)->sin6_addr,
			    header->address);
			break;
		}
		return (nd6_resolve(ifp, LLE_SF(RO_GET_FAMILY(ro, dst), 0), m,
		    dst, (u_char *)header, flags, lle));
#endif
	default:
		error = EAFNOSUPPORT;
	}
	if (error != 0)
		m_freem(m);
	return (error);
}

/* A frame that bpf(4) sends has an Ethernet header: only broadcast can be meant. */
static int
kpi_link_from_bpf(struct kpi_ifnet *interface, struct mbuf *m,
    const struct route *ro, struct kpi_link_header *header)
{
	const struct ether_header *eh;

	eh = (const struct ether_header *)ro->ro_prepend;
	if (!ETHER_IS_BROADCAST(eh->ether_dhost))
		return (EOPNOTSUPP);
	memcpy(header->address, interface->broadcast, KPI_LINK_ADDRESS_LEN);
	header->protocol = eh->ether_type;
	header->reserved = 0;
	m->m_flags &= ~M_MCAST;
	m->m_flags |= M_BCAST;
	return (0);
}

/* The header that the route or its neighbour brought along, or NULL. */
static const struct kpi_link_header *
kpi_link_cached(struct mbuf *m, struct route *ro, uint32_t *flags,
    bool *wants_entry)
{
	struct llentry *lle;

	if ((m->m_flags & (M_BCAST | M_MCAST)) != 0 ||
	    (ro->ro_flags & RT_LLE_CACHE) == 0)
		return (NULL);
	lle = ro->ro_lle;
	if (lle != NULL && (lle->la_flags & LLE_VALID) == 0) {
		LLE_FREE(lle);
		ro->ro_lle = lle = NULL;
	}
	if (lle == NULL) {
		*wants_entry = true;
		return (NULL);
	}
	llentry_provide_feedback(lle);
	if (lle->r_hdrlen != KPI_LINK_HEADER_LEN)
		return (NULL);
	*flags = lle->r_flags;
	return ((const struct kpi_link_header *)lle->r_linkdata);
}

/* A packet to an address of its own host comes back without a checksum. */
static int
kpi_link_loop(if_t ifp, struct mbuf *m, const struct sockaddr *dst,
    struct route *ro)
{
	int done = 0;

	if ((m->m_pkthdr.csum_flags & CSUM_IP) != 0)
		done |= CSUM_IP_CHECKED | CSUM_IP_VALID;
	if ((m->m_pkthdr.csum_flags & CSUM_DELAY_DATA) != 0)
		done |= CSUM_DATA_VALID | CSUM_PSEUDO_HDR;
	if ((m->m_pkthdr.csum_flags & CSUM_SCTP) != 0)
		done |= CSUM_SCTP_VALID;
	m->m_pkthdr.csum_flags |= done;
	if ((done & CSUM_DATA_VALID) != 0)
		m->m_pkthdr.csum_data = 0xffff;
	return (if_simloop(ifp, m, RO_GET_FAMILY(ro, dst), 0));
}

int
kpi_link_output(if_t ifp, struct mbuf *m, const struct sockaddr *dst,
    struct route *ro)
{
	struct kpi_link_header made;
	const struct kpi_link_header *header = NULL;
	struct kpi_ifnet *interface;
	struct llentry *lle = NULL;
	uint32_t flags = 0;
	bool wants_entry = false;
	int error;

	NET_EPOCH_ASSERT();
	interface = kpi_if_of(ifp);
	error = ENETDOWN;
	/* Of vlan(4), with a tag that is no P_Key to use here. */
	if (interface == NULL)
		goto drop;
	error = KPI_HAS_MAC ? mac_ifnet_check_transmit(ifp, m) : 0;
	if (error != 0)
		goto drop;
	M_PROFILE(m);
	error = ENETDOWN;
	if ((if_getflags(ifp) & IFF_MONITOR) != 0 ||
	    (if_getflags(ifp) & IFF_UP) == 0 ||
	    (if_getdrvflags(ifp) & IFF_DRV_RUNNING) == 0)
		goto drop;

	if (ro != NULL && ro->ro_prepend != NULL) {
		if ((ro->ro_flags & RT_HAS_HEADER) != 0 &&
		    ro->ro_plen == ETHER_HDR_LEN) {
			error = kpi_link_from_bpf(interface, m, ro, &made);
			if (error != 0)
				goto drop;
			header = &made;
		} else if (ro->ro_plen == KPI_LINK_HEADER_LEN) {
			header = (const struct kpi_link_header *)ro->ro_prepend;
		} else {
			error = EINVAL;
			goto drop;
		}
	} else if (ro != NULL)
		header = kpi_link_cached(m, ro, &flags, &wants_entry);

	if (header == NULL) {
		/* Consumes the packet, now or later, if it is not resolved. */
		error = kpi_link_resolve(ifp, m, dst, ro, &made, &flags,
		    wants_entry ? &lle : NULL);
		if (lle != NULL)
			ro->ro_lle = lle;
		if (error == EWOULDBLOCK)
			return (0);
		if (error == EHOSTDOWN && ro != NULL &&
		    (ro->ro_flags & RT_HAS_GW) != 0)
			return (EHOSTUNREACH);
		if (error != 0)
			return (error);
		header = &made;
	}
	/* The neighbour is an address of this host. */
	if ((flags & LLE_IFADDR) != 0)
		return (kpi_link_loop(ifp, m, dst, ro));

	M_PREPEND(m, KPI_LINK_HEADER_LEN, M_NOWAIT);
	if (m == NULL)
		return (ENOBUFS);
	memcpy(mtod(m, void *), header, KPI_LINK_HEADER_LEN);
	return (ifp->if_transmit(ifp, m));
drop:
	m_freem(m);
	return (error);
}

bool
kpi_link_is_tapped(const struct kpi_ifnet *interface)
{

	return (bpf_peers_present(interface->ifp->if_bpf) ||
	    (interface->tap != NULL && bpf_peers_present(interface->tap)));
}

/* What bpf(4) shows for an InfiniBand address: the first bytes of the GID. */
void
kpi_link_tap(struct kpi_ifnet *interface, struct mbuf *m,
    const struct kpi_link_header *header)
{
	struct ether_header ethernet;
	struct kpi_capture_header pseudo;
	if_t ifp = interface->ifp;

	if (bpf_peers_present(ifp->if_bpf)) {
		memcpy(ethernet.ether_dhost, header->address + 4,
		    ETHER_ADDR_LEN);
		memset(ethernet.ether_shost, 0, ETHER_ADDR_LEN);
		ethernet.ether_type = header->protocol;
		bpf_mtap2(ifp->if_bpf, &ethernet, sizeof(ethernet), m);
	}
	if (interface->tap != NULL && bpf_peers_present(interface->tap)) {
		memset(pseudo.nothing, 0, sizeof(pseudo.nothing));
		pseudo.header = *header;
		bpf_mtap2(interface->tap, &pseudo, sizeof(pseudo), m);
	}
}

void
rust_helper_if_tap_output(struct kpi_ifnet *interface, struct mbuf *m,
    const struct kpi_link_header *header)
{

	kpi_link_tap(interface, m, header);
}

/* To the protocol.  Consumes the packet, which has no link header any more. */
static void
kpi_link_dispatch(if_t ifp, struct mbuf *m, uint16_t protocol)
{
	int isr;

	switch (ntohs(protocol)) {
#ifdef INET
	case ETHERTYPE_IP:
		isr = NETISR_IP;
		break;
	case ETHERTYPE_ARP:
		if ((if_getflags(ifp) & IFF_NOARP) != 0) {
			m_freem(m);
			return;
		}
		isr = NETISR_ARP;
		break;
#endif
#ifdef INET6
	case ETHERTYPE_IPV6:
		isr = NETISR_IPV6;
		break;
#endif
	default:
		if_inc_counter(ifp, IFCOUNTER_NOPROTO, 1);
		m_freem(m);
		return;
	}
	if (KPI_HAS_MAC)
		mac_ifnet_create_mbuf(ifp, m);
	netisr_dispatch(isr, m);
}

/*
 * A packet of a port of a stock lagg: it takes the packet with the link header
 * in front, and says on which interface it came.
 */
static struct mbuf *
kpi_link_lagg(if_t ifp, struct mbuf *m,
    const struct kpi_link_received *received)
{
	const struct kpi_link_header *header;
	struct kpi_link_header room;

	header = kpi_link_header_of(received, &room);
	M_PREPEND(m, KPI_LINK_HEADER_LEN, M_NOWAIT);
	if (m == NULL)
		return (NULL);
	memcpy(mtod(m, void *), header, KPI_LINK_HEADER_LEN);
	if (lagg_input_infiniband_p == NULL) {
		m_freem(m);
		return (NULL);
	}
	m = lagg_input_infiniband_p(ifp, m);
	if (m != NULL)
		m_adj(m, KPI_LINK_HEADER_LEN);
	return (m);
}

void
kpi_link_receive(struct kpi_ifnet *interface, struct mbuf *m,
    const struct kpi_link_received *received)
{
	struct kpi_lagg_port *port;
	if_t ifp = interface->ifp;

	m->m_pkthdr.rcvif = ifp;
	m->m_flags &= ~M_VLANTAG;
	m_clrprotoflags(m);
	if ((if_getflags(ifp) & IFF_UP) == 0 ||
	    (if_getflags(ifp) & IFF_MONITOR) != 0) {
		m_freem(m);
		return;
	}
	M_SETFIB(m, ifp->if_fib);
	port = (void *)atomic_load_acq_ptr((void *)&interface->lagg_port);
	if (port != NULL) {
		kpi_lagg_receive(port, m, received);
		return;
	}
	if (ifp->if_type == IFT_INFINIBANDLAG) {
		m = kpi_link_lagg(ifp, m, received);
		if (m == NULL)
			return;
		ifp = m->m_pkthdr.rcvif;
	}
	kpi_link_dispatch(ifp, m, received->protocol);
}

/*
 * An adapter checks the headers of IPv4, TCP and UDP.  Of a fragment it cannot
 * have seen what TCP and UDP add up.
 */
static void
kpi_link_set_verified(if_t ifp, struct mbuf *m, uint16_t protocol)
{
	struct ip ip;
	bool is_verified;

	is_verified = (m->m_pkthdr.csum_flags & CSUM_L3_VALID) != 0 &&
	    (if_getcapenable(ifp) & IFCAP_RXCSUM) != 0 &&
	    protocol == ETHERTYPE_IP && m->m_pkthdr.len >= (int)sizeof(ip);
	m->m_pkthdr.csum_flags = 0;
	if (!is_verified)
		return;
	m->m_pkthdr.csum_flags = CSUM_L3_CALC | CSUM_L3_VALID;
	m_copydata(m, 0, sizeof(ip), (caddr_t)&ip);
	if ((ntohs(ip.ip_off) & (IP_MF | IP_OFFMASK)) == 0 &&
	    (ip.ip_p == IPPROTO_TCP || ip.ip_p == IPPROTO_UDP)) {
		m->m_pkthdr.csum_flags |= CSUM_L4_CALC | CSUM_L4_VALID |
		    CSUM_PSEUDO_HDR;
		m->m_pkthdr.csum_data = 0xffff;
	}
}

/* That which the packet would have had. */
const struct kpi_link_header *
kpi_link_header_of(const struct kpi_link_received *received,
    struct kpi_link_header *room)
{
	const struct kpi_ifnet *origin = received->origin;

	if (received->header != NULL)
		return (received->header);
	room->protocol = received->protocol;
	room->reserved = 0;
	switch (received->cast) {
	case KPI_IF_BROADCAST:
		memcpy(room->address, origin->broadcast, KPI_LINK_ADDRESS_LEN);
		break;
	case KPI_IF_MULTICAST:
		/* Of the group only the scope and the P_Key are known here. */
		memcpy(room->address, origin->broadcast, 10);
		memset(room->address + 10, 0, KPI_LINK_ADDRESS_LEN - 10);
		break;
	default:
		memcpy(room->address, origin->address, KPI_LINK_ADDRESS_LEN);
	}
	return (room);
}

void
rust_helper_if_tap_input(struct kpi_ifnet *interface, struct mbuf *m,
    uint16_t protocol, uint32_t cast)
{
	struct kpi_link_received received = { .origin = interface,
	    .cast = cast, .protocol = htons(protocol) };
	struct kpi_link_header room;

	if (!kpi_link_is_tapped(interface))
		return;
	/* It tells received packets from sent ones. */
	m->m_pkthdr.rcvif = interface->ifp;
	kpi_link_tap(interface, m, kpi_link_header_of(&received, &room));
}

void
rust_helper_if_input(struct kpi_ifnet *interface, struct mbuf *m,
    uint16_t protocol, uint32_t cast)
{
	struct kpi_link_received received = { .origin = interface,
	    .cast = cast, .protocol = htons(protocol) };

	NET_EPOCH_ASSERT();
	m->m_flags &= ~(M_BCAST | M_MCAST);
	if (cast == KPI_IF_BROADCAST)
		m->m_flags |= M_BCAST;
	else if (cast == KPI_IF_MULTICAST)
		m->m_flags |= M_MCAST;
	kpi_link_set_verified(interface->ifp, m, protocol);
	CURVNET_SET_QUIET(interface->ifp->if_vnet);
	kpi_link_receive(interface, m, &received);
	CURVNET_RESTORE();
}

/* What others hand to the interface, with the link header in front. */
void
kpi_link_input(if_t ifp, struct mbuf *m)
{
	struct kpi_ifnet *interface;
	struct kpi_link_header header;
	struct kpi_link_received received;
	struct epoch_tracker et;

	NET_EPOCH_ENTER(et);
	interface = kpi_if_of(ifp);
	if (interface == NULL || m->m_pkthdr.len < KPI_LINK_HEADER_LEN) {
		NET_EPOCH_EXIT(et);
		if_inc_counter(ifp, IFCOUNTER_IERRORS, 1);
		m_freem(m);
		return;
	}
	m_copydata(m, 0, KPI_LINK_HEADER_LEN, (caddr_t)&header);
	m_adj(m, KPI_LINK_HEADER_LEN);
	m->m_flags &= ~(M_BCAST | M_MCAST);
	if (memcmp(header.address, interface->broadcast,
	    KPI_LINK_ADDRESS_LEN) == 0)
		m->m_flags |= M_BCAST;
	else if (INFINIBAND_IS_MULTICAST(header.address))
		m->m_flags |= M_MCAST;
	m->m_pkthdr.rcvif = ifp;
	kpi_link_tap(interface, m, &header);
	received = (struct kpi_link_received){ .origin = interface,
	    .header = &header, .protocol = header.protocol };
	CURVNET_SET_QUIET(ifp->if_vnet);
	kpi_link_receive(interface, m, &received);
	CURVNET_RESTORE();
	NET_EPOCH_EXIT(et);
}

int
kpi_link_resolvemulti(if_t ifp, struct sockaddr **llsa, struct sockaddr *sa)
{
	struct kpi_ifnet *interface;
	struct sockaddr_dl *sdl;
	const void *group;
	uint32_t family;
	int error;

	switch (sa->sa_family) {
	case AF_LINK:
		sdl = (struct sockaddr_dl *)sa;
		*llsa = NULL;
		if (sdl->sdl_alen != KPI_LINK_ADDRESS_LEN ||
		    !INFINIBAND_IS_MULTICAST((uint8_t *)LLADDR(sdl)))
			return (EADDRNOTAVAIL);
		return (0);
#ifdef INET
	case AF_INET:
		family = KPI_IF_INET;
		group = &((struct sockaddr_in *)sa)->sin_addr;
		break;
#endif
#ifdef INET6
	case AF_INET6:
		family = KPI_IF_INET6;
		group = &((struct sockaddr_in6 *)sa)->sin6_addr;
		break;
#endif
	default:
		return (EAFNOSUPPORT);
	}
	interface = kpi_if_hold(ifp);
	if (interface == NULL)
		return (EADDRNOTAVAIL);
	sdl = link_init_sdl(ifp, *llsa, IFT_INFINIBAND);
	sdl->sdl_alen = KPI_LINK_ADDRESS_LEN;
	*llsa = (struct sockaddr *)sdl;
	error = kpi_link_map_group(interface, family, group,
	    (uint8_t *)LLADDR(sdl));
	kpi_if_release(interface);
	return (error);
}

/* The header of a neighbour's entry, or of an ARP packet. */
static int
kpi_link_encap(struct kpi_ifnet *interface, struct if_encap_req *req)
{
	struct kpi_link_header *header = (struct kpi_link_header *)req->buf;
	const uint8_t *address = (const uint8_t *)req->lladdr;
	struct arphdr *arp;

	if (req->rtype != IFENCAP_LL)
		return (EOPNOTSUPP);
	if (req->bufsize < sizeof(*header))
		return (ENOMEM);
	switch (req->family) {
	case AF_INET:
		header->protocol = htons(ETHERTYPE_IP);
		break;
	case AF_INET6:
		header->protocol = htons(ETHERTYPE_IPV6);
		break;
	case AF_ARP:
		/* RFC 4391 9.1: the hardware type is 32. */
		arp = (struct arphdr *)req->hdata;
		arp->ar_hrd = htons(ARPHRD_INFINIBAND);
		header->protocol = htons(ETHERTYPE_ARP);
		if ((req->flags & IFENCAP_FLAG_BROADCAST) != 0)
			address = interface->broadcast;
		break;
	default:
		return (EAFNOSUPPORT);
	}
	header->reserved = 0;
	memcpy(header->address, address, KPI_LINK_ADDRESS_LEN);
	req->lladdr_off = 0;
	req->bufsize = sizeof(*header);
	return (0);
}

int
kpi_link_requestencap(if_t ifp, struct if_encap_req *req)
{
	struct kpi_ifnet *interface = kpi_if_hold(ifp);
	int error;

	if (interface == NULL)
		return (ENETDOWN);
	error = kpi_link_encap(interface, req);
	kpi_if_release(interface);
	return (error);
}

#ifdef INET
/* icmp_error() gives up if the IP header and 8 bytes are not contiguous. */
static int
kpi_link_too_big_ipv4(struct mbuf *m, uint32_t mtu)
{
	int length;

	m = m_pullup(m, sizeof(struct ip));
	if (m == NULL)
		return (ENOBUFS);
	length = (mtod(m, struct ip *)->ip_hl << 2) + 8;
	if (length > m->m_pkthdr.len)
		length = m->m_pkthdr.len;
	m = m_pullup(m, length);
	if (m == NULL)
		return (ENOBUFS);
	icmp_error(m, ICMP_UNREACH, ICMP_UNREACH_NEEDFRAG, 0, mtu);
	return (0);
}
#endif

#ifdef INET6
static int
kpi_link_too_big_ipv6(struct mbuf *m, uint32_t mtu)
{

	m = m_pullup(m, MIN(m->m_pkthdr.len, (int)sizeof(struct ip6_hdr) + 8));
	if (m == NULL)
		return (ENOBUFS);
	icmp6_error(m, ICMP6_PACKET_TOO_BIG, 0, mtu);
	return (0);
}
#endif

int
rust_helper_if_too_big(struct kpi_ifnet *interface, struct mbuf *m,
    uint32_t mtu)
{
	uint8_t first;
	int error;

	NET_EPOCH_ASSERT();
	if (m->m_pkthdr.len < 1) {
		m_freem(m);
		return (EINVAL);
	}
	m_copydata(m, 0, 1, (caddr_t)&first);
	/* The answer comes from this interface, and a local sender has none. */
	m->m_pkthdr.rcvif = interface->ifp;
	CURVNET_SET_QUIET(interface->ifp->if_vnet);
	switch (first >> 4) {
#ifdef INET
	case IPVERSION:
		error = kpi_link_too_big_ipv4(m, mtu);
		break;
#endif
#ifdef INET6
	case IPV6_VERSION >> 4:
		error = kpi_link_too_big_ipv6(m, mtu);
		break;
#endif
	default:
		m_freem(m);
		error = EAFNOSUPPORT;
	}
	CURVNET_RESTORE();
	return (error);
}
