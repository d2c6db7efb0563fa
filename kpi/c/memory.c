/*
 * malloc(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/malloc.h>

#include "kpi.h"

/* What malloc(9) gives without being asked. */
#define	MALLOC_ALIGN	(2 * sizeof(void *))

/* The build defines KPI_MODULE, so that each module has a line of its own. */
static MALLOC_DEFINE(M_KPI, KPI_MODULE, "objects of the module " KPI_MODULE);

/*
 * Rust does not say whether it may sleep, so it may not.
 */
void *
rust_helper_malloc(size_t size, size_t align)
{

	/* malloc_aligned() rounds every size up to a power of two. */
	if (align <= MALLOC_ALIGN)
		return (malloc(size, M_KPI, M_NOWAIT));
	if (align > PAGE_SIZE)
		return (NULL);
	return (malloc_aligned(size, align, M_KPI, M_NOWAIT));
}

void
rust_helper_free(void *memory)
{

	free(memory, M_KPI);
}
