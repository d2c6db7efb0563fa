/*
 * What Rust calls: macros and inline functions of the kernel as functions, and
 * functions whose arguments differ between versions of FreeBSD.
 */
#ifndef _KPI_H_
#define	_KPI_H_

#include <sys/types.h>

struct epoch_tracker;
struct kpi_worker;
struct mtx;
struct sbuf;
struct sysctl_ctx_list;
struct sysctl_oid;
struct sysctl_req;

/* log.c */
void	 rust_helper_log(int level, const char *text, int length);
void	 rust_helper_panic(const char *text, int length) __dead2;

/* memory.c */
void	*rust_helper_malloc(size_t size, size_t align);
void	 rust_helper_free(void *memory);

/* module.c */
bool	 rust_helper_module_is_loaded(const char *name);
int	 rust_helper_module_claim(const char *name);
void	 rust_helper_module_unclaim(const char *name);

/* sync.c */
struct mtx *rust_helper_mtx_create(const char *name);
void	 rust_helper_mtx_destroy(struct mtx *mtx);
void	 rust_helper_mtx_lock(struct mtx *mtx);
void	 rust_helper_mtx_unlock(struct mtx *mtx);
void	 rust_helper_mtx_wait(struct mtx *mtx);		/* May sleep. */
void	 rust_helper_mtx_notify(struct mtx *mtx);
void	 rust_helper_net_epoch_enter(struct epoch_tracker *tracker);
void	 rust_helper_net_epoch_exit(struct epoch_tracker *tracker);

/* sysctl.c */
enum kpi_sysctl_root {
	KPI_SYSCTL_HW,
	KPI_SYSCTL_NET_LINK,
};

enum kpi_sysctl_kind {
	KPI_SYSCTL_NUMBER,
	KPI_SYSCTL_TEXT,
};

/* What SYSCTL_HANDLER_ARGS says. */
typedef int kpi_sysctl_handler(struct sysctl_oid *oid, void *argument,
	    intmax_t number, struct sysctl_req *req);

struct sysctl_ctx_list *rust_helper_sysctl_ctx_create(void);
void	 rust_helper_sysctl_ctx_free(struct sysctl_ctx_list *ctx);
struct sysctl_oid *rust_helper_sysctl_add_root(struct sysctl_ctx_list *ctx,
	    enum kpi_sysctl_root root, const char *name,
	    const char *description);
struct sysctl_oid *rust_helper_sysctl_add_node(struct sysctl_ctx_list *ctx,
	    struct sysctl_oid *parent, const char *name,
	    const char *description);
struct sysctl_oid *rust_helper_sysctl_add_leaf(struct sysctl_ctx_list *ctx,
	    struct sysctl_oid *parent, const char *name,
	    const char *description, enum kpi_sysctl_kind kind,
	    int is_writable, kpi_sysctl_handler *handler, void *argument);
bool	 rust_helper_sysctl_is_change(struct sysctl_req *req);
int	 rust_helper_sysctl_read_number(struct sysctl_req *req,
	    uint64_t *number);
int	 rust_helper_sysctl_read_text(struct sysctl_req *req, char *text,
	    size_t size);
int	 rust_helper_sysctl_show_number(struct sysctl_req *req,
	    uint64_t number);
struct sbuf *rust_helper_sysctl_text_begin(struct sysctl_req *req);
int	 rust_helper_sysctl_text_append(struct sbuf *sbuf, const char *text,
	    size_t length);
int	 rust_helper_sysctl_text_end(struct sbuf *sbuf);
bool	 rust_helper_kenv_number(const char *name, uint64_t *number);
bool	 rust_helper_kenv_text(const char *name, char *text, int size);

/* time.c */
sbintime_t rust_helper_sbinuptime(void);
void	 rust_helper_pause_ms(uint32_t span);		/* May sleep. */
uint64_t rust_helper_random(void);

/* worker.c */
struct kpi_worker *rust_helper_worker_create(void);
void	 rust_helper_worker_free(struct kpi_worker *worker);
int	 rust_helper_worker_start(struct kpi_worker *worker, const char *name,
	    void (*run)(void *work), void *work);
void	 rust_helper_worker_stop(struct kpi_worker *worker, void *work);
void	 rust_helper_worker_wake(struct kpi_worker *worker);
void	 rust_helper_worker_wake_at(struct kpi_worker *worker,
	    sbintime_t deadline);

#endif
