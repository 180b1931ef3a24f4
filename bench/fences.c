/*
 * fences ROUNDS BYTES
 *
 * What a fence costs: after a first one, ROUNDS times a PMI-1 barrier before which every rank puts
 * BYTES (a multiple of 512, or 0). Rank 0 prints the median time of a round in microseconds.
 */
#include "../tests/programs/common.h"
#include <time.h>

enum { PIECE = 512, MOST = 10000 };

static FILE *replies;
static int fd, rank;

static void ask(const char *expected, const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write_all(fd, line, (size_t)length) != 0)
        fail(1, "fences rank=%d: write: %s", rank, strerror(errno));
    if (fgets(line, sizeof line, replies) == NULL)
        fail(1, "fences rank=%d: the server closed the connection", rank);
    if (strncmp(line, "cmd=", 4) != 0 || strncmp(line + 4, expected, strlen(expected)) != 0)
        fail(1, "fences rank=%d: wanted %s, got: %s", rank, expected, line);
}

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int ascending(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    static double took[MOST];
    char value[PIECE + 1], kvsname[256];
    const char *descriptor = getenv("PMI_FD");
    rank = rank_from_environment();
    if (argc != 3 || descriptor == NULL || rank < 0)
        fail(2, "usage: fences ROUNDS BYTES, under a launcher that serves PMI-1");
    int rounds = (int)number_argument(argv[1]), bytes = (int)number_argument(argv[2]);
    if (rounds < 1 || rounds > MOST)
        fail(2, "fences: 1 to %d rounds", MOST);
    fd = (int)number_argument(descriptor);
    replies = fdopen(fd, "r");
    if (replies == NULL)
        fail(1, "fences: descriptor %d: %s", fd, strerror(errno));
    ask("response_to_init", "cmd=init pmi_version=1 pmi_subversion=1\n");
    char line[512];
    static const char name[] = "cmd=get_my_kvsname\n", field[] = " kvsname=";
    const char *found = NULL;
    if (write_all(fd, name, sizeof name - 1) == 0 && fgets(line, sizeof line, replies) != NULL)
        found = strstr(line, field);
    if (found == NULL || sscanf(found + sizeof field - 1, "%255s", kvsname) != 1)
        fail(1, "fences rank=%d: no name of a store", rank);
    fill_card(rank, value, PIECE);
    ask("barrier_out", "cmd=barrier_in\n");
    for (int round = 0; round < rounds; round++) {
        double start = microseconds();
        for (int piece = 0; piece * PIECE < bytes; piece++)
            ask("put_result", "cmd=put kvsname=%s key=%d-%d-%d value=%s\n", kvsname, rank, round, piece, value);
        ask("barrier_out", "cmd=barrier_in\n");
        took[round] = microseconds() - start;
    }
    qsort(took, (size_t)rounds, sizeof *took, ascending);
    if (rank == 0)
        report("%.1f", took[rounds / 2]);
    ask("finalize_ack", "cmd=finalize\n");
    return 0;
}
