/*
 * An InfiniBand stack on a host, for tests: the functions of kpi/c/ofed over
 * objects that check how they are used.  What is used after it is
 * gone, destroyed twice or in the wrong order, or waited for by its own
 * callback ends the process.
 *
 * What the InfiniBand stack and an HCA would do by themselves, a test asks for
 * with the functions below.
 */
#ifndef _FAKE_H_
#define	_FAKE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ofed/ofed.h"

/* Forgets what was numbered, and the client if there is one. */
void	 fake_reset(void);

/* Ends the process unless a condition holds. */
void	 fake_check(bool holds, const char *what);

/* Things that can be made to fail, by a count of calls from now on. */
enum fake_fault {
	FAKE_FAULT_NONE,
	FAKE_FAULT_CREATE,	/* Of any object. */
	FAKE_FAULT_POST,
	FAKE_FAULT_ASK,		/* Of the SA, or to join. */
	FAKE_FAULT_SEND,	/* Of a message of the CM. */
};

void	 fake_fail_next(uint32_t fault);
/* Objects of the HCA and the stack that exist. */
uint32_t fake_objects(void);

/* An HCA with two ports comes; it goes. */
struct ib_device *fake_device_add(void);
void	 fake_device_remove(struct ib_device *device);
void	 fake_port_event(struct ib_device *device, uint8_t port,
	    uint32_t event);

/* The oldest work request of a queue pair ends. */
void	 fake_complete_send(uint32_t qpn, uint32_t status);
void	 fake_complete_receive(uint32_t qpn, uint32_t status, uint32_t bytes);
void	 fake_qp_event(uint32_t qpn, uint32_t event);
uint32_t fake_qp_state(uint32_t qpn);

/*
 * Questions to the SA are numbered from 0 as they are asked.  One may be
 * answered after it was cancelled, and more than once.
 */
uint32_t fake_sa_asked(void);
bool	 fake_sa_is_cancelled(uint32_t question);
void	 fake_sa_answer_path(uint32_t question, int error);
void	 fake_sa_answer_capabilities(uint32_t question, int error,
	    uint32_t mask2);
/* Joins are numbered by themselves. */
uint32_t fake_sa_joins(void);
bool	 fake_sa_is_member(uint32_t join);
void	 fake_sa_answer_join(uint32_t join, int error);

/* Ids of the CM are numbered from 0 as they are made. */
uint32_t fake_cm_ids(void);
bool	 fake_cm_exists(uint32_t number);
/* The last message that was sent by an id. */
enum fake_cm_message {
	FAKE_CM_NONE,
	FAKE_CM_REQ,
	FAKE_CM_REP,
	FAKE_CM_RTU,
	FAKE_CM_REJ,
	FAKE_CM_DREQ,
	FAKE_CM_DREP,
};
uint32_t fake_cm_message(uint32_t number);
uint32_t fake_cm_reason(uint32_t number);
/* A REQ for a service; the number of its id, or -1 if nobody keeps it. */
int	 fake_cm_request(uint64_t service, uint8_t mtu);
void	 fake_cm_event(uint32_t number, uint32_t type, uint32_t reason);

#endif
