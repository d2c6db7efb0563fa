/*
 * What bindgen sees. The order is that of style(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/callout.h>
#include <sys/epoch.h>
#include <sys/errno.h>
#include <sys/lock.h>
#include <sys/mutex.h>
#include <sys/socket.h>
#include <sys/sx.h>
#include <sys/sysctl.h>
#include <sys/syslog.h>

#include <net/if.h>
#include <net/if_var.h>
#include <net/if_dl.h>
#include <net/if_media.h>
#include <net/ethernet.h>
#include <net/infiniband.h>
#include <net/if_lagg.h>

#include "cloner.h"
#include "ifnet.h"
#include "kpi.h"
#include "lagg.h"
#include "layout.h"
#include "mbuf.h"
#include "ofed/ofed.h"
