/*
 * module(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/linker.h>
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

/* A module that is a name and nothing else. */
static int
kpi_module_event(module_t module __unused, int event, void *argument __unused)
{

	return (event == MOD_UNLOAD ? 0 : EOPNOTSUPP);
}

/*
 * Takes the name of another module, as a second one of our file: whoever looks
 * for that one finds us, and it cannot be loaded.  The kernel's linker gives
 * the name back with the file.
 */
int
rust_helper_module_claim(const char *name)
{
	moduledata_t data = { .name = name, .evhand = kpi_module_event };
	linker_file_t file = NULL;
	module_t module;

	MOD_SLOCK;
	module = module_lookupbyname(KPI_MODULE);
	if (module != NULL)
		file = module_file(module);
	MOD_SUNLOCK;
	if (file == NULL)
		return (ENOENT);
	return (module_register(&data, file));
}

/* Only while the file is being loaded. */
void
rust_helper_module_unclaim(const char *name)
{
	module_t module;

	MOD_XLOCK;
	module = module_lookupbyname(name);
	if (module != NULL)
		module_release(module);
	MOD_XUNLOCK;
}
