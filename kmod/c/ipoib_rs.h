/*
 * What Rust defines for C.
 */
#ifndef _IPOIB_RS_H_
#define	_IPOIB_RS_H_

int	ipoib_rs_load(void);
int	ipoib_rs_unload(void);

#endif
