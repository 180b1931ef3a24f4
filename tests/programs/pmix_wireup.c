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
#include "client.h"
#include "samples.h"
#include <dlfcn.h>
#include <pmix.h>

enum { BYTES = 200 };

int main(int argc, char **argv)
{
    char key[PMIX_MAX_KEYLEN + 1], text[BYTES + 1];
    int quiet = 0, waits = 0, at = 1;
    pmix_value_t value, *got;
    pmix_proc_t peer;
    bool with_data = true;

    for (; at < argc && argv[at][0] == '-'; at++) {
        quiet |= strcmp(argv[at], "-q") == 0;
        waits |= strcmp(argv[at], "-w") == 0;
        with_data &= strcmp(argv[at], "-d") != 0;
    }
    int gets = at < argc ? (int)number_argument(argv[at]) : 32;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const uint32_t size = size_of(me.nspace);

    fill_card((int)me.rank, text, BYTES);
    value.type = PMIX_STRING;
    value.data.string = text;
    snprintf(key, sizeof key, "card-%u", me.rank);
    must(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");

    double start = now_us();
    fence(with_data);
    double fenced = now_us();
    for (int i = 1; i <= gets; i++) {
        unsigned who = (me.rank + (unsigned)i) % size;
        PMIX_LOAD_PROCID(&peer, me.nspace, who);
        snprintf(key, sizeof key, "card-%u", who);
        must(PMIx_Get(&peer, key, NULL, 0, &got), "PMIx_Get");
        fill_card((int)who, text, BYTES);
        if (got->type != PMIX_STRING || strcmp(got->data.string, text) != 0)
            fail(1, "pmix_wireup rank=%u: wrong value for rank %u", me.rank, who);
        PMIX_VALUE_RELEASE(got);
    }
    double done = now_us();
    if (!quiet) {
        Dl_info library = {0};
        char version[256];
        dladdr(dlsym(RTLD_DEFAULT, "PMIx_Get_version"), &library);
        snprintf(version, sizeof version, "%s", PMIx_Get_version());
        version[strcspn(version, "\"\n")] = '\0';
        report("pmix_wireup rank=%u size=%u nspace=%s fence_us=%ld gets_us=%ld lib=%s version=\"%s\"",
               me.rank, size, me.nspace, (long)(fenced - start), (long)(done - fenced),
               library.dli_fname == NULL ? "?" : library.dli_fname, version);
    }
    if (waits)
        wait_for_the_end();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
