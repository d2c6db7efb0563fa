/*
 * What each vnet has: a cloner of laggs.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/socket.h>

#include <net/if.h>
#include <net/vnet.h>

#include "cloner.h"

static void
ipoib_rs_enter_vnet(const void *unused __unused)
{

	kpi_cloner_enter_vnet();
}

static void
ipoib_rs_leave_vnet(const void *unused __unused)
{

	kpi_cloner_leave_vnet();
}

/* Where if_clone(9) is there already, and interfaces of others are still. */
VNET_SYSINIT(ipoib_rs_enter_vnet, SI_SUB_PROTO_IFATTACHDOMAIN, SI_ORDER_ANY,
    ipoib_rs_enter_vnet, NULL);
VNET_SYSUNINIT(ipoib_rs_leave_vnet, SI_SUB_INIT_IF, SI_ORDER_ANY,
    ipoib_rs_leave_vnet, NULL);
