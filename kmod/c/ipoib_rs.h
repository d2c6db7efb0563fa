/*
 * What Rust defines for C.
 */
#ifndef _IPOIB_RS_H_
#define	_IPOIB_RS_H_

struct ipoib_rs_module;

int	ipoib_rs_is_pinned(void);
int	ipoib_rs_load(struct ipoib_rs_module **module);
void	ipoib_rs_unload(struct ipoib_rs_module *module);

#endif
