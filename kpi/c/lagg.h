/*
 * A lagg, which is an InfiniBand interface made of others: what ifconfig(8)
 * asks of it, and its ports.
 *
 * Errors are numbers of errno(2), positive; 0 is success.
 */
#ifndef _KPI_LAGG_H_
#define	_KPI_LAGG_H_

#include <sys/types.h>

#include "ifnet.h"

struct ifnet;
struct kpi_lagg_port;
struct mbuf;

/* What ifconfig(8) asks: the requests of net/if_lagg.h, with their data. */
enum kpi_lagg_request {
	KPI_LAGG_GET = 1,	/* struct lagg_reqall */
	KPI_LAGG_SET,		/* struct lagg_reqall */
	KPI_LAGG_GET_FLAGS,	/* struct lagg_reqflags */
	KPI_LAGG_SET_HASH,	/* struct lagg_reqflags */
	KPI_LAGG_GET_OPTIONS,	/* struct lagg_reqopts */
	KPI_LAGG_SET_OPTIONS,	/* struct lagg_reqopts */
	KPI_LAGG_GET_PORT,	/* struct lagg_reqport */
	KPI_LAGG_ADD_PORT,	/* struct lagg_reqport */
	KPI_LAGG_REMOVE_PORT,	/* struct lagg_reqport */
};

/* "driver" is that of the lagg's interface. */
struct kpi_lagg_callbacks {
	/*
	 * Those that change something are privileged.  The last three have an
	 * interface, and a reference to it, which is the callee's.  May sleep.
	 */
	int	 (*request)(void *driver, uint32_t request, void *data,
		    struct ifnet *named);
	/* KPI_LAGG_GET_PORT, asked of the port.  In the net epoch. */
	int	 (*describe)(void *driver, uint64_t cookie, void *data);
	/* Not 0: the packet is to be dropped.  In the net epoch. */
	int	 (*receives)(void *driver, uint64_t cookie, uint32_t cast);
	/* A port is not what it was.  Does not sleep. */
	void	 (*ports_changed)(void *driver);
	/* A port wants its address to be announced.  Does not sleep. */
	void	 (*port_moved)(void *driver, uint64_t cookie);
	/* A port goes: it is to be detached at once.  May sleep. */
	void	 (*port_departs)(void *driver, uint64_t cookie);
	/* Flags that ports have too may have changed.  Does not sleep. */
	void	 (*flags_changed)(void *driver);
};

enum kpi_lagg_link {
	KPI_LAGG_LINK_DOWN = 1,
	KPI_LAGG_LINK_UP,
	/* The broadcast group is joined. */
	KPI_LAGG_LINK_JOINED,
};

/* What a port is like now. */
struct kpi_lagg_report {
	uint64_t	supported;	/* IFCAP_* */
	uint64_t	enabled;
	uint64_t	assist;		/* CSUM_* */
	uint64_t	bits_per_second;
	uint32_t	link;		/* enum kpi_lagg_link */
	uint32_t	mtu;
	uint32_t	mtu_max;
	uint8_t		address[KPI_LINK_ADDRESS_LEN];
	uint8_t		broadcast[KPI_LINK_ADDRESS_LEN];
};

/*
 * Begins to watch interfaces; to be called before there is a lagg.  Laggs of
 * the kernel's own if_lagg may come beside ours, unless "is_alone": then ports
 * may be interfaces of other drivers as well.  May sleep.
 */
void	rust_helper_lagg_start(int is_alone);
void	rust_helper_lagg_stop(void);

/* The lagg's own interface.  Does not sleep. */
void	rust_helper_lagg_wear(struct kpi_ifnet *lagg, const uint8_t *address,
	    const uint8_t *broadcast);
void	rust_helper_lagg_set_capabilities(struct kpi_ifnet *lagg,
	    uint64_t supported, uint64_t enabled, uint64_t assist);
/* These may sleep. */
int	rust_helper_lagg_tell_address(struct kpi_ifnet *lagg);
void	rust_helper_lagg_set_mtu(struct kpi_ifnet *lagg, uint32_t mtu);
void	rust_helper_lagg_announce(struct kpi_ifnet *lagg,
	    int has_arp_announced);

/*
 * Takes an interface as a port.  It has a cookie for callbacks only when it is
 * given one.  May sleep.
 */
int	rust_helper_lagg_port_attach(struct kpi_ifnet *lagg,
	    struct ifnet *named, struct kpi_lagg_port **port);
/* Gives it back, as it was; nobody uses the port when it returns.  May sleep. */
void	rust_helper_lagg_port_detach(struct kpi_lagg_port *port);
void	rust_helper_lagg_port_free(struct kpi_lagg_port *port);
int	rust_helper_lagg_port_is(const struct kpi_lagg_port *port,
	    const struct ifnet *named);
const char *rust_helper_lagg_port_name(const struct kpi_lagg_port *port);
void	rust_helper_lagg_port_set_cookie(struct kpi_lagg_port *port,
	    uint64_t cookie);
/* Does not sleep. */
void	rust_helper_lagg_port_report(const struct kpi_lagg_port *port,
	    struct kpi_lagg_report *report);
uint64_t rust_helper_lagg_port_counter(const struct kpi_lagg_port *port,
	    uint32_t counter);
/* In the net epoch.  Consumes the packet. */
int	rust_helper_lagg_port_transmit(const struct kpi_lagg_port *port,
	    struct mbuf *packet, const struct kpi_link_header *header);
/* These may sleep. */
int	rust_helper_lagg_port_set_up(struct kpi_lagg_port *port, int is_up);
int	rust_helper_lagg_port_set_mtu(struct kpi_lagg_port *port,
	    uint32_t mtu);
int	rust_helper_lagg_port_join(struct kpi_lagg_port *port,
	    const uint8_t *group);
int	rust_helper_lagg_port_leave(struct kpi_lagg_port *port,
	    const uint8_t *group);
void	rust_helper_lagg_port_take_flags(struct kpi_lagg_port *port);

/* A reference to an interface that somebody named.  Does not sleep. */
void	rust_helper_if_reference_drop(struct ifnet *named);
/* Copies to the memory of the process that asks; may sleep. */
int	rust_helper_copy_out(const void *from, void *to, size_t length);

#endif
