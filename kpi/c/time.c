/*
 * The clock.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/time.h>

#include "kpi.h"

sbintime_t
rust_helper_sbinuptime(void)
{

	return (sbinuptime());
}
