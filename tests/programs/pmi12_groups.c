/*
 * pmi12_groups FILE [THREADS [ROUNDS]]
 *
 * The group barriers of PMI 1.2 as MPICH 5's library sends them, several at once on one connection:
 * each thread goes through the barriers of the world, of its node, and of all ranks that are even or
 * odd like its own, each with tags of its own, and the main thread through those without a group,
 * with gets between them. FILE, the same for all ranks, counts who has entered which barrier; a
 * barrier that releases a rank before all have entered fails the program. Prints
 *     pmi12_groups rank=R size=N node=NODE threads=T barriers=B
 */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

enum { THREADS_MAX = 16, NODES_MAX = 16, KINDS = 3, GROUPS_MAX = NODES_MAX };

/* Entries so far, of all rounds, into the barrier of one thread number, kind and group. */
struct counts {
    int entered[THREADS_MAX + 1][KINDS][GROUPS_MAX];
};

/* Who waits for a reply: the barrier with this tag, or, without a tag, the one other request. */
struct waiting {
    bool used, answered;
    int tag;
    char line[2048];
};

static struct counts *counts;
static int fd, rank, size, node, ranks_here, threads = 4, rounds = 20;
static char evens_or_odds[1024], kvsname[256];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;
static struct waiting barriers[THREADS_MAX + 1], other;

static void *read_replies(void *unused)
{
    FILE *replies = fdopen(fd, "r");
    char line[2048];

    (void)unused;
    while (replies != NULL && fgets(line, sizeof line, replies) != NULL) {
        struct waiting *to = &other;
        pthread_mutex_lock(&mutex);
        if (strncmp(line, "cmd=barrier_out ", 16) == 0) {
            const char *tag = strstr(line, " tag=");
            to = NULL;
            for (int i = 0; tag != NULL && i <= THREADS_MAX; i++)
                if (barriers[i].used && barriers[i].tag == atoi(tag + 5))
                    to = &barriers[i];
        }
        if (to == NULL || !to->used || to->answered)
            fail(1, "pmi12_groups rank=%d: a reply nobody waits for: %s", rank, line);
        snprintf(to->line, sizeof to->line, "%s", line);
        to->answered = true;
        pthread_cond_broadcast(&answered);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

/* Sends a request and waits for what `slot` stands for; a reply that says rc=0. */
__attribute__((format(printf, 3, 4))) static void ask(struct waiting *slot, int tag,
                                                      const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    pthread_mutex_lock(&mutex);
    *slot = (struct waiting){.used = true, .tag = tag};
    if (write_all(fd, line, (size_t)length) != 0)
        fail(1, "pmi12_groups rank=%d: write: %s", rank, strerror(errno));
    while (!slot->answered)
        pthread_cond_wait(&answered, &mutex);
    slot->used = false;
    pthread_mutex_unlock(&mutex);
    const char *rc = strstr(slot->line, " rc=");
    if (rc == NULL || atoi(rc + 4) != 0)
        fail(1, "pmi12_groups rank=%d: answer to %s: %s", rank, line, slot->line);
}

static char *field(const char *name)
{
    char *at = strstr(other.line, name);
    if (at == NULL)
        fail(1, "pmi12_groups rank=%d: no%s in %s", rank, name, other.line);
    at += strlen(name);
    at[strcspn(at, " \n")] = '\0';
    return at;
}

/* Enters a barrier of `members` ranks and looks, when it lets go, whether all had entered. */
static void barrier(int thread, int kind, int group, int members, int round, const char *name)
{
    int *entered = &counts->entered[thread][kind][group];
    int tag = thread == THREADS_MAX ? 0 : 1 + thread * 1000003 + kind;

    __atomic_add_fetch(entered, 1, __ATOMIC_SEQ_CST);
    if (name == NULL)
        ask(&barriers[thread], 0, "cmd=barrier_in\n");
    else {
        char group_name[64];
        /* A server recognizes MPICH's library by the format of the first name. */
        if (kind == 0)
            snprintf(group_name, sizeof(group_name), "WORLD:%d", tag);
        else
            snprintf(group_name, sizeof(group_name), "%s:%d", name, tag);
        ask(&barriers[thread], tag, "cmd=barrier_in group=%s\n", group_name);
    }
    int seen = __atomic_load_n(entered, __ATOMIC_SEQ_CST);
    if (seen < (round + 1) * members)
        fail(1, "pmi12_groups rank=%d: barrier %s of thread %d let go with %d of %d in it", rank,
             name == NULL ? "without a group" : name, thread, seen - round * members, members);
}

static void *meet(void *argument)
{
    int thread = (int)(long)argument;
    for (int round = 0; round < rounds; round++) {
        barrier(thread, 0, 0, size, round, "WORLD");
        barrier(thread, 1, node, ranks_here, round, "NODE");
        barrier(thread, 2, rank % 2, (size + 1 - rank % 2) / 2, round, evens_or_odds);
    }
    return NULL;
}

/* Finds this rank's node in a mapping of whole blocks. */
static void find_node(const char *mapping)
{
    int first = 0, start, nodes, each, length;
    const char *block = strstr(mapping, ",(");
    for (; block != NULL && sscanf(block, ",(%d,%d,%d)%n", &start, &nodes, &each, &length) == 3;
         block += length, first += nodes * each) {
        if (rank < first || rank >= first + nodes * each)
            continue;
        node = start + (rank - first) / each;
        ranks_here = each;
        return;
    }
    fail(1, "pmi12_groups rank=%d: it is not in the mapping %s", rank, mapping);
}

static void *shared(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof *counts) != 0)
        fail(1, "pmi12_groups: %s: %s", path, strerror(errno));
    void *memory = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        fail(1, "pmi12_groups: %s: %s", path, strerror(errno));
    return memory;
}

