/*
 * The modules whose functions kpi/c/ofed and kpi/c/link.c call.
 */
#include <sys/param.h>
#include <sys/module.h>

/* Where there is no InfiniBand stack, this file is left out. */
#include <rdma/ib_verbs.h>

MODULE_DEPEND(ipoib_rs, ibcore, 1, 1, 1);
MODULE_DEPEND(ipoib_rs, if_infiniband, 1, 1, 1);
MODULE_DEPEND(ipoib_rs, linuxkpi, 1, 1, 1);
