/*
 * demo all                each rank uses every command; rank 0 spawns two programs, which are this one too
 * demo threads            threads of each rank ask at once, and what they wait for comes in another order
 * demo abort TEXT         rank 0 ends the job
 * demo notices SIGNAL     rank 0 waits for a line of the server's and prints it (needs PMI_PORT)
 *
 * Prints one line for each rank; exits with 1, and the reason, where something is not as it should be.
 */
#define _GNU_SOURCE
#include "pmi2_draft.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6, ROUNDS = 25, LONG = 1000 };

static struct pmi2 *pmi;
static int rank, size;

__attribute__((noreturn)) static void wrong(const char *what, int line)
{
    fprintf(stderr, "demo rank %d, line %d: %s (%s)\n", rank, line, what, pmi2_message());
    exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : wrong(#condition, __LINE__))

/* Whether the text is this one; frees it. */
static bool is(char *text, const char *expected)
{
    bool same = text != NULL && strcmp(text, expected) == 0;
    free(text);
    return same;
}

static char *get(const char *job, const char *key)
{
    char *value;
    CHECK(pmi2_get(pmi, job, key, &value) == 0);
    return value;
}

/* Asks until the key is there, which another job puts when it likes. */
static char *await(const char *job, const char *key)
{
    for (;;) {
        char *value = get(job, key);
        if (value != NULL)
            return value;
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
}

static void put(const char *key, const char *value)
{
    CHECK(pmi2_put(pmi, key, value) == 0);
}

/* The cards that all ranks put, one of them in parts. */
static void store(void)
{
    char key[32], value[LONG + 1];
    size_t count, cards = 0;
    struct pmi2_pair *pairs;

    snprintf(key, sizeof key, "card-%d", rank);
    put(key, "a;b;;c=d\ne;");
    pmi2_set_longest(pmi, 64);
    snprintf(key, sizeof key, "long-%d", rank);
    memset(value, 'x', LONG);
    value[0] = ';';
    value[LONG] = '\0';
    put(key, value);
    CHECK(pmi2_fence(pmi) == 0);
    for (int other = 0; other < size; other++) {
        snprintf(key, sizeof key, "card-%d", other);
        CHECK(is(get(NULL, key), "a;b;;c=d\ne;"));
        snprintf(key, sizeof key, "long-%d", other);
        CHECK(is(get(NULL, key), value));
    }
    pmi2_set_longest(pmi, 32 * 1024);
    CHECK(get(NULL, "nothing") == NULL);
    CHECK(pmi2_get_all(pmi, NULL, &count, &pairs) == 0);
    for (size_t i = 0; i < count; i++)
        if (strncmp(pairs[i].key, "card-", 5) == 0) {
            CHECK(strcmp(pairs[i].value, "a;b;;c=d\ne;") == 0);
            cards++;
        }
    CHECK(cards == (size_t)size && count >= 2 * cards);
    pmi2_free_pairs(count, pairs);
}

/* The lowest rank of a node puts what its others wait for. */
static void attributes(void)
{
    char *ranks, *value, text[16];

    CHECK(pmi2_node_attribute(pmi, "localRanks", false, &ranks) == 0 && ranks != NULL);
    snprintf(text, sizeof text, "%ld", strtol(ranks, NULL, 10));
    free(ranks);
    CHECK(pmi2_node_attribute(pmi, "absent", false, &value) == 0 && value == NULL);
    if (strtol(text, NULL, 10) == rank)
        CHECK(pmi2_put_node_attribute(pmi, "lowest", text) == 0);
    CHECK(pmi2_node_attribute(pmi, "lowest", true, &value) == 0);
    CHECK(is(value, text));
    CHECK(pmi2_job_attribute(pmi, "PMI_process_mapping", &value) == 0 && value != NULL);
    free(value);
    CHECK(pmi2_job_attribute(pmi, "hasNameServ", &value) == 0);
    CHECK(is(value, "TRUE"));
}

/* A name of each rank. */
static void names(void)
{
    const struct pmi2_pair info = {"note", "a;b"};
    char name[64], *port, *job;

    CHECK(pmi2_job_id(pmi, &job) == 0);
    snprintf(name, sizeof name, "svc;%.40s;%d", job, rank);
    free(job);
    CHECK(pmi2_publish(pmi, name, "tcp;1", 1, &info) == 0);
    CHECK(pmi2_lookup(pmi, name, 1, &info, &port) == 0);
    CHECK(is(port, "tcp;1"));
    CHECK(pmi2_unpublish(pmi, name, 0, NULL) == 0);
    CHECK(pmi2_lookup(pmi, name, 0, NULL, &port) != 0 && port == NULL);
}

/* The names of commands in the documents of schedulers. */
static void spellings(void)
{
    const struct pmi2_pair put_fields[] = {{"key", "spelled"}, {"value", "v"}}, key = {"key", "spelled"};
    const struct pmi2_pair attribute = {"key", "hasNameServ"};
    char *value;

    CHECK(pmi2_request(pmi, "kvsput", 2, put_fields, NULL) == 0);
    CHECK(pmi2_request(pmi, "kvsfence", 0, NULL, NULL) == 0);
    CHECK(pmi2_request(pmi, "kvsget", 1, &key, &value) == 0);
    CHECK(is(value, "v"));
    CHECK(pmi2_request(pmi, "job-getinfo", 1, &attribute, &value) == 0);
    CHECK(is(value, "TRUE"));
    CHECK(pmi2_request(pmi, "frobnicate", 0, NULL, NULL) == 14);
}

/* A job that this server cannot know: its pairs come from a client. */
static void foreign(void)
{
    struct pmi2_pair pairs[] = {{"address", "there;1"}, {"empty", ""}, {"other", "x"}}, *found;
    size_t count;
    bool copy;

    CHECK(pmi2_connect(pmi, "elsewhere.7", &copy) == 0);
    if (copy)
        CHECK(pmi2_put_all(pmi, "elsewhere.7", 3, pairs) == 0);
    CHECK(is(get("elsewhere.7", "address"), "there;1"));
    CHECK(get("elsewhere.7", "none") == NULL);
    CHECK(pmi2_get_all(pmi, "elsewhere.7", &count, &found) == 0 && count == 3);
    CHECK(strcmp(found[1].key, "empty") == 0 && found[1].value[0] == '\0');
    pmi2_free_pairs(count, found);
    CHECK(pmi2_connect(pmi, "elsewhere.7", &copy) == 0 && !copy);
    CHECK(pmi2_disconnect(pmi, "elsewhere.7") == 0);
    CHECK(pmi2_disconnect(pmi, "elsewhere.7") > 0);
    CHECK(pmi2_put_all(pmi, "elsewhere.7", 3, pairs) > 0);
}

/* Two programs, of one and of two processes, in parts that are shorter than some of their arguments. */
static void spawn(char *self)
{
    char *const one[] = {self, "child", "a;b", ""}, *const two[] = {self, "child", "c d"};
    const struct pmi2_pair infos[] = {{"wdir", "/"}, {"timeout", "120000"}};
    const struct pmi2_command commands[] = {{1, 4, one, 2, infos}, {2, 3, two, 1, infos}};
    const struct pmi2_command missing = {1, 1, (char *const[]){"/no/such/program"}, 0, NULL};
    struct pmi2_pair preput = {"preput", "from;parent"}, *pairs;
    size_t count;
    char *job, *value;
    bool copy;

    CHECK(pmi2_spawn(pmi, 1, &missing, 0, NULL, &job) != 0 && job == NULL);
    pmi2_set_longest(pmi, 48);
    CHECK(pmi2_spawn(pmi, 2, commands, 1, &preput, &job) == 0 && job != NULL);
    pmi2_set_longest(pmi, 32 * 1024);
    CHECK(pmi2_connect(pmi, job, &copy) == 0 && !copy);
    for (int child = 0; child < 3; child++) {
        char key[32];
        snprintf(key, sizeof key, "child-%d", child);
        value = await(job, key);
        CHECK(is(value, child == 0 ? "a;b/0" : "c d/1"));
    }
    CHECK(pmi2_get_all(pmi, job, &count, &pairs) == 0);
    CHECK(count >= 4);
    pmi2_free_pairs(count, pairs);
    CHECK(pmi2_disconnect(pmi, job) == 0);
    put("parent", "done");
    free(job);
}

static void child(const char *argument)
{
    const char *parent = pmi2_spawner(pmi);
    char key[32], value[64], directory[8];
    size_t count;
    struct pmi2_pair *pairs;
    bool copy;

    CHECK(parent != NULL && pmi2_connect(pmi, parent, &copy) == 0 && !copy);
    CHECK(getcwd(directory, sizeof directory) != NULL && strcmp(directory, "/") == 0);
    CHECK(is(get(NULL, "preput"), "from;parent"));
    CHECK(is(get(parent, "card-0"), "a;b;;c=d\ne;"));
    CHECK(pmi2_get_all(pmi, parent, &count, &pairs) == 0 && count > 0);
    pmi2_free_pairs(count, pairs);
    snprintf(key, sizeof key, "child-%d", rank);
    snprintf(value, sizeof value, "%s/%d", argument, pmi2_appnum(pmi));
    put(key, value);
    CHECK(pmi2_fence(pmi) == 0);
    /* So that there is somebody to be asked. */
    CHECK(is(await(parent, "parent"), "done"));
    CHECK(pmi2_disconnect(pmi, parent) == 0);
}

/* Thread 0 has the last word in each round: the others wait for one another, the first to ask for the last to put. */
static void *thread(void *argument)
{
    int number = (int)(long)argument;
    char key[64], next[64], text[64], *value;

    for (int round = 0; round < ROUNDS; round++) {
        snprintf(key, sizeof key, "turn-%d-%d-%d", rank, round, number);
        snprintf(next, sizeof next, "turn-%d-%d-%d", rank, round, number + 1);
        snprintf(text, sizeof text, "%d;%d", round, number);
        if (number + 1 < THREADS) {
            CHECK(pmi2_node_attribute(pmi, next, true, &value) == 0 && value != NULL);
            free(value);
        }
        put(key, text);
        CHECK(is(get(NULL, key), text));
        CHECK(pmi2_put_node_attribute(pmi, key, text) == 0);
        if (number == 0)
            CHECK(pmi2_fence(pmi) == 0);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    char key[64], text[64];
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, thread, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    CHECK(pmi2_fence(pmi) == 0);
    for (int other = 0; other < size; other++)
        for (int number = 0; number < THREADS; number++) {
            snprintf(key, sizeof key, "turn-%d-%d-%d", other, ROUNDS - 1, number);
            snprintf(text, sizeof text, "%d;%d", ROUNDS - 1, number);
            CHECK(is(get(NULL, key), text));
        }
}

static void notices(const char *signal)
{
    char line[256];
    int fd;
    CHECK(pmi2_notices(signal, &fd) == 0);
    FILE *file = fdopen(fd, "r");
    CHECK(file != NULL);
    printf("demo rank=%d waits\n", rank);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, file) != NULL);
    printf("demo rank=%d notice=%s", rank, line);
    fclose(file);
}

int main(int argc, char **argv)
{
    const char *what = argc < 2 ? "" : argv[1];

    CHECK(pmi2_open(&pmi) == 0);
    rank = pmi2_rank(pmi);
    size = pmi2_size(pmi);
    if (strcmp(what, "all") == 0) {
        store();
        attributes();
        names();
        spellings();
        foreign();
        if (rank == 0) {
            /* The children start in another directory. */
            char *self = realpath(argv[0], NULL);
            spawn(self == NULL ? argv[0] : self);
            free(self);
        }
        CHECK(pmi2_fence(pmi) == 0);
    } else if (strcmp(what, "child") == 0 && argc > 2) {
        child(argv[2]);
    } else if (strcmp(what, "threads") == 0) {
        threads();
    } else if (strcmp(what, "abort") == 0 && argc > 2) {
        if (rank == 0)
            CHECK(pmi2_abort(pmi, argv[2]) == 0);
        CHECK(pmi2_fence(pmi) == 0);
    } else if (strcmp(what, "notices") == 0 && argc > 2) {
        if (rank == 0)
            notices(argv[2]);
    } else {
        fprintf(stderr, "usage: demo all|threads|abort TEXT|notices SIGNAL\n");
        return 2;
    }
    CHECK(pmi2_finalize(pmi) == 0);
    pmi2_close(pmi);
    printf("demo %s rank=%d size=%d\n", what, rank, size);
    return 0;
}
