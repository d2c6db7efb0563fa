/*
 * Memory, locks and the log of a kernel, on a host.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"
#include "kpi.h"

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;

void
fake_check(bool holds, const char *what)
{

	if (holds)
		return;
	fprintf(stderr, "fake kernel: %s\n", what);
	abort();
}

void
rust_helper_log(int level, const char *text, int length)
{

	fprintf(stderr, "<%d>%.*s\n", level, length, text);
}

void
rust_helper_panic(const char *text, int length)
{

	fprintf(stderr, "panic: %.*s\n", length, text);
	abort();
}

void
rust_helper_ofed_lock(void)
{

	pthread_mutex_lock(&registry_mutex);
}

void
rust_helper_ofed_unlock(void)
{

	pthread_mutex_unlock(&registry_mutex);
}

void
rust_helper_ofed_wait(void)
{

	usleep(1000);
}
