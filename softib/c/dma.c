/*
 * Addresses for the adapter are those of the kernel.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/malloc.h>

#include <rdma/ib_verbs.h>

#include "softib_var.h"

#include <linux/scatterlist.h>

static int
softib_mapping_error(struct ib_device *ib __unused, u64 address)
{

	return (address == 0);
}

static u64
softib_map_single(struct ib_device *ib __unused, void *memory,
    size_t size __unused, enum dma_data_direction direction __unused)
{

	return ((uintptr_t)memory);
}

static void
softib_unmap(struct ib_device *ib __unused, u64 address __unused,
    size_t size __unused, enum dma_data_direction direction __unused)
{
}

static u64
softib_map_page(struct ib_device *ib __unused, struct page *page,
    unsigned long offset, size_t size __unused,
    enum dma_data_direction direction __unused)
{

	return ((uintptr_t)page_address(page) + offset);
}

static int
softib_map_sg(struct ib_device *ib __unused, struct scatterlist *list,
    int count, enum dma_data_direction direction __unused)
{
	struct scatterlist *entry;
	int i;

	for_each_sg(list, entry, count, i)
		sg_dma_address(entry) = (uintptr_t)sg_virt(entry);
	return (count);
}

static void
softib_unmap_sg(struct ib_device *ib __unused,
    struct scatterlist *list __unused, int count __unused,
    enum dma_data_direction direction __unused)
{
}

static int
softib_map_sg_attrs(struct ib_device *ib, struct scatterlist *list, int count,
    enum dma_data_direction direction, struct dma_attrs *attrs __unused)
{

	return (softib_map_sg(ib, list, count, direction));
}

static void
softib_unmap_sg_attrs(struct ib_device *ib __unused,
    struct scatterlist *list __unused, int count __unused,
    enum dma_data_direction direction __unused,
    struct dma_attrs *attrs __unused)
{
}

static void
softib_sync(struct ib_device *ib __unused, u64 address __unused,
    size_t size __unused, enum dma_data_direction direction __unused)
{
}

static void *
softib_alloc_coherent(struct ib_device *ib __unused, size_t size, u64 *address,
    gfp_t flags)
{
	void *memory;

	memory = malloc(size, M_SOFTIB,
	    ((flags & M_WAITOK) != 0 ? M_WAITOK : M_NOWAIT) | M_ZERO);
	*address = (uintptr_t)memory;
	return (memory);
}

static void
softib_free_coherent(struct ib_device *ib __unused, size_t size __unused,
    void *memory, u64 address __unused)
{

	free(memory, M_SOFTIB);
}

struct ib_dma_mapping_ops softib_dma_ops = {
	.mapping_error = softib_mapping_error,
	.map_single = softib_map_single,
	.unmap_single = softib_unmap,
	.map_page = softib_map_page,
	.unmap_page = softib_unmap,
	.map_sg = softib_map_sg,
	.unmap_sg = softib_unmap_sg,
	.map_sg_attrs = softib_map_sg_attrs,
	.unmap_sg_attrs = softib_unmap_sg_attrs,
	.sync_single_for_cpu = softib_sync,
	.sync_single_for_device = softib_sync,
	.alloc_coherent = softib_alloc_coherent,
	.free_coherent = softib_free_coherent,
};
