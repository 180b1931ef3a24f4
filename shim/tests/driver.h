/* Shared by the parts of the C test driver, which plays libpmix on one side of the shim and the
 * agent on the other. */
#ifndef WIREUP_DRIVER_H
#define WIREUP_DRIVER_H

#include <pthread.h>

#include "../shim.h"

/* Ends the program with the place and the text if the condition is false. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            failed(__FILE__, __LINE__, #condition);                                                \
        }                                                                                          \
    } while (0)

void failed(const char *file, int line, const char *condition);

/* A file below the golden directory; the caller frees. */
uint8_t *read_golden(const char *name, size_t *len);
/* Compares with the file, or writes it when the driver was told to. */
void match_golden(const char *name, const void *bytes, size_t len);

/* One info of every type that the protocol carries, also nested; static. */
pmix_info_t *all_kinds(size_t *count);
pmix_proc_t proc_of(const char *nspace, pmix_rank_t rank);

/* The agent's end of the upcall socket. */
extern int agent_fd;
/* Next frame from the shim; the caller frees. Without one: ends the program. */
uint8_t *agent_read(size_t *len);
void agent_write(const void *bytes, size_t len);

void test_wire(void);
void test_upcalls(void);
void test_completions(void);
void test_spawns(void);
void test_end_of_input(void);
void test_kept(void);
void test_munge(void);
void test_local_groups(void);
void test_loss(void);

/* Waits until *counter, changed under the driver's lock, reaches the value. */
void bump(int *counter);
void wait_until(const int *counter, int value);

/* The thread that libpmix was last asked to call back on. */
extern pthread_t libpmix_thread;

/* What the shim registered for alerts, and for lost connections. */
extern pmix_notification_fn_t alert_handler, loss_handler;

#endif
