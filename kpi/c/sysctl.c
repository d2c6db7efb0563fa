/*
 * sysctl(9), kenv(9).
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/kernel.h>
#include <sys/sbuf.h>
#include <sys/sysctl.h>

#include "kpi.h"

SYSCTL_DECL(_net_link);

struct sysctl_ctx_list *
rust_helper_sysctl_ctx_create(void)
{
	struct sysctl_ctx_list *ctx;

	ctx = rust_helper_malloc(sizeof(*ctx), _Alignof(struct sysctl_ctx_list));
	if (ctx != NULL)
		sysctl_ctx_init(ctx);
	return (ctx);
}

/*
 * Waits for handlers that run.
 */
void
rust_helper_sysctl_ctx_free(struct sysctl_ctx_list *ctx)
{

	(void)sysctl_ctx_free(ctx);
	rust_helper_free(ctx);
}

struct sysctl_oid *
rust_helper_sysctl_add_root(struct sysctl_ctx_list *ctx,
    enum kpi_sysctl_root root, const char *name, const char *description)
{
	struct sysctl_oid_list *parent;

	switch (root) {
	case KPI_SYSCTL_HW:
		parent = SYSCTL_STATIC_CHILDREN(_hw);
		break;
	case KPI_SYSCTL_NET_LINK:
		parent = SYSCTL_STATIC_CHILDREN(_net_link);
		break;
	default:
		return (NULL);
	}
	return (SYSCTL_ADD_NODE(ctx, parent, OID_AUTO, name,
	    CTLFLAG_RW | CTLFLAG_MPSAFE, NULL, description));
}

struct sysctl_oid *
rust_helper_sysctl_add_node(struct sysctl_ctx_list *ctx,
    struct sysctl_oid *parent, const char *name, const char *description)
{

	return (SYSCTL_ADD_NODE(ctx, SYSCTL_CHILDREN(parent), OID_AUTO, name,
	    CTLFLAG_RW | CTLFLAG_MPSAFE, NULL, description));
}

struct sysctl_oid *
rust_helper_sysctl_add_leaf(struct sysctl_ctx_list *ctx,
    struct sysctl_oid *parent, const char *name, const char *description,
    enum kpi_sysctl_kind kind, int is_writable, kpi_sysctl_handler *handler,
    void *argument)
{
	int flags;

	flags = CTLFLAG_MPSAFE | (is_writable ? CTLFLAG_RW : CTLFLAG_RD);
	flags |= kind == KPI_SYSCTL_NUMBER ? CTLTYPE_U64 : CTLTYPE_STRING;
	/* SYSCTL_ADD_PROC() wants flags that are constant. */
	return (sysctl_add_oid(ctx, SYSCTL_CHILDREN(parent), OID_AUTO, name,
	    flags, argument, 0, handler,
	    kind == KPI_SYSCTL_NUMBER ? "QU" : "A", description, NULL));
}

int
rust_helper_sysctl_show_number(struct sysctl_req *req, uint64_t number)
{

	return (SYSCTL_OUT(req, &number, sizeof(number)));
}

bool
rust_helper_sysctl_is_change(struct sysctl_req *req)
{

	return (req->newptr != NULL);
}

/*
 * Reads a text that is shorter than size, and ends it with a 0.
 */
int
rust_helper_sysctl_read_text(struct sysctl_req *req, char *text, size_t size)
{
	size_t length;
	int error;

	length = req->newlen - req->newidx;
	if (length >= size)
		return (EINVAL);
	error = SYSCTL_IN(req, text, length);
	text[length] = '\0';
	return (error);
}

int
rust_helper_sysctl_read_number(struct sysctl_req *req, uint64_t *number)
{

	if (req->newlen - req->newidx != sizeof(*number))
		return (EINVAL);
	return (SYSCTL_IN(req, number, sizeof(*number)));
}

/*
 * The reader's memory is wired, so that what is appended may come from under a
 * mutex.
 */
struct sbuf *
rust_helper_sysctl_text_begin(struct sysctl_req *req)
{

	if (sysctl_wire_old_buffer(req, 0) != 0)
		return (NULL);
	return (sbuf_new_for_sysctl(NULL, NULL, 256, req));
}

int
rust_helper_sysctl_text_append(struct sbuf *sbuf, const char *text,
    size_t length)
{

	return (sbuf_bcat(sbuf, text, length));
}

int
rust_helper_sysctl_text_end(struct sbuf *sbuf)
{
	int error;

	error = sbuf_finish(sbuf);
	sbuf_delete(sbuf);
	return (error);
}

bool
rust_helper_kenv_number(const char *name, uint64_t *number)
{
	quad_t value;

	if (getenv_quad(name, &value) == 0 || value < 0)
		return (false);
	*number = value;
	return (true);
}

bool
rust_helper_kenv_text(const char *name, char *text, int size)
{

	return (getenv_string(name, text, size) != 0);
}
