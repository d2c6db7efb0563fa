/*
 * What bindgen sees. The order is that of style(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/epoch.h>
#include <sys/errno.h>
#include <sys/syslog.h>

#include "ifnet.h"
#include "kpi.h"
#include "layout.h"
#include "mbuf.h"
#include "ofed/ofed.h"
