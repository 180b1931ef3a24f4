/*
 * pmix_iof MODE LINES
 *
 * Asks for the output of other ranks, through PMIx itself.
 *
 *   pull  rank 0 asks for everything the others print; each of those prints LINES lines to both of
 *         its streams and closes them. Rank 0 checks every byte and the order, and prints
 *             pmix_iof rank=0 streams=NUMBER bytes=NUMBER
 *   stop  as pull, then rank 0 wants no more; the others have one line left to print, which it must
 *         not get
 */
#include "client.h"
#include <pmix.h>
#include <pmix_tool.h>

enum { MAX_RANKS = 64 };

static int lines;
static uint32_t size;

/* What is known of one stream of one rank. */
struct stream {
    int line;
    size_t at; /* bytes of that line */
    bool ended;
};

static struct stream streams[MAX_RANKS][2];
static uint32_t ended;
static size_t total;
static bool stopped;

static int format(char *text, size_t room, uint32_t rank, int which, int line)
{
    return snprintf(text, room, "rank %u %s line %d of %d ............................\n", rank,
                    which == 1 ? "err" : "out", line, lines);
}

/* One byte after the other, against what the rank prints. */
static void take(uint32_t rank, int which, const char *bytes, size_t count)
{
    struct stream *stream = &streams[rank][which];
    char text[128];
    int len = format(text, sizeof(text), rank, which, stream->line);
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != text[stream->at])
            fail(1, "pmix_iof: rank %u stream %d line %d byte %zu is %d", rank, which, stream->line,
                 stream->at, bytes[i]);
        if (++stream->at == (size_t)len) {
            stream->at = 0;
            stream->line++;
            len = format(text, sizeof(text), rank, which, stream->line);
        }
    }
}

static void on_output(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source,
                      pmix_byte_object_t *bytes, pmix_info_t info[], size_t ninfo)
{
    (void)id, (void)info, (void)ninfo;
    const int which = channel == PMIX_FWD_STDERR_CHANNEL;
    pthread_mutex_lock(&lock);
    if (stopped)
        fail(1, "pmix_iof: output of rank %u after the end", source->rank);
    if (source->rank == 0 || source->rank >= size || strcmp(source->nspace, me.nspace) != 0)
        fail(1, "pmix_iof: output of %s:%u", source->nspace, source->rank);
    if (bytes->size == 0) {
        ended += !streams[source->rank][which].ended;
        streams[source->rank][which].ended = true;
    } else {
        take(source->rank, which, bytes->bytes, bytes->size);
    }
    total += bytes->size;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static size_t ask(void)
{
    pmix_proc_t all;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    const pmix_status_t id =
        PMIx_IOF_pull(&all, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL, on_output,
                      NULL, NULL);
    if (id < 0)
        must(id, "PMIx_IOF_pull");
    return (size_t)id;
}

static void print_lines(void)
{
    char text[128];
    for (int line = 0; line < lines; line++)
        for (int which = 0; which < 2; which++) {
            format(text, sizeof(text), me.rank, which, line);
            fputs(text, which == 1 ? stderr : stdout);
        }
    fflush(stdout);
}

static void await_lines(bool to_the_end)
{
    pthread_mutex_lock(&lock);
    for (uint32_t rank = 1; rank < size; rank++)
        for (int which = 0; which < 2; which++)
            while (to_the_end ? !streams[rank][which].ended : streams[rank][which].line < lines)
                pthread_cond_wait(&changed, &lock);
    for (uint32_t rank = 1; rank < size; rank++)
        for (int which = 0; which < 2; which++)
            if (streams[rank][which].line != lines || streams[rank][which].at != 0)
                fail(1, "pmix_iof: rank %u stream %d ended at line %d", rank, which,
                     streams[rank][which].line);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    lines = argc > 2 ? atoi(argv[2]) : 10;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    size = size_of(me.nspace);
    if (size > MAX_RANKS)
        fail(2, "pmix_iof: more than %d ranks", MAX_RANKS);
    const bool stop = strcmp(mode, "stop") == 0;
    if (!stop && strcmp(mode, "pull") != 0)
        fail(2, "pmix_iof: unknown mode %s", mode);
    const size_t id = me.rank == 0 ? ask() : 0;
    barrier();
    if (me.rank != 0) {
        print_lines();
        if (!stop) {
            fclose(stdout);
            fclose(stderr);
        }
    } else {
        await_lines(!stop);
        if (stop) {
            const pmix_status_t rc = PMIx_IOF_deregister(id, NULL, 0, on_answer, NULL);
            must(rc, "PMIx_IOF_deregister");
            /* The server's library sends a status that it never set. */
            (void)await_answer(rc);
            CHANGE(stopped = true);
        }
        printf("pmix_iof rank=0 streams=%u bytes=%zu\n", ended, total);
    }
    barrier();
    if (stop && me.rank != 0)
        printf("rank %u says goodbye\n", me.rank);
    fflush(stdout);
    barrier();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
