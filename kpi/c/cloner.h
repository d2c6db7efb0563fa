/*
 * if_clone(9): the interfaces that ifconfig(8) creates and destroys, in every
 * vnet.
 */
#ifndef _KPI_CLONER_H_
#define	_KPI_CLONER_H_

#include <sys/types.h>

struct kpi_ifnet;

/* What to create: lagg_type of net/if_lagg.h. */
enum kpi_cloner_kind {
	KPI_CLONER_ETHERNET = 1,
	KPI_CLONER_INFINIBAND,
	/* Nothing was said. */
	KPI_CLONER_DEFAULT,
};

/* Both may sleep. */
struct kpi_cloner_callbacks {
	int	(*create)(void *owner, uint32_t unit, uint32_t kind,
		    struct kpi_ifnet **interface);
	/* The interface is the one that create gave. */
	void	(*destroy)(void *owner, struct kpi_ifnet *interface);
};

/*
 * Begins to create interfaces "name" with a number behind it, in all vnets and
 * those to come.  There is one cloner at a time.  May sleep.
 */
int	rust_helper_cloner_attach(const char *name,
	    const struct kpi_cloner_callbacks *callbacks, void *owner);
/* Destroys all that it created, wherever they are.  May sleep. */
void	rust_helper_cloner_detach(void);

/* For VNET_SYSINIT() and VNET_SYSUNINIT() of the module. */
void	kpi_cloner_enter_vnet(void);
void	kpi_cloner_leave_vnet(void);

#endif
