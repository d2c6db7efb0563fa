/*
 * The subnet administrator and the communication manager, on a host.
 */
#include <errno.h>
#include <string.h>

#include "object.h"

#define	QUESTIONS_MAX	256
#define	IDS_MAX		512

struct question {
	uint64_t	id;
	bool		is_cancelled;
	struct kpi_path	path;
};

struct ib_sa_multicast {
	struct object	object;
	uint64_t	id;
	struct kpi_group group;
	bool		is_in_answer;
};

struct ib_cm_id {
	struct object	object;
	struct ib_device *device;
	uint64_t	id;
	uint64_t	service;	/* 0 unless it listens. */
	uint32_t	message;
	uint32_t	reason;
	bool		is_in_event;
};

static struct question questions[QUESTIONS_MAX];
static uint32_t question_count;
static struct ib_sa_multicast *joins[QUESTIONS_MAX];
static uint32_t join_count;
static struct ib_cm_id *ids[IDS_MAX];
static uint32_t id_count;

void
fake_forget_numbers(void)
{

	question_count = 0;
	join_count = 0;
	id_count = 0;
}

static int
ask(struct ib_device *device, uint64_t id, const struct kpi_path *path,
    int *query_id, struct ib_sa_query **query)
{
	struct question *question;

	object_use(device);
	fake_check(question_count < QUESTIONS_MAX, "too many questions");
	if (fake_fails(FAKE_FAULT_ASK))
		return (EAGAIN);
	question = &questions[question_count];
	question->id = id;
	question->is_cancelled = false;
	if (path != NULL)
		question->path = *path;
	*query_id = (int)question_count++;
	*query = (struct ib_sa_query *)question;
	return (0);
}

int
rust_helper_sa_query_path(struct ib_device *device, uint8_t port, uint64_t id,
    const struct kpi_path *path, uint32_t timeout_ms, int *query_id,
    struct ib_sa_query **query)
{

	(void)port;
	fake_check(timeout_ms > 0, "a question without a time limit");
	return (ask(device, id, path, query_id, query));
}

int
rust_helper_sa_query_capabilities(struct ib_device *device, uint8_t port,
    uint64_t id, uint32_t timeout_ms, int *query_id,
    struct ib_sa_query **query)
{

	(void)port;
	(void)timeout_ms;
	return (ask(device, id, NULL, query_id, query));
}

void
rust_helper_sa_cancel(int query_id, struct ib_sa_query *query)
{

	fake_check(query == (struct ib_sa_query *)&questions[query_id],
	    "a query is cancelled by another's number");
	questions[query_id].is_cancelled = true;
}

uint32_t
fake_sa_asked(void)
{

	return (question_count);
}

bool
fake_sa_is_cancelled(uint32_t question)
{

	return (questions[question].is_cancelled);
}

void
fake_sa_answer_path(uint32_t question, int error)
{
	struct kpi_path path;

	if (error != 0) {
		fake_callbacks->path_answered(questions[question].id, error,
		    NULL);
		return;
	}
	path = questions[question].path;
	path.destination_lid = 9;
	path.mtu = 4;
	path.rate = 3;
	fake_callbacks->path_answered(questions[question].id, 0, &path);
}

void
fake_sa_answer_capabilities(uint32_t question, int error, uint32_t mask2)
{

	fake_callbacks->capabilities_answered(questions[question].id, error,
	    mask2);
}

int
rust_helper_sa_join(struct ib_device *device, uint8_t port, uint64_t id,
    const struct kpi_group *group, struct ib_sa_multicast **membership)
{
	struct ib_sa_multicast *made;

	(void)port;
	object_use(device);
	fake_check(join_count < QUESTIONS_MAX, "too many joins");
	if (fake_fails(FAKE_FAULT_ASK))
		return (ENOMEM);
	made = object_new(sizeof(*made));
	if (made == NULL)
		return (ENOMEM);
	made->id = id;
	made->group = *group;
	joins[join_count++] = made;
	*membership = made;
	return (0);
}

void
rust_helper_sa_leave(struct ib_sa_multicast *membership)
{
	uint32_t i;

	object_use(membership);
	fake_check(!membership->is_in_answer,
	    "a membership is left by its own answer");
	for (i = 0; i < join_count; i++)
		if (joins[i] == membership)
			joins[i] = NULL;
	object_free(membership);
}

uint32_t
fake_sa_joins(void)
{

	return (join_count);
}

bool
fake_sa_is_member(uint32_t join)
{

	return (joins[join] != NULL);
}

void
fake_sa_answer_join(uint32_t join, int error)
{
	struct ib_sa_multicast *membership;
	struct kpi_group group;
	int is_unwanted;

	membership = joins[join];
	fake_check(membership != NULL, "a membership is answered that is gone");
	group = membership->group;
	group.mlid = 0xc001;
	group.mtu = 4;
	group.rate = 3;
	membership->is_in_answer = true;
	is_unwanted = fake_callbacks->group_answered(membership->id, error,
	    membership, &group);
	membership->is_in_answer = false;
	if (is_unwanted)
		rust_helper_sa_leave(membership);
}

int
rust_helper_cm_create(struct ib_device *device, uint64_t id,
    struct ib_cm_id **cm_id)
{

