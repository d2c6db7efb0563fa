/*
 * What the bindings need of the kernel's header, on a host.
 */
#ifndef _FAKE_SYSTM_H_
#define	_FAKE_SYSTM_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __dead2
#define	__dead2	__attribute__((__noreturn__))
#endif

typedef int64_t	sbintime_t;

#endif
