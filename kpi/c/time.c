/*
 * The clock.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/libkern.h>
#include <sys/time.h>

#include "kpi.h"

sbintime_t
rust_helper_sbinuptime(void)
{

	return (sbinuptime());
}

void
rust_helper_pause_ms(uint32_t span)
{

	pause_sbt("ipoib", span * SBT_1MS, 0, 0);
}

uint64_t
rust_helper_random(void)
{
	uint64_t number;

	arc4random_buf(&number, sizeof(number));
	return (number);
}
