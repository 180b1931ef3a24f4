/*
 * pmix_wireup [-q] [-w] [-d] [GETS]
 *
 * The PMIx twin of pmi_wireup: init, put of 200 bytes, commit, fence with data, GETS gets (default
 * 32) of the ranks after it, finalize; every value is checked. With -d the fence moves no data, so
 * that what is on other nodes has to be asked for. Prints, unless -q,
 *     pmix_wireup rank=R size=N nspace=S fence_us=F gets_us=G lib=PATH version="VERSION"
 * and with -w waits before finalize until it is killed.
 */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <pmix.h>
#include <time.h>

enum { BYTES = 200 };

static pmix_proc_t me;

static void must(pmix_status_t status, const char *what)
{
    if (status != PMIX_SUCCESS)
        fail(1, "pmix_wireup rank=%u: %s: %s", me.rank, what, PMIx_Error_string(status));
}

static void value_of(unsigned owner, char value[BYTES + 1])
{
    int head = snprintf(value, BYTES + 1, "%u:", owner);
    for (int i = head; i < BYTES; i++)
        value[i] = (char)('A' + ((unsigned)i + owner) % 26);
    value[BYTES] = '\0';
}

static long microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    char key[PMIX_MAX_KEYLEN + 1], text[BYTES + 1];
    int quiet = 0, waits = 0, at = 1;
    pmix_value_t value, *got;
    pmix_proc_t everyone, peer;
    pmix_info_t collect;
    bool with_data = true;

    for (; at < argc && argv[at][0] == '-'; at++) {
        quiet |= strcmp(argv[at], "-q") == 0;
        waits |= strcmp(argv[at], "-w") == 0;
        with_data &= strcmp(argv[at], "-d") != 0;
    }
    int gets = at < argc ? (int)number_argument(argv[at]) : 32;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    PMIX_LOAD_PROCID(&everyone, me.nspace, PMIX_RANK_WILDCARD);
    must(PMIx_Get(&everyone, PMIX_JOB_SIZE, NULL, 0, &got), "PMIx_Get of the job size");
    unsigned size = got->data.uint32;
    PMIX_VALUE_RELEASE(got);

    value_of(me.rank, text);
    value.type = PMIX_STRING;
    value.data.string = text;
    snprintf(key, sizeof key, "card-%u", me.rank);
    must(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");

    long start = microseconds();
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &with_data, PMIX_BOOL);
    must(PMIx_Fence(&everyone, 1, &collect, 1), "PMIx_Fence");
    long fenced = microseconds();
    for (int i = 1; i <= gets; i++) {
        unsigned who = (me.rank + (unsigned)i) % size;
        PMIX_LOAD_PROCID(&peer, me.nspace, who);
        snprintf(key, sizeof key, "card-%u", who);
        must(PMIx_Get(&peer, key, NULL, 0, &got), "PMIx_Get");
        value_of(who, text);
        if (got->type != PMIX_STRING || strcmp(got->data.string, text) != 0)
            fail(1, "pmix_wireup rank=%u: wrong value for rank %u", me.rank, who);
        PMIX_VALUE_RELEASE(got);
    }
    long done = microseconds();
    if (!quiet) {
        Dl_info library = {0};
        char version[256];
        dladdr(dlsym(RTLD_DEFAULT, "PMIx_Get_version"), &library);
        snprintf(version, sizeof version, "%s", PMIx_Get_version());
        version[strcspn(version, "\"\n")] = '\0';
        report("pmix_wireup rank=%u size=%u nspace=%s fence_us=%ld gets_us=%ld lib=%s version=\"%s\"",
               me.rank, size, me.nspace, fenced - start, done - fenced,
               library.dli_fname == NULL ? "?" : library.dli_fname, version);
    }
    if (waits)
        wait_for_the_end();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