int main(int argc, char **argv)
{
    pthread_t reader, meeting[THREADS_MAX];
    const char *descriptor = getenv("PMI_FD"), *size_text = getenv("PMI_SIZE");

    if (argc < 2)
        fail(2, "usage: pmi12_groups FILE [THREADS [ROUNDS]]");
    threads = argc > 2 ? (int)number_argument(argv[2]) : threads;
    rounds = argc > 3 ? (int)number_argument(argv[3]) : rounds;
    rank = rank_from_environment();
    if (descriptor == NULL || size_text == NULL || rank < 0 || threads > THREADS_MAX)
        fail(1, "pmi12_groups: not started by a launcher, or too many threads");
    fd = (int)number_argument(descriptor);
    size = (int)number_argument(size_text);
    alarm(LAST_RESORT_SECONDS);
    counts = shared(argv[1]);
    if (pthread_create(&reader, NULL, read_replies, NULL) != 0)
        fail(1, "pmi12_groups: cannot start a thread");
    ask(&other, 0, "cmd=init pmi_version=1 pmi_subversion=1\n");
    if (atoi(field(" pmi_subversion=")) < 2)
        fail(1, "pmi12_groups rank=%d: subversion %s", rank, field(" pmi_subversion="));
    ask(&other, 0, "cmd=get_my_kvsname\n");
    snprintf(kvsname, sizeof kvsname, "%s", field(" kvsname="));
    ask(&other, 0, "cmd=get kvsname=%s key=PMI_process_mapping\n", kvsname);
    find_node(field(" value="));
    for (int member = rank % 2; member < size; member += 2) {
        size_t used = strlen(evens_or_odds);
        snprintf(evens_or_odds + used, sizeof evens_or_odds - used, "%s%d", used ? "," : "", member);
    }
    ask(&other, 0, "cmd=put kvsname=%s key=k%d value=v%d\n", kvsname, rank, rank);

    for (long i = 0; i < threads; i++)
        if (pthread_create(&meeting[i], NULL, meet, (void *)i) != 0)
            fail(1, "pmi12_groups: cannot start a thread");
    for (int round = 0; round < rounds; round++) {
        barrier(THREADS_MAX, 0, 0, size, round, NULL);
        int peer = (rank + 1 + round) % size;
        ask(&other, 0, "cmd=get kvsname=%s key=k%d\n", kvsname, peer);
        if (atoi(field(" value=v")) != peer)
            fail(1, "pmi12_groups rank=%d: wrong value of rank %d", rank, peer);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(meeting[i], NULL);
    report("pmi12_groups rank=%d size=%d node=%d threads=%d barriers=%d", rank, size, node, threads,
           rounds * (1 + KINDS * threads));
    ask(&other, 0, "cmd=finalize\n");
    return 0;
}
