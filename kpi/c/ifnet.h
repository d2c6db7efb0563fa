/*
 * An InfiniBand network interface: what Rust calls, and what it is called for.
 *
 * Errors are numbers of errno(2), positive; 0 is success.
 */
#ifndef _KPI_IFNET_H_
#define	_KPI_IFNET_H_

#include <sys/types.h>

struct ifnet;
struct kpi_ifnet;
struct kpi_lagg_callbacks;
struct kpi_vlan;
struct mbuf;

#define	KPI_LINK_ADDRESS_LEN	20

/* What stands in front of a packet that is handed to transmit: net/infiniband.h. */
struct kpi_link_header {
	uint8_t		address[KPI_LINK_ADDRESS_LEN];
	uint16_t	protocol;	/* Network order. */
	uint16_t	reserved;
};

enum kpi_if_counter {
	KPI_IF_IPACKETS = 1,
	KPI_IF_IERRORS,
	KPI_IF_IBYTES,
	KPI_IF_IMCASTS,
	KPI_IF_IQDROPS,
	KPI_IF_OPACKETS,
	KPI_IF_OERRORS,
	KPI_IF_OBYTES,
	KPI_IF_OMCASTS,
	KPI_IF_OQDROPS,
};

enum kpi_if_cast {
	KPI_IF_UNICAST = 1,
	KPI_IF_MULTICAST,
	KPI_IF_BROADCAST,
};

/* An address that the stack resolves by itself. */
enum kpi_if_family {
	KPI_IF_INET = 1,
	KPI_IF_INET6,
};

/*
 * "driver" is what the interface was created with.  None of these sleeps,
 * apart from those that say so, and none is called when rust_helper_if_detach()
 * has returned.
 */
struct kpi_ifnet_callbacks {
	/* In the net epoch.  It consumes the packet, whatever it returns. */
	int	 (*transmit)(void *driver, struct mbuf *packet);
	/* Drops what waits to be sent. */
	void	 (*flush_queue)(void *driver);
	/* May sleep. */
	void	 (*set_up)(void *driver, int is_up);
	/* May sleep. */
	int	 (*set_mtu)(void *driver, uint32_t mtu);
	/* The largest MTU that set_mtu takes now. */
	uint32_t (*mtu_max)(void *driver);
	/* The list of groups changed. */
	void	 (*groups_changed)(void *driver);
	/* One counter, by enum kpi_if_counter. */
	uint64_t (*counter)(void *driver, uint32_t counter);
	/*
	 * The link-layer address of an IP group, given the broadcast address.
	 * Not 0 if it is none.
	 */
	int	 (*map_group)(const uint8_t *broadcast, uint32_t family,
		    const uint8_t *group, uint8_t *address);
	/*
	 * vlan(4) has put an interface with the tag of "vlan" on this one.  It
	 * can be adopted until this returns.  May sleep.
	 */
	void	 (*child_configured)(void *driver, const struct kpi_vlan *vlan);
	/* It takes the interface, which was adopted, away.  May sleep. */
	void	 (*child_unconfigured)(void *driver, uint16_t tag);
};

/* An interface of vlan(4) on the interface of a port. */
struct kpi_vlan {
	struct kpi_ifnet *port;
	struct ifnet	*interface;
	uint16_t	 tag;
};

struct kpi_ifnet_config {
	const struct kpi_ifnet_callbacks *callbacks;
	void		*driver;
	const char	*name;			/* Without the number. */
	uint32_t	 unit;
	uint32_t	 mtu;
	uint8_t		 address[KPI_LINK_ADDRESS_LEN];
	uint8_t		 broadcast[KPI_LINK_ADDRESS_LEN];
	uint64_t	 bits_per_second;
	bool		 has_checksums;		/* Of datagrams, IPv4. */
	const struct kpi_lagg_callbacks *lagg;	/* NULL: it is no lagg. */
};

/* ifnet.c: may sleep. */
int	rust_helper_if_create(const struct kpi_ifnet_config *config,
	    struct kpi_ifnet **interface);
/*
 * vlan.c: makes an interface of vlan(4) one that the driver drives.  Of the
 * name, the number and the rate it has its own.  May sleep.
 */
int	rust_helper_if_adopt(const struct kpi_vlan *vlan,
	    const struct kpi_ifnet_config *config,
	    struct kpi_ifnet **interface);
/*
 * vlan.c: has set_up called if the administrator wants it up already.  May
 * sleep.
 */
void	rust_helper_if_refresh(struct kpi_ifnet *interface);
/* No callback runs or is to come when it returns. */
void	rust_helper_if_detach(struct kpi_ifnet *interface);
void	rust_helper_if_free(struct kpi_ifnet *interface);
const char *rust_helper_if_name(struct kpi_ifnet *interface);
/* Counts the interface of the stack, which stays until it is released. */
struct ifnet *rust_helper_if_reference(struct kpi_ifnet *interface);
void	rust_helper_if_release(struct ifnet *ifp);
/* Tells the stack and everybody who listens. */
void	rust_helper_if_set_address(struct kpi_ifnet *interface,
	    const uint8_t *address);
void	rust_helper_if_set_rate(struct kpi_ifnet *interface,
	    uint64_t bits_per_second);
void	rust_helper_if_set_broadcast(struct kpi_ifnet *interface,
	    const uint8_t *broadcast);
void	rust_helper_if_set_mtu(struct kpi_ifnet *interface, uint32_t mtu);
/* Gratuitous ARP and unsolicited neighbour advertisements. */
void	rust_helper_if_announce(struct kpi_ifnet *interface);
/* Calls "each" with every link-layer multicast address; does not sleep. */
void	rust_helper_if_each_group(struct kpi_ifnet *interface,
	    void (*each)(void *argument, const uint8_t *address, uint32_t length),
	    void *argument);

/*
 * Whether checksums are left to the adapter, as far as the administrator wants
 * it and the adapter can do it.  A child does as its port does.
 */
void	rust_helper_if_set_checksums(struct kpi_ifnet *interface,
	    int is_wanted);

/* ifnet.c: does not sleep. */
void	rust_helper_if_set_link(struct kpi_ifnet *interface, int is_up);

/* link.c: does not sleep.  Consumes the packet. */
void	rust_helper_if_input(struct kpi_ifnet *interface, struct mbuf *packet,
	    uint16_t protocol, uint32_t cast);
/* Shows a packet that is about to be handed to rust_helper_if_input(). */
void	rust_helper_if_tap_input(struct kpi_ifnet *interface,
	    struct mbuf *packet, uint16_t protocol, uint32_t cast);
void	rust_helper_if_tap_output(struct kpi_ifnet *interface,
	    struct mbuf *packet, const struct kpi_link_header *header);
/*
 * Tells the sender of an IP packet that it is larger than "mtu".  Consumes the
 * packet.  Not 0 if nobody was told.
 */
int	rust_helper_if_too_big(struct kpi_ifnet *interface,
	    struct mbuf *packet, uint32_t mtu);

#endif
