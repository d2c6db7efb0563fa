/*
 * Chains of mbufs that an HCA reads and writes.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>
#include <sys/kernel.h>
#include <sys/malloc.h>
#include <sys/mbuf.h>

#include <rdma/ib_verbs.h>

#include "internal.h"

static int	map_chain(struct ib_device *device, uint32_t lkey,
		    struct mbuf *chain, enum dma_data_direction direction,
		    struct kpi_segment *segments, uint32_t max,
		    uint32_t *count);
static void	unmap(struct ib_device *device,
		    const struct kpi_segment *segments, uint32_t count,
		    enum dma_data_direction direction);
static uint32_t	count_segments(const struct mbuf *chain);

/*
 * The packet in as few segments as there can be, each of a page: m_defrag(9)
 * makes them of half a page, of which 64 KiB takes more than adapters have.
 */
static struct mbuf *
repack(struct mbuf *m)
{
	struct mbuf *front, *last, *next;
	int done, length;

	front = m_getjcl(M_NOWAIT, MT_DATA, M_PKTHDR, MJUMPAGESIZE);
	if (front == NULL)
		return (NULL);
	if (m_dup_pkthdr(front, m, M_NOWAIT) == 0) {
		m_freem(front);
		return (NULL);
	}
	last = front;
	for (done = 0; done < m->m_pkthdr.len; done += length) {
		if (done > 0) {
			next = m_getjcl(M_NOWAIT, MT_DATA, 0, MJUMPAGESIZE);
			if (next == NULL) {
				m_freem(front);
				return (NULL);
			}
			last->m_next = next;
			last = next;
		}
		length = MIN(m->m_pkthdr.len - done, MJUMPAGESIZE);
		m_copydata(m, done, length, mtod(last, caddr_t));
		last->m_len = length;
	}
	m_freem(m);
	return (front);
}

int
rust_helper_dma_map_send(struct ib_device *device, uint32_t lkey,
    struct mbuf **chain, struct kpi_segment *segments, uint32_t max,
    uint32_t *count)
{
	struct mbuf *less;

	if (count_segments(*chain) > max) {
		/* Cheap where it is enough: it copies what must be only. */
		less = m_collapse(*chain, M_NOWAIT, max);
		if (less == NULL)
			less = repack(*chain);
		if (less == NULL)
			return (ENOBUFS);
		*chain = less;
	}
	return (map_chain(device, lkey, *chain, DMA_TO_DEVICE, segments, max,
	    count));
}

void
rust_helper_dma_unmap_send(struct ib_device *device,
    const struct kpi_segment *segments, uint32_t count)
{

	unmap(device, segments, count, DMA_TO_DEVICE);
}

int
rust_helper_dma_map_receive(struct ib_device *device, uint32_t lkey,
    uint32_t bytes, struct mbuf **chain, struct kpi_segment *segments,
    uint32_t max, uint32_t *count)
{
	struct mbuf *m, *made;
	uint32_t left;
	int error;

	/* Clusters of a page at most: larger ones are soon used up. */
	made = m_getm2(NULL, bytes, M_NOWAIT, MT_DATA, M_PKTHDR);
	if (made == NULL)
		return (ENOBUFS);
	left = bytes;
	for (m = made; m != NULL; m = m->m_next) {
		m->m_len = MIN(left, M_TRAILINGSPACE(m));
		left -= m->m_len;
	}
	made->m_pkthdr.len = bytes;
	error = map_chain(device, lkey, made, DMA_FROM_DEVICE, segments, max,
	    count);
	if (error != 0) {
		m_freem(made);
		return (error);
	}
	*chain = made;
	return (0);
}

void
rust_helper_dma_unmap_receive(struct ib_device *device,
    const struct kpi_segment *segments, uint32_t count)
{

	unmap(device, segments, count, DMA_FROM_DEVICE);
}

/*
 * Makes a received chain as long as what arrived, and frees what was not
 * needed.
 */
void
rust_helper_dma_cut_chain(struct mbuf *chain, uint32_t bytes)
{
	struct mbuf *m;
	uint32_t left;

	left = bytes = MIN(bytes, (uint32_t)chain->m_pkthdr.len);
	for (m = chain; m->m_next != NULL && left > (uint32_t)m->m_len;
	    m = m->m_next)
		left -= m->m_len;
	m->m_len = left;
	m_freem(m->m_next);
	m->m_next = NULL;
	chain->m_pkthdr.len = bytes;
}

void
rust_helper_dma_free_chain(struct mbuf *chain)
{

	m_freem(chain);
}

static int
map_chain(struct ib_device *device, uint32_t lkey, struct mbuf *chain,
    enum dma_data_direction direction, struct kpi_segment *segments,
    uint32_t max, uint32_t *count)
{
	struct kpi_segment *segment;
	struct mbuf *m;
	uint32_t used;
	int error;

	used = 0;
	for (m = chain; m != NULL; m = m->m_next) {
		if (m->m_len == 0)
			continue;
		/* The stack does not send pages without an address here. */
		if ((m->m_flags & M_EXTPG) != 0 || used == max) {
			error = EFBIG;
			goto fail;
		}
		segment = &segments[used];
		segment->address = ib_dma_map_single(device, mtod(m, void *),
		    m->m_len, direction);
		if (ib_dma_mapping_error(device, segment->address)) {
			error = ENOMEM;
			goto fail;
		}
		segment->bytes = m->m_len;
		segment->lkey = lkey;
		used++;
	}
	*count = used;
	return (0);
fail:
	unmap(device, segments, used, direction);
	return (error);
}

static void
unmap(struct ib_device *device, const struct kpi_segment *segments,
    uint32_t count, enum dma_data_direction direction)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		ib_dma_unmap_single(device, segments[i].address,
		    segments[i].bytes, direction);
}

static uint32_t
count_segments(const struct mbuf *chain)
{
	const struct mbuf *m;
	uint32_t count;

	count = 0;
	for (m = chain; m != NULL; m = m->m_next)
		count += m->m_len != 0;
	return (count);
}
