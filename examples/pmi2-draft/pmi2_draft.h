/*
 * A client of the PMI-2 wire protocol as its draft has it, for servers that serve all of it.
 *
 * Functions return 0, a positive number that the server gave for its refusal, or -1 for a connection that is of no use any
 * more. pmi2_message() then has the reason. Threads may call them at the same time on one connection, but for pmi2_open,
 * pmi2_finalize and pmi2_close.
 *
 * Ownership: arguments stay the caller's and are not kept. What comes back through a pointer to a pointer was allocated for
 * the caller, who frees it (text with free(), pairs with pmi2_free_pairs()); it is NULL if there is nothing, and after a
 * failure. Texts that are returned belong to the connection, or to the calling thread (pmi2_message).
 */
#ifndef PMI2_DRAFT_H
#define PMI2_DRAFT_H

#include <stdbool.h>
#include <stddef.h>

struct pmi2;

struct pmi2_pair {
    char *key, *value;
};

/* One command of a spawn: argv[0] is the program. */
struct pmi2_command {
    int maxprocs;
    int argc;
    char *const *argv;
    size_t info_count;
    const struct pmi2_pair *infos;
};

/* Connects by PMI_FD, or by PMI_PORT as rank PMI_ID, and proves by PMI_AUTH_KEY that this is the rank's client if that is
 * set. *self is to be closed with pmi2_close. */
int pmi2_open(struct pmi2 **self);
int pmi2_finalize(struct pmi2 *self);
/* Frees the connection, which may be NULL. */
void pmi2_close(struct pmi2 *self);

/* Why the calling thread's last call failed. */
const char *pmi2_message(void);

int pmi2_rank(const struct pmi2 *self);
int pmi2_size(const struct pmi2 *self);
int pmi2_appnum(const struct pmi2 *self);
/* The job that spawned this one, or NULL. */
const char *pmi2_spawner(const struct pmi2 *self);

/* Messages with more bytes than this are sent as several. */
void pmi2_set_longest(struct pmi2 *self, size_t bytes);

/* A second connection on which the server sends lines, `cmd=checkpoint ...` and `cmd=abort ...`, each followed by a signal
 * ("SIGUSR1"), or by none ("NONE"). Needs PMI_PORT. *fd is the caller's to close. */
int pmi2_notices(const char *signal, int *fd);

int pmi2_job_id(struct pmi2 *self, char **job);
int pmi2_abort(struct pmi2 *self, const char *text);

int pmi2_put(struct pmi2 *self, const char *key, const char *value);
/* Of the own job if `job` is NULL. */
int pmi2_get(struct pmi2 *self, const char *job, const char *key, char **value);
int pmi2_fence(struct pmi2 *self);

int pmi2_job_attribute(struct pmi2 *self, const char *key, char **value);
int pmi2_node_attribute(struct pmi2 *self, const char *key, bool wait, char **value);
int pmi2_put_node_attribute(struct pmi2 *self, const char *key, const char *value);

int pmi2_publish(struct pmi2 *self, const char *name, const char *port, size_t count, const struct pmi2_pair *infos);
int pmi2_lookup(struct pmi2 *self, const char *name, size_t count, const struct pmi2_pair *infos, char **port);
int pmi2_unpublish(struct pmi2 *self, const char *name, size_t count, const struct pmi2_pair *infos);

int pmi2_spawn(struct pmi2 *self, size_t count, const struct pmi2_command *commands, size_t preput_count,
               const struct pmi2_pair *preputs, char **job);

/* *copy: the server cannot reach the job's server, so that its pairs have to be brought by pmi2_put_all. */
int pmi2_connect(struct pmi2 *self, const char *job, bool *copy);
int pmi2_disconnect(struct pmi2 *self, const char *job);
/* All pairs of a job, of the own one if `job` is NULL. */
int pmi2_get_all(struct pmi2 *self, const char *job, size_t *count, struct pmi2_pair **pairs);
int pmi2_put_all(struct pmi2 *self, const char *job, size_t count, const struct pmi2_pair *pairs);
void pmi2_free_pairs(size_t count, struct pmi2_pair *pairs);

/* Any other request without values, by its name on the wire. */
int pmi2_request(struct pmi2 *self, const char *name, size_t count, const struct pmi2_pair *fields, char **value);

#endif
