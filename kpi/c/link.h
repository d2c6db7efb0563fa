/*
 * What ifnet.c, lagg.c, link.c and vlan.c share.
 */
#ifndef _KPI_LINK_H_
#define	_KPI_LINK_H_

#include <sys/param.h>
#include <sys/lock.h>
#include <sys/malloc.h>
#include <sys/mutex.h>
#include <sys/queue.h>
#include <sys/sx.h>
#include <sys/_eventhandler.h>

#include <net/if.h>
#include <net/if_var.h>

#include "ifnet.h"

MALLOC_DECLARE(M_KPI_IFNET);

/*
 * What stands in front of a packet of DLT_IPOIB: in the place of the global
 * route header there are 20 bytes of nothing and the destination's address,
 * then comes the header of RFC 4391 6.  So print tcpdump(1) and Wireshark it.
 */
struct kpi_capture_header {
	uint8_t		nothing[KPI_LINK_ADDRESS_LEN];
	struct kpi_link_header header;
};
_Static_assert(sizeof(struct kpi_capture_header) == 44, "what they expect");

struct bpf_if;
struct kpi_lagg_port;
struct kpi_link_received;
struct route;
struct sockaddr;

/*
 * Opaque to Rust.  It is either the interface of a port, or a child of one,
 * which vlan(4) made.
 */
struct kpi_ifnet {
	if_t		 ifp;
	const struct kpi_ifnet_callbacks *callbacks;
	void		*driver;
	u_int		 users;		/* Calls that keep it. */
	bool		 leaves_checksums; /* To the adapter, if it may. */
	struct sx	 flags_sx;	/* The driver is told of IFF_UP. */
	struct bpf_if	*tap;		/* DLT_IPOIB; none of a child. */
	uint8_t		 broadcast[KPI_LINK_ADDRESS_LEN];
	uint8_t		 address[KPI_LINK_ADDRESS_LEN];

	/* Of a port. */
	struct mtx	 children_mtx;
	LIST_HEAD(, kpi_ifnet) children;
	eventhandler_tag on_vlan_config;
	eventhandler_tag on_vlan_unconfig;
	eventhandler_tag on_address;
	eventhandler_tag on_link;

	/* Of a child. */
	struct kpi_ifnet *port;		/* NULL in a port. */
	LIST_ENTRY(kpi_ifnet) siblings;
	uint16_t	 tag;
	int		 link_state;
	/* What vlan(4) had set. */
	if_transmit_fn_t stock_transmit;
	if_qflush_fn_t	 stock_qflush;
	if_ioctl_fn_t	 stock_ioctl;
	if_get_counter_t stock_get_counter;
	int		(*stock_requestencap)(if_t, struct if_encap_req *);

	/* While it is a port of one of our laggs; found in the net epoch. */
	struct kpi_lagg_port *lagg_port;
	/* Of a lagg; NULL: it is none. */
	const struct kpi_lagg_callbacks *lagg;
};

/*
 * What drives an interface; NULL if it is of vlan(4), and nobody does.  In the
 * net epoch.
 */
struct kpi_ifnet *kpi_if_of(if_t ifp);
/* The same for a thread that may sleep; to be given back. */
struct kpi_ifnet *kpi_if_hold(if_t ifp);
void	kpi_if_release(struct kpi_ifnet *interface);

/* ifnet.c: handlers of every interface, and what a child does differently. */
int	kpi_if_transmit(if_t ifp, struct mbuf *m);
void	kpi_if_qflush(if_t ifp);
uint64_t kpi_if_get_counter(if_t ifp, ift_counter which);
int	kpi_if_control(struct kpi_ifnet *interface, u_long command,
	    caddr_t data);
void	kpi_if_set_flags(struct kpi_ifnet *interface, bool is_new);
void	kpi_if_write_address(struct kpi_ifnet *interface,
	    const uint8_t *address);
void	kpi_if_wait_for_users(struct kpi_ifnet *interface);
#ifdef INET6
void	kpi_if_advertise(if_t ifp);
#endif

/* vlan.c */
void	kpi_vlan_watch(struct kpi_ifnet *port);
void	kpi_vlan_unwatch(struct kpi_ifnet *port);
void	kpi_vlan_abandon(struct kpi_ifnet *child);
void	kpi_vlan_set_link(struct kpi_ifnet *child, int link_state);

/* lagg.c */
int	kpi_lagg_control(struct kpi_ifnet *lagg, u_long command,
	    caddr_t data);
void	kpi_lagg_receive(struct kpi_lagg_port *port, struct mbuf *m,
	    const struct kpi_link_received *received);
void	kpi_lagg_port_departs(struct kpi_ifnet *interface);
void	kpi_lagg_port_changed(struct kpi_ifnet *interface);
bool	kpi_lagg_port_moved(struct kpi_ifnet *interface);

/*
 * What is known of a received packet besides itself.  Few want its link header,
 * so that of a packet that came without one is made for those who do.
 */
struct kpi_link_received {
	struct kpi_ifnet *origin;
	const struct kpi_link_header *header;	/* Or NULL. */
	uint32_t	cast;		/* If the header is NULL. */
	uint16_t	protocol;	/* In network byte order. */
};

/* The link header, made in "room" if it has to be. */
const struct kpi_link_header *kpi_link_header_of(
	    const struct kpi_link_received *received,
	    struct kpi_link_header *room);
/* Whether bpf(4) wants to see packets of the interface. */
bool	kpi_link_is_tapped(const struct kpi_ifnet *interface);
/* Shows the packet to bpf(4). */
void	kpi_link_tap(struct kpi_ifnet *interface, struct mbuf *m,
	    const struct kpi_link_header *header);
/* Consumes the packet, which has no link header.  In the net epoch. */
void	kpi_link_receive(struct kpi_ifnet *interface, struct mbuf *m,
	    const struct kpi_link_received *received);
int	kpi_link_output(if_t ifp, struct mbuf *m, const struct sockaddr *dst,
	    struct route *ro);
void	kpi_link_input(if_t ifp, struct mbuf *m);
int	kpi_link_resolvemulti(if_t ifp, struct sockaddr **llsa,
	    struct sockaddr *sa);
int	kpi_link_requestencap(if_t ifp, struct if_encap_req *req);

#endif
