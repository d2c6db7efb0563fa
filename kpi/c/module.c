/*
 * module(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/module.h>
#include <sys/sx.h>

#include "kpi.h"

bool
rust_helper_module_is_loaded(const char *name)
{
	bool is_loaded;

	MOD_SLOCK;
	is_loaded = module_lookupbyname(name) != NULL;
	MOD_SUNLOCK;
	return (is_loaded);
}
