/*
 * Objects that check how they are used.
 */
#ifndef _FAKE_OBJECT_H_
#define	_FAKE_OBJECT_H_

#include "fake.h"

#define	OBJECT_ALIVE	0x616c6976u
#define	OBJECT_DEAD	0x64656164u

/* The first field of every object. */
struct object {
	uint32_t	magic;
	uint32_t	users;
};

/* NULL if it is to fail. */
void	*object_new(size_t size);
void	 object_use(const void *object);
void	 object_free(void *object);
bool	 fake_fails(uint32_t fault);
void	 fake_forget_numbers(void);

extern const struct kpi_ofed_callbacks *fake_callbacks;

struct ib_device {
	struct object	object;
	void		*data;
	struct kpi_port_watch *watches[4];
};

#endif
