/*
 * mutex(9), epoch(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/mutex.h>
#include <sys/socket.h>

#include <net/if.h>
#include <net/if_var.h>

#include "kpi.h"

struct mtx *
rust_helper_mtx_create(const char *name)
{
	struct mtx *mtx;

	mtx = rust_helper_malloc(sizeof(*mtx), _Alignof(struct mtx));
	if (mtx == NULL)
		return (NULL);
	memset(mtx, 0, sizeof(*mtx));
	mtx_init(mtx, name, NULL, MTX_DEF);
	return (mtx);
}

void
rust_helper_mtx_destroy(struct mtx *mtx)
{

	mtx_destroy(mtx);
	rust_helper_free(mtx);
}

void
rust_helper_mtx_lock(struct mtx *mtx)
{

	mtx_lock(mtx);
}

void
rust_helper_mtx_unlock(struct mtx *mtx)
{

	mtx_unlock(mtx);
}

/*
 * Unlocks it, sleeps until somebody notifies, and locks it.
 */
void
rust_helper_mtx_wait(struct mtx *mtx)
{

	(void)mtx_sleep(mtx, mtx, 0, "kpi", 0);
}

/*
 * Wakes all who wait.
 */
void
rust_helper_mtx_notify(struct mtx *mtx)
{

	wakeup(mtx);
}

void
rust_helper_net_epoch_enter(struct epoch_tracker *tracker)
{

	NET_EPOCH_ENTER(*tracker);
}

void
rust_helper_net_epoch_exit(struct epoch_tracker *tracker)
{

	NET_EPOCH_EXIT(*tracker);
}
