/*
 * pmix_push PROGRAM COUNT READERS BYTES [leave]
 *
 * Rank 0 spawns COUNT processes of PROGRAM, of which READERS (a rank, or `all`) read what it pushes:
 * BYTES bytes in pieces of odd size, and then the end. It prints
 *     pmix_push bytes=N fnv1a=HEX
 * with the 64-bit FNV-1a of what it sent, and, unless it is to `leave` without pushing the end,
 *     pmix_pushed own=STATUS other=STATUS after=STATUS nobody=STATUS
 * with the statuses of its pushes to itself, to a process that is no reader, after the end, and to
 * no particular process. The other ranks wait for it.
 */
#include "client.h"
#include <inttypes.h>
#include <pmix.h>
#include <pmix_tool.h>

enum { PIECE = 100003 };

/* Pushes and waits; never without a callback, for then libpmix frees memory twice. */
static pmix_status_t push(const char *nspace, pmix_rank_t rank, char *bytes, size_t count)
{
    pmix_proc_t target;
    pmix_byte_object_t object = {bytes, count};

    PMIX_LOAD_PROCID(&target, nspace, rank);
    return await_answer(PMIx_IOF_push(&target, nspace == NULL ? 0 : 1, &object, NULL, 0, on_answer, NULL));
}

static void spawn(char **argv, char nspace[PMIX_MAX_NSLEN + 1])
{
    char *words[] = {argv[1], NULL};
    pmix_info_t infos[2];
    bool yes = true;

    PMIX_INFO_LOAD(&infos[0], PMIX_FWD_STDIN, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_STDIN_TGT, argv[3], PMIX_STRING);
    must(spawn_program(words, (int)number_argument(argv[2]), infos, 2, nspace), "PMIx_Spawn");
    PMIX_INFO_DESTRUCT(&infos[1]);
}

/* Pushes the end, and data that no rank takes. */
static void end(const char *nspace, pmix_rank_t reader, bool everybody)
{
    char byte = 0;
    const pmix_status_t own = push(me.nspace, 0, &byte, 1);
    const pmix_status_t other = everybody ? PMIX_ERR_NOT_SUPPORTED : push(nspace, reader + 1, &byte, 1);
    must(push(nspace, reader, &byte, 0), "the end");
    const pmix_status_t after = push(nspace, everybody ? 0 : reader, &byte, 1);
    const pmix_status_t nobody = push(NULL, 0, &byte, 1);
    report("pmix_pushed own=%d other=%d after=%d nobody=%d", own, other, after, nobody);
}

int main(int argc, char **argv)
{
    static char piece[PIECE];
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    char nspace[PMIX_MAX_NSLEN + 1];

    const bool leaves = argc == 6 && strcmp(argv[5], "leave") == 0;
    if (argc != 5 && !leaves)
        fail(2, "pmix_push: PROGRAM COUNT READERS BYTES");
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (me.rank == 0) {
        const size_t bytes = (size_t)number_argument(argv[4]);
        const bool everybody = strcmp(argv[3], "all") == 0;
        const pmix_rank_t reader = everybody ? PMIX_RANK_WILDCARD : (pmix_rank_t)number_argument(argv[3]);
        uint32_t state = 1;

        spawn(argv, nspace);
        for (size_t sent = 0; sent < bytes;) {
            const size_t count = bytes - sent < PIECE ? bytes - sent : PIECE;
            for (size_t i = 0; i < count; i++) {
                state = state * 1664525 + 1013904223;
                piece[i] = (char)(state >> 24);
                sum = (sum ^ (unsigned char)piece[i]) * UINT64_C(0x100000001b3);
            }
            must(push(nspace, reader, piece, count), "PMIx_IOF_push");
            sent += count;
        }
        report("pmix_push bytes=%zu fnv1a=%016" PRIx64, bytes, sum);
        if (!leaves)
            end(nspace, reader, everybody);
    }
    barrier();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
