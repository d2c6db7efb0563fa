/*
 * The C half and the Rust half were built with the same layouts.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/callout.h>
#include <sys/epoch.h>
#include <sys/lock.h>
#include <sys/mutex.h>
#include <sys/socket.h>
#include <sys/sx.h>
#include <sys/sysctl.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_dl.h>
#include <net/if_media.h>
#include <net/ethernet.h>
#include <net/infiniband.h>
#include <net/if_lagg.h>

/* Written by the build of sys-bindings. */
#include "rust_layout.h"

#define	KPI_ASSERT_LAYOUT(NAME, TYPE)					\
	_Static_assert(sizeof(TYPE) == RUST_KPI_SIZEOF_##NAME,		\
	    "Rust has another size for " #TYPE);			\
	_Static_assert(_Alignof(TYPE) == RUST_KPI_ALIGNOF_##NAME,	\
	    "Rust has another alignment for " #TYPE)

KPI_ASSERT_LAYOUT(EPOCH_TRACKER, struct epoch_tracker);
KPI_ASSERT_LAYOUT(LAGG_REQALL, struct lagg_reqall);
KPI_ASSERT_LAYOUT(LAGG_REQFLAGS, struct lagg_reqflags);
KPI_ASSERT_LAYOUT(LAGG_REQOPTS, struct lagg_reqopts);
KPI_ASSERT_LAYOUT(LAGG_REQPORT, struct lagg_reqport);
