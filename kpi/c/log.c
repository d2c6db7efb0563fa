/*
 * log(9), panic(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/syslog.h>

#include "kpi.h"

void
rust_helper_log(int level, const char *text, int length)
{

	log(level, "%.*s\n", length, text);
}

void
rust_helper_panic(const char *text, int length)
{

	panic("%.*s", length, text);
}
