/*
 * pmix_log MODE
 *
 * Has texts logged through PMIx; every rank checks what it is answered.
 *
 *   plain    "rank R" on stderr, "rank R" on stdout
 *   once     "the same" on stderr and stdout, once
 *   agg      "the same" on stderr and stdout, and no text more than once on each
 *   record   "rank R" on stderr and in the job's record
 *   mail     by a channel that there is not; and by that and stderr
 */
#include "common.h"
#include <pmix.h>

static pmix_proc_t me;

static void expect(pmix_status_t wanted, pmix_status_t status, const char *what)
{
    if (status != wanted)
        fail(1, "pmix_log rank=%u: %s: %s (%d)", me.rank, what, PMIx_Error_string(status), status);
}

static pmix_status_t log_to(const char *first, const char *second, const char *text,
                            const char *directive)
{
    const bool yes = true;
    pmix_info_t data[2], info;
    size_t count = second == NULL ? 1 : 2;
    PMIX_INFO_LOAD(&data[0], first, text, PMIX_STRING);
    if (second != NULL)
        PMIX_INFO_LOAD(&data[1], second, text, PMIX_STRING);
    if (directive != NULL)
        PMIX_INFO_LOAD(&info, directive, &yes, PMIX_BOOL);
    return PMIx_Log(data, count, directive == NULL ? NULL : &info, directive == NULL ? 0 : 1);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    char own[32];
    expect(PMIX_SUCCESS, PMIx_Init(&me, NULL, 0), "PMIx_Init");
    snprintf(own, sizeof own, "rank %u\n", me.rank);
    if (strcmp(mode, "plain") == 0)
        expect(PMIX_SUCCESS, log_to(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, own, NULL), mode);
    else if (strcmp(mode, "once") == 0)
        expect(PMIX_SUCCESS, log_to(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, "the same\n", PMIX_LOG_ONCE), mode);
    else if (strcmp(mode, "agg") == 0)
        expect(PMIX_SUCCESS, log_to(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, "the same\n", PMIX_LOG_AGG), mode);
    else if (strcmp(mode, "record") == 0)
        expect(PMIX_SUCCESS, log_to(PMIX_LOG_STDERR, NULL, own, PMIX_LOG_JOB_RECORD), mode);
    else if (strcmp(mode, "mail") == 0) {
        expect(PMIX_ERR_NOT_SUPPORTED, log_to(PMIX_LOG_EMAIL, NULL, own, NULL), mode);
        expect(PMIX_ERR_PARTIAL_SUCCESS, log_to(PMIX_LOG_EMAIL, PMIX_LOG_STDERR, own, NULL), mode);
    } else
        fail(2, "pmix_log MODE");
    PMIx_Finalize(NULL, 0);
    return 0;
}