	object_use(device);
	fake_check(id_count < IDS_MAX, "too many ids");
	*cm_id = object_new(sizeof(**cm_id));
	if (*cm_id == NULL)
		return (ENOMEM);
	(*cm_id)->device = device;
	(*cm_id)->id = id;
	ids[id_count++] = *cm_id;
	device->object.users++;
	return (0);
}

void
rust_helper_cm_destroy(struct ib_cm_id *cm_id)
{
	uint32_t i;

	object_use(cm_id);
	fake_check(!cm_id->is_in_event, "an id is destroyed by its own event");
	for (i = 0; i < id_count; i++)
		if (ids[i] == cm_id)
			ids[i] = NULL;
	cm_id->device->object.users--;
	object_free(cm_id);
}

void
rust_helper_cm_set_id(struct ib_cm_id *cm_id, uint64_t id)
{

	object_use(cm_id);
	cm_id->id = id;
}

int
rust_helper_cm_listen(struct ib_cm_id *cm_id, uint64_t service)
{
	uint32_t i;

	object_use(cm_id);
	for (i = 0; i < id_count; i++)
		if (ids[i] != NULL && ids[i]->service == service)
			return (EBUSY);
	cm_id->service = service;
	return (0);
}

static int
send(struct ib_cm_id *cm_id, uint32_t message)
{

	object_use(cm_id);
	if (fake_fails(FAKE_FAULT_SEND))
		return (EINVAL);
	cm_id->message = message;
	return (0);
}

int
rust_helper_cm_connect(struct ib_cm_id *cm_id,
    const struct kpi_cm_connect *connect)
{

	fake_check(connect->path.mtu != 0 && connect->path.source_lid != 0,
	    "a REQ without a path");
	return (send(cm_id, FAKE_CM_REQ));
}

int
rust_helper_cm_modify_qp(struct ib_cm_id *cm_id, struct ib_qp *qp,
    uint32_t state, const uint32_t *receive_psn)
{

	(void)receive_psn;
	object_use(cm_id);
	return (rust_helper_ib_modify_qp(qp, state));
}

int
rust_helper_cm_establish(struct ib_cm_id *cm_id)
{

	return (send(cm_id, FAKE_CM_RTU));
}

int
rust_helper_cm_reply(struct ib_cm_id *cm_id, const struct kpi_cm_reply *reply)
{

	fake_check(reply->qpn != 0, "a REP without a queue pair");
	return (send(cm_id, FAKE_CM_REP));
}

int
rust_helper_cm_reject(struct ib_cm_id *cm_id, uint32_t reason)
{

	object_use(cm_id);
	cm_id->reason = reason;
	return (send(cm_id, FAKE_CM_REJ));
}

int
rust_helper_cm_answer_disconnect(struct ib_cm_id *cm_id)
{

	return (send(cm_id, FAKE_CM_DREP));
}

uint32_t
fake_cm_ids(void)
{

	return (id_count);
}

bool
fake_cm_exists(uint32_t number)
{

	return (ids[number] != NULL);
}

uint32_t
fake_cm_message(uint32_t number)
{

	fake_check(ids[number] != NULL, "an id is asked for that is gone");
	return (ids[number]->message);
}

uint32_t
fake_cm_reason(uint32_t number)
{

	fake_check(ids[number] != NULL, "an id is asked for that is gone");
	return (ids[number]->reason);
}

int
fake_cm_request(uint64_t service, uint8_t mtu)
{
	struct ib_cm_id *cm_id, *listener;
	struct kpi_cm_request request;
	uint32_t i;
	int is_unwanted;

	listener = NULL;
	for (i = 0; i < id_count; i++)
		if (ids[i] != NULL && ids[i]->service == service)
			listener = ids[i];
	if (listener == NULL)
		return (-1);
	fake_check(rust_helper_cm_create(listener->device, listener->id,
	    &cm_id) == 0, "no memory");
	request = (struct kpi_cm_request) {
		.gid = { 0xfe, 0x80, [15] = 0x77 },
		.private_data = { 0, 0, 0, 0x55, 0, 0, 0x0f, 0xf0 },
		.qpn = 0x99,
		.pkey = 0xffff,
		.port = 1,
		.mtu = mtu,
	};
	listener->is_in_event = cm_id->is_in_event = true;
	is_unwanted = fake_callbacks->cm_requested(listener->id, cm_id,
	    &request);
	listener->is_in_event = cm_id->is_in_event = false;
	if (is_unwanted) {
		rust_helper_cm_destroy(cm_id);
		return (-1);
	}
	return ((int)id_count - 1);
}

void
fake_cm_event(uint32_t number, uint32_t type, uint32_t reason)
{
	struct ib_cm_id *cm_id;
	struct kpi_cm_event event;
	int is_unwanted;

	cm_id = ids[number];
	fake_check(cm_id != NULL, "an event of an id that is gone");
	event = (struct kpi_cm_event) {
		.type = type,
		.reject_reason = reason,
		.private_data = { 0, 0, 0, 0x56, 0, 0, 0xff, 0xf4 },
	};
	cm_id->is_in_event = true;
	is_unwanted = fake_callbacks->cm_event(cm_id->id, cm_id, &event);
	cm_id->is_in_event = false;
	if (is_unwanted)
		rust_helper_cm_destroy(cm_id);
}
