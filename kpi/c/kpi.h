/*
 * What Rust calls: macros and inline functions of the kernel as functions, and
 * functions whose arguments differ between versions of FreeBSD.
 */
#ifndef _KPI_H_
#define	_KPI_H_

#include <sys/types.h>

/* alloc.c */
void	*rust_helper_malloc(size_t size, size_t align);
void	 rust_helper_free(void *memory);

/* log.c */
void	 rust_helper_log(int level, const char *text, int length);
void	 rust_helper_panic(const char *text, int length) __dead2;

#endif
