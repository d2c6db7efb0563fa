/*
 * taskqueue(9): a thread with one task, which may be run at a deadline.
 */
#include <sys/param.h>
#include <sys/systm.h>
#include <sys/errno.h>
#include <sys/kernel.h>
#include <sys/lock.h>
#include <sys/malloc.h>
#include <sys/mutex.h>
#include <sys/priority.h>
#include <sys/taskqueue.h>

#include "kpi.h"

/* A deadline may be met this much later, so that wake-ups can be shared. */
#define	KPI_WORKER_SLACK	SBT_1MS

struct kpi_worker {
	struct mtx		 mtx;
	bool			 is_awake;	/* There is a thread. Under mtx. */
	struct taskqueue	*queue;
	struct timeout_task	 task;
	void			(*run)(void *work);
	void			*work;
};

static void
kpi_worker_run(void *argument, int pending __unused)
{
	struct kpi_worker *worker = argument;

	worker->run(worker->work);
}

struct kpi_worker *
rust_helper_worker_create(void)
{
	struct kpi_worker *worker;

	worker = rust_helper_malloc(sizeof(*worker), _Alignof(struct kpi_worker));
	if (worker == NULL)
		return (NULL);
	memset(worker, 0, sizeof(*worker));
	mtx_init(&worker->mtx, "kpi worker", NULL, MTX_DEF);
	return (worker);
}

void
rust_helper_worker_free(struct kpi_worker *worker)
{

	mtx_destroy(&worker->mtx);
	rust_helper_free(worker);
}

int
rust_helper_worker_start(struct kpi_worker *worker, const char *name,
    void (*run)(void *work), void *work)
{
	struct taskqueue *queue;
	int error;

	if (worker->queue != NULL)
		return (EEXIST);
	queue = taskqueue_create(name, M_WAITOK, taskqueue_thread_enqueue,
	    &worker->queue);
	TIMEOUT_TASK_INIT(queue, &worker->task, 0, kpi_worker_run, worker);
	worker->run = run;
	worker->work = work;
	worker->queue = queue;
	error = taskqueue_start_threads(&worker->queue, 1, PI_NET, "%s", name);
	if (error != 0) {
		worker->queue = NULL;
		worker->work = NULL;
		taskqueue_free(queue);
		return (error);
	}
	mtx_lock(&worker->mtx);
	worker->is_awake = true;
	mtx_unlock(&worker->mtx);
	return (0);
}

/*
 * Nobody wakes the thread any more before its queue goes.
 */
void
rust_helper_worker_stop(struct kpi_worker *worker, void *work)
{

	if (worker->work != work)
		return;
	mtx_lock(&worker->mtx);
	worker->is_awake = false;
	mtx_unlock(&worker->mtx);
	/* Draining alone would leave a deadline that was cancelled counted. */
	while (taskqueue_cancel_timeout(worker->queue, &worker->task,
	    NULL) != 0)
		taskqueue_drain_timeout(worker->queue, &worker->task);
	taskqueue_free(worker->queue);
	worker->queue = NULL;
	worker->work = NULL;
}

void
rust_helper_worker_wake(struct kpi_worker *worker)
{

	mtx_lock(&worker->mtx);
	if (worker->is_awake)
		taskqueue_enqueue_timeout_sbt(worker->queue, &worker->task, 0,
		    0, 0);
	mtx_unlock(&worker->mtx);
}

void
rust_helper_worker_wake_at(struct kpi_worker *worker, sbintime_t deadline)
{

	/* 0 is the past, and would mean no deadline. */
	mtx_lock(&worker->mtx);
	if (worker->is_awake)
		taskqueue_enqueue_timeout_sbt(worker->queue, &worker->task,
		    MAX(deadline, 1), KPI_WORKER_SLACK, C_ABSOLUTE);
	mtx_unlock(&worker->mtx);
}
