/*
 * What the files of this folder share.
 */
#ifndef _KPI_OFED_INTERNAL_H_
#define	_KPI_OFED_INTERNAL_H_

#include "ofed.h"

struct ib_sa_client;

/* What Rust registered; set before anything that calls it is made. */
extern const struct kpi_ofed_callbacks *kpi_ofed_callbacks;
/* In whose name the subnet administrator is asked. */
extern struct ib_sa_client kpi_sa_client;

/* LinuxKPI has errors negative. */
static inline int
kpi_errno(int error)
{

	return (error < 0 ? -error : error);
}

#endif
