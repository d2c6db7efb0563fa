/*
 * What ifnet.c and link.c share.
 */
#ifndef _KPI_LINK_H_
#define	_KPI_LINK_H_

#include <net/if.h>
#include <net/if_var.h>

#include "ifnet.h"

struct bpf_if;
struct route;
struct sockaddr;

/* Opaque to Rust. */
struct kpi_ifnet {
	if_t		 ifp;
	const struct kpi_ifnet_callbacks *callbacks;
	void		*driver;
	struct bpf_if	*tap;		/* DLT_IPOIB */
	uint8_t		 broadcast[KPI_LINK_ADDRESS_LEN];
	uint8_t		 address[KPI_LINK_ADDRESS_LEN];
};

int	kpi_link_output(if_t ifp, struct mbuf *m, const struct sockaddr *dst,
	    struct route *ro);
void	kpi_link_input(if_t ifp, struct mbuf *m);
int	kpi_link_resolvemulti(if_t ifp, struct sockaddr **llsa,
	    struct sockaddr *sa);
int	kpi_link_requestencap(if_t ifp, struct if_encap_req *req);

#endif
