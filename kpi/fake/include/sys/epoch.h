/*
 * What the bindings need of the kernel's header, on a host.
 */
#ifndef _FAKE_EPOCH_H_
#define	_FAKE_EPOCH_H_

struct epoch_tracker {
	void	*place[8];
};

#endif
