/*
 * mbuf(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/mbuf.h>

#include <netinet/in.h>
#include <netinet/in_systm.h>
#include <netinet/ip.h>
#include <machine/in_cksum.h>

#include "mbuf.h"

/* What a header may take of an mbuf that is made for it. */
#define	KPI_MBUF_HEADROOM	64

uint32_t
rust_helper_mbuf_length(const struct mbuf *m)
{

	return (m->m_pkthdr.len);
}

void
rust_helper_mbuf_copy_out(const struct mbuf *m, uint32_t offset,
    uint32_t length, uint8_t *out)
{

	m_copydata(m, offset, length, (caddr_t)out);
}

/* M_PREPEND() frees the chain if it fails; here it has another owner. */
int
rust_helper_mbuf_prepend(struct mbuf **chain, const uint8_t *bytes,
    uint32_t length)
{
	struct mbuf *m = *chain, *front;

	if (M_LEADINGSPACE(m) >= (int)length) {
		m->m_data -= length;
		m->m_len += length;
	} else {
		if (length > MHLEN)
			return (ENOBUFS);
		front = m_gethdr(M_NOWAIT, m->m_type);
		if (front == NULL)
			return (ENOBUFS);
		m_move_pkthdr(front, m);
		M_ALIGN(front, length);
		front->m_len = length;
		front->m_next = m;
		*chain = m = front;
	}
	m->m_pkthdr.len += length;
	memcpy(mtod(m, void *), bytes, length);
	return (0);
}

void
rust_helper_mbuf_trim_front(struct mbuf *m, uint32_t length)
{

	m_adj(m, length);
}

struct mbuf *
rust_helper_mbuf_fragment(const struct mbuf *chain, const uint8_t *header,
    uint32_t header_length, uint32_t offset, uint32_t length)
{
	struct mbuf *front, *rest;

	if (header_length + KPI_MBUF_HEADROOM > MHLEN)
		return (NULL);
	front = m_gethdr(M_NOWAIT, MT_DATA);
	if (front == NULL)
		return (NULL);
	if (!m_dup_pkthdr(front, chain, M_NOWAIT)) {
		m_free(front);
		return (NULL);
	}
	M_ALIGN(front, header_length);
	front->m_len = header_length;
	memcpy(mtod(front, void *), header, header_length);
	rest = NULL;
	if (length > 0) {
		rest = m_copym(__DECONST(struct mbuf *, chain), offset, length,
		    M_NOWAIT);
		if (rest == NULL) {
			m_freem(front);
			return (NULL);
		}
		/* A copy from the middle has no packet header, one from the
		   start has. */
		if ((rest->m_flags & M_PKTHDR) != 0)
			m_demote_pkthdr(rest);
	}
	front->m_next = rest;
	front->m_pkthdr.len = header_length + length;
	return (front);
}

uint8_t *
rust_helper_mbuf_writable_front(struct mbuf **chain, uint32_t length)
{
	struct mbuf *m = *chain, *front;

	if (m->m_len >= (int)length && M_WRITABLE(m))
		return (mtod(m, uint8_t *));
	if (length > MHLEN)
		return (NULL);
	/* m_pullup() frees the chain if it fails. */
	front = m_gethdr(M_NOWAIT, m->m_type);
	if (front == NULL)
		return (NULL);
	m_copydata(m, 0, length, mtod(front, caddr_t));
	front->m_len = length;
	m_move_pkthdr(front, m);
	m_adj(m, length);
	/* What m_adj() took off was counted by the header that has moved. */
	front->m_next = m;
	*chain = front;
	return (mtod(front, uint8_t *));
}

bool
rust_helper_mbuf_wants_checksums(const struct mbuf *m)
{

	return ((m->m_pkthdr.csum_flags & (CSUM_IP | CSUM_DELAY_DATA)) != 0);
}

static void
kpi_mbuf_put_checksum(struct mbuf *m, int offset, uint16_t checksum)
{

	m_copyback(m, offset, sizeof(checksum), (c_caddr_t)&checksum);
}

void
rust_helper_mbuf_finish_checksums(struct mbuf *m, uint32_t offset)
{
	struct ip ip;
	uint16_t checksum;
	int flags = m->m_pkthdr.csum_flags, header, end;

	m->m_pkthdr.csum_flags &= ~(CSUM_IP | CSUM_DELAY_DATA);
	if (m->m_pkthdr.len < (int)(offset + sizeof(ip)))
		return;
	m_copydata(m, offset, sizeof(ip), (caddr_t)&ip);
	header = ip.ip_hl << 2;
	end = offset + ntohs(ip.ip_len);
	if (header < (int)sizeof(ip) || end < (int)offset + header ||
	    end > m->m_pkthdr.len)
		return;
	if ((flags & CSUM_DELAY_DATA) != 0 && (int)offset + header +
	    m->m_pkthdr.csum_data + (int)sizeof(checksum) <= end) {
		/* That of the pseudo header is in its place already. */
		checksum = in_cksum_skip(m, end, offset + header);
		/* RFC 768: 0 says that there is none. */
		if (checksum == 0 && (flags & CSUM_UDP) != 0)
			checksum = 0xffff;
		kpi_mbuf_put_checksum(m, offset + header +
		    m->m_pkthdr.csum_data, checksum);
	}
	if ((flags & CSUM_IP) != 0) {
		kpi_mbuf_put_checksum(m, offset + offsetof(struct ip, ip_sum),
		    0);
		checksum = in_cksum_skip(m, offset + header, offset);
		kpi_mbuf_put_checksum(m, offset + offsetof(struct ip, ip_sum),
		    checksum);
	}
}

void
rust_helper_mbuf_set_verified(struct mbuf *m)
{

	m->m_pkthdr.csum_flags |= CSUM_L3_CALC | CSUM_L3_VALID;
}

void
rust_helper_mbuf_free(struct mbuf *m)
{

	m_freem(m);
}

struct mbuf *
rust_helper_mbuf_next(struct mbuf *m)
{

	return (m->m_nextpkt);
}

void
rust_helper_mbuf_set_next(struct mbuf *m, struct mbuf *next)
{

	m->m_nextpkt = next;
}

uint64_t
rust_helper_mbuf_note(const struct mbuf *m)
{

	return (m->m_pkthdr.PH_loc.sixtyfour[0]);
}

void
rust_helper_mbuf_set_note(struct mbuf *m, uint64_t note)
{

	m->m_pkthdr.PH_loc.sixtyfour[0] = note;
}
