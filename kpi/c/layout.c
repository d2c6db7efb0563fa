/*
 * The C half and the Rust half were built with the same layouts.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>

/* Written by the build of sys-bindings. */
#include "rust_layout.h"

#define	KPI_ASSERT_LAYOUT(NAME, TYPE)					\
	_Static_assert(sizeof(TYPE) == RUST_KPI_SIZEOF_##NAME,		\
	    "Rust has another size for " #TYPE);			\
	_Static_assert(_Alignof(TYPE) == RUST_KPI_ALIGNOF_##NAME,	\
	    "Rust has another alignment for " #TYPE)

KPI_ASSERT_LAYOUT(EPOCH_TRACKER, struct epoch_tracker);
