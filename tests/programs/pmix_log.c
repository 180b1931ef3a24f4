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
 *   marked   "rank R" on stderr and stdout, with the channel's name, and said at 1970-01-02
 *   local    "rank R" in the log of the rank's host
 *   global   "rank R" in the log of the whole system: security, warning, said at 1970-01-02
 *   system   "the same" in the log and stderr, once
 *   wrong    with a priority that there is not
 */
#include "client.h"
#include <pmix.h>
#include <syslog.h>

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

/* With up to three directives: a priority unless it is negative, a time, the output's decoration. */
static pmix_status_t log_with(const char *first, const char *second, const char *text, int priority)
{
    const bool yes = true;
    const time_t at = 86400;
    pmix_info_t data[2], infos[4];
    size_t count = second == NULL ? 1 : 2, directives = 0;
    PMIX_INFO_LOAD(&data[0], first, text, PMIX_STRING);
    if (second != NULL)
        PMIX_INFO_LOAD(&data[1], second, text, PMIX_STRING);
    if (priority >= 0)
        PMIX_INFO_LOAD(&infos[directives++], PMIX_LOG_SYSLOG_PRI, &priority, PMIX_INT);
    PMIX_INFO_LOAD(&infos[directives++], PMIX_LOG_TIMESTAMP, &at, PMIX_TIME);
    PMIX_INFO_LOAD(&infos[directives++], PMIX_LOG_TIMESTAMP_OUTPUT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[directives++], PMIX_LOG_TAG_OUTPUT, &yes, PMIX_BOOL);
    return PMIx_Log(data, count, infos, directives);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    char own[32];
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    snprintf(own, sizeof own, "rank %u\n", me.rank);
    if (strcmp(mode, "plain") == 0)
        must(log_to(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, own, NULL), mode);
    else if (strcmp(mode, "once") == 0)
        must(log_to(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, "the same\n", PMIX_LOG_ONCE), mode);
    else if (strcmp(mode, "agg") == 0)
        must(log_to(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, "the same\n", PMIX_LOG_AGG), mode);
    else if (strcmp(mode, "record") == 0)
        must(log_to(PMIX_LOG_STDERR, NULL, own, PMIX_LOG_JOB_RECORD), mode);
    else if (strcmp(mode, "mail") == 0) {
        expect(PMIX_ERR_NOT_SUPPORTED, log_to(PMIX_LOG_EMAIL, NULL, own, NULL), mode);
        expect(PMIX_ERR_PARTIAL_SUCCESS, log_to(PMIX_LOG_EMAIL, PMIX_LOG_STDERR, own, NULL), mode);
    } else if (strcmp(mode, "marked") == 0)
        must(log_with(PMIX_LOG_STDERR, PMIX_LOG_STDOUT, own, -1), mode);
    else if (strcmp(mode, "local") == 0)
        must(log_to(PMIX_LOG_LOCAL_SYSLOG, NULL, own, NULL), mode);
    else if (strcmp(mode, "global") == 0) {
        must(log_with(PMIX_LOG_GLOBAL_SYSLOG, NULL, own, LOG_AUTHPRIV | LOG_WARNING), mode);
        must(log_to(PMIX_LOG_SYSLOG, NULL, own, NULL), mode);
    } else if (strcmp(mode, "system") == 0)
        must(log_to(PMIX_LOG_SYSLOG, PMIX_LOG_STDERR, "the same\n", PMIX_LOG_ONCE), mode);
    else if (strcmp(mode, "wrong") == 0)
        expect(PMIX_ERR_BAD_PARAM, log_with(PMIX_LOG_SYSLOG, PMIX_LOG_STDERR, own, 4711), mode);
    else
        fail(2, "pmix_log MODE");
    PMIx_Finalize(NULL, 0);
    return 0;
}
