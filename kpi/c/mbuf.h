/*
 * mbuf(9): chains that begin with a packet header. Nothing here sleeps.
 */
#ifndef _KPI_MBUF_H_
#define	_KPI_MBUF_H_

#include <sys/types.h>

struct mbuf;

uint32_t rust_helper_mbuf_length(const struct mbuf *chain);
void	rust_helper_mbuf_copy_out(const struct mbuf *chain, uint32_t offset,
	    uint32_t length, uint8_t *out);
/* Not 0 if there is no room and no memory: the chain is as it was then. */
int	rust_helper_mbuf_prepend(struct mbuf **chain, const uint8_t *bytes,
	    uint32_t length);
void	rust_helper_mbuf_trim_front(struct mbuf *chain, uint32_t length);
/*
 * "header" and then "length" bytes of "chain" from "offset" on, which are
 * shared and not copied.  NULL without memory.
 */
struct mbuf *rust_helper_mbuf_fragment(const struct mbuf *chain,
	    const uint8_t *header, uint32_t header_length, uint32_t offset,
	    uint32_t length);
/* The first bytes, contiguous and writable; NULL without memory, and the chain
   is as it was then. */
uint8_t	*rust_helper_mbuf_writable_front(struct mbuf **chain, uint32_t length);
/*
 * Checksums of an IPv4 packet that the stack left to the adapter: whether there
 * are any, and making them, "offset" bytes behind the start.
 */
bool	rust_helper_mbuf_wants_checksums(const struct mbuf *chain);
void	rust_helper_mbuf_finish_checksums(struct mbuf *chain, uint32_t offset);
/* The adapter found those of a received packet right. */
void	rust_helper_mbuf_set_verified(struct mbuf *chain);
void	rust_helper_mbuf_free(struct mbuf *chain);
struct mbuf *rust_helper_mbuf_next(struct mbuf *chain);
void	rust_helper_mbuf_set_next(struct mbuf *chain, struct mbuf *next);
/* A number that stays with the packet while it is in one queue. */
uint64_t rust_helper_mbuf_note(const struct mbuf *chain);
void	rust_helper_mbuf_set_note(struct mbuf *chain, uint64_t note);

#endif
