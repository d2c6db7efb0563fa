/*
 * What the C files of softib.ko share: the objects of ibcore with what Rust
 * knows of them. To be included after rdma/ib_verbs.h.
 */
#ifndef _SOFTIB_VAR_H_
#define	_SOFTIB_VAR_H_

#include "softib.h"

#define	SOFTIB_PORTS	2		/* of a device */
#define	SOFTIB_PKEYS	16		/* of a port's table */
#define	SOFTIB_GIDS	1

struct softib_device {
	struct ib_device ib;		/* first: ibcore allocates by it */
	struct softib	*softib;
	uint32_t	 index;
};

struct softib_pd {
	struct ib_pd	 ib;
};

struct softib_ah {
	struct ib_ah	 ib;
	struct ib_ah_attr attr;
	uint32_t	 handle;
};

struct softib_cq {
	struct ib_cq	 ib;
	uint32_t	 handle;
};

struct softib_srq {
	struct ib_srq	 ib;
	struct ib_srq_attr attr;
	uint32_t	 handle;
};

struct softib_qp {
	struct ib_qp	 ib;
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;		/* as they were set; not the state */
	uint32_t	 handle;
};

MALLOC_DECLARE(M_SOFTIB);

static inline struct softib_device *
softib_device_of(struct ib_device *ib)
{

	return (container_of(ib, struct softib_device, ib));
}

/* module.c */
extern uint32_t softib_srq_sge_max;
extern int softib_checksums;

/* device.c */
int	softib_attach(struct softib *, uint32_t index, struct softib_device **);
void	softib_detach(struct softib_device *);

/* objects.c */
void	softib_set_object_ops(struct ib_device *);
void	softib_wait_for_calls(struct softib *, const void *context);
void	softib_fill_address(struct softib_address *,
	    const struct ib_ah_attr *);

/* pair.c */
void	softib_set_pair_ops(struct ib_device *);

/* post.c */
void	softib_set_post_ops(struct ib_device *);

/* poll.c */
void	softib_set_poll_ops(struct ib_device *);

/* perf.c */
void	softib_set_perf_ops(struct ib_device *);

/* dma.c */
extern struct ib_dma_mapping_ops softib_dma_ops;

#endif
