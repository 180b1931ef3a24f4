/*
 * floor [--pmi] N PROGRAM [ARGUMENT...]
 *
 * The floor for the benchmarks: starts N processes in parallel and waits for them. With --pmi one
 * thread answers PMI-1 and PMI-2 on a socketpair for each of them, well enough for the real
 * clients. No checks, no output handling, no recovery: what remains is what the kernel costs.
 */
#define _GNU_SOURCE
#include "spawn.h"
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { LINE = 4096, SLOTS = 1 << 14, LENGTH = 6 };

struct client {
    int fd, rank, used;
    bool pmi2;
    char buffer[LINE];
};

static struct client *clients;
static int size, waiting;
static char kvsname[64];
static struct {
    char *key, *value;
} table[SLOTS];

static unsigned slot_of(const char *key)
{
    uint32_t hash = 2166136261u;
    for (const char *c = key; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    unsigned slot = hash % SLOTS;
    while (table[slot].key != NULL && strcmp(table[slot].key, key) != 0)
        slot = (slot + 1) % SLOTS;
    return slot;
}

static void store(const char *key, const char *value)
{
    unsigned slot = slot_of(key);
    if (table[slot].key == NULL)
        table[slot].key = strdup(key);
    free(table[slot].value);
    table[slot].value = strdup(value);
}

static void send_whole(int fd, const char *bytes, int length)
{
    if (send(fd, bytes, (size_t)length, MSG_NOSIGNAL) != length)
        fprintf(stderr, "floor: an answer was lost\n");
}

static void answer(int fd, const char *format, ...)
{
    char line[LINE];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    send_whole(fd, line, length);
}

/* The same for PMI-2: a frame `cmd=NAME-response;rc=0;` and what the format adds. */
static void frame(int fd, const char *name, const char *format, ...)
{
    char bytes[LINE], digits[16];
    va_list args;
    int head = snprintf(bytes, sizeof bytes, "%*scmd=%s-response;rc=0;", LENGTH, "", name);
    va_start(args, format);
    int length = head + vsnprintf(bytes + head, sizeof bytes - (size_t)head, format, args);
    va_end(args);
    snprintf(digits, sizeof digits, "%6d", length - LENGTH);
    memcpy(bytes, digits, LENGTH);
    send_whole(fd, bytes, length);
}

/* Cuts the value of ` name=` out of a request; the fields after it must be taken before. */
static char *take(char *request, const char *name, const char *ends)
{
    char *at = strstr(request, name);
    if (at == NULL)
        return NULL;
    at += strlen(name);
    at[strcspn(at, ends)] = '\0';
    return at;
}

/* Counts a rank in; the last one lets all go on, each in its own dialect. */
static void enter_barrier(void)
{
    if (++waiting < size)
        return;
    waiting = 0;
    for (int i = 0; i < size; i++) {
        if (clients[i].pmi2)
            frame(clients[i].fd, "kvs-fence", "");
        else
            answer(clients[i].fd, "cmd=barrier_out rc=0\n");
    }
}

static void serve_frame(struct client *client, char *request)
{
    int fd = client->fd;
    if (strncmp(request, "cmd=", 4) != 0)
        return;
    char *name = request + 4, *rest = name + strcspn(name, ";");
    if (*rest != '\0')
        *rest++ = '\0';

    if (strcmp(name, "fullinit") == 0) {
        frame(fd, name, "pmi-version=2;pmi-subversion=0;rank=%d;size=%d;appnum=0;debugged=FALSE;pmiverbose=FALSE;",
              client->rank, size);
    } else if (strcmp(name, "job-getid") == 0) {
        frame(fd, name, "jobid=%s;", kvsname);
    } else if (strcmp(name, "kvs-put") == 0) {
        char *value = take(rest, "value=", ";"), *key = take(rest, "key=", ";");
        if (value == NULL || key == NULL)
            return;
        store(key, value);
        frame(fd, name, "");
    } else if (strcmp(name, "kvs-get") == 0 || strcmp(name, "info-getjobattr") == 0) {
        char *key = take(rest, "key=", ";");
        const char *value = key == NULL ? NULL : table[slot_of(key)].value;
        if (value != NULL)
            frame(fd, name, "found=TRUE;value=%s;", value);
        else
            frame(fd, name, "found=FALSE;");
    } else if (strcmp(name, "kvs-fence") == 0) {
        enter_barrier();
    } else if (strcmp(name, "finalize") == 0) {
        frame(fd, name, "");
    } else {
        fprintf(stderr, "floor: unknown request %s\n", name);
    }
}

static void serve(struct client *client, char *request)
{
    int fd = client->fd;
    if (strncmp(request, "cmd=", 4) != 0)
        return;
    char *name = request + 4, *rest = strchr(name, ' ');
    if (rest == NULL)
        rest = name + strlen(name);
    else
        *rest++ = '\0';

    if (strcmp(name, "init") == 0) {
        client->pmi2 = strstr(rest, "pmi_version=2") != NULL;
        answer(fd, "cmd=response_to_init rc=0 pmi_version=%s\n",
               client->pmi2 ? "2 pmi_subversion=0" : "1 pmi_subversion=1");
    } else if (strcmp(name, "get_maxes") == 0) {
        answer(fd, "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n");
    } else if (strcmp(name, "get_appnum") == 0) {
        answer(fd, "cmd=appnum rc=0 appnum=0\n");
    } else if (strcmp(name, "get_my_kvsname") == 0) {
        answer(fd, "cmd=my_kvsname rc=0 kvsname=%s\n", kvsname);
    } else if (strcmp(name, "get_universe_size") == 0) {
        answer(fd, "cmd=universe_size rc=0 size=%d\n", size);
    } else if (strcmp(name, "put") == 0) {
        char *value = take(rest, "value=", ""), *key = take(rest, "key=", " ");
        if (value == NULL || key == NULL)
            return;
        store(key, value);
        answer(fd, "cmd=put_result rc=0\n");
    } else if (strcmp(name, "get") == 0) {
        char *key = take(rest, "key=", " ");
        const char *value = key == NULL ? NULL : table[slot_of(key)].value;
        if (value != NULL)
            answer(fd, "cmd=get_result rc=0 value=%s\n", value);
        else
            answer(fd, "cmd=get_result rc=-1 msg=key_not_found\n");
    } else if (strcmp(name, "barrier_in") == 0) {
        enter_barrier();
    } else if (strcmp(name, "finalize") == 0) {
        answer(fd, "cmd=finalize_ack rc=0\n");
    } else {
        fprintf(stderr, "floor: unknown request %s\n", name);
    }
}

/* Serves the message at the front of the buffer; 0, or its bytes. */
static int serve_one(struct client *client, char *text, int length)
{
    if (!client->pmi2) {
        char *end = memchr(text, '\n', (size_t)length);
        if (end == NULL)
            return 0;
        *end = '\0';
        serve(client, text);
        return (int)(end - text) + 1;
    }
    if (length < LENGTH)
        return 0;
    char digits[LENGTH + 1] = "";
    memcpy(digits, text, LENGTH);
    int whole = LENGTH + atoi(digits);
    if (length < whole)
        return 0;
    char behind = text[whole];
    text[whole] = '\0';
    serve_frame(client, text + LENGTH);
    text[whole] = behind;
    return whole;
}

/* Reads what there is and serves the whole messages; false at the end of the connection. */
static bool receive(struct client *client)
{
    ssize_t got = read(client->fd, client->buffer + client->used, sizeof client->buffer - 1 - (size_t)client->used);
    if (got <= 0)
        return false;
    client->used += (int)got;
    client->buffer[client->used] = '\0';
    int done = 0, one;
    while ((one = serve_one(client, client->buffer + done, client->used - done)) > 0)
        done += one;
    client->used -= done;
    memmove(client->buffer, client->buffer + done, (size_t)client->used);
    return true;
}

static void *respond(void *unused)
{
    struct epoll_event events[64];
    int poll = epoll_create1(EPOLL_CLOEXEC), open = size;

    (void)unused;
    for (int i = 0; i < size; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, clients[i].fd, &event) != 0)
            die("epoll_ctl");
    }
    while (open > 0) {
        int ready = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            struct client *client = events[i].data.ptr;
            if (!receive(client)) {
                epoll_ctl(poll, EPOLL_CTL_DEL, client->fd, NULL);
                open--;
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    bool pmi = argc > 1 && strcmp(argv[1], "--pmi") == 0;
    int at = 1 + pmi, *child_ends = NULL;
    pthread_t responder;

    if (argc < at + 2 || (size = atoi(argv[at])) < 1) {
        fprintf(stderr, "usage: floor [--pmi] N PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    struct job job = {.size = size, .argv = argv + at + 1};
    job.pids = calloc((size_t)size, sizeof *job.pids);
    job.environments = calloc((size_t)size, sizeof *job.environments);
    for (int rank = 0; rank < size; rank++)
        job.environments[rank] = rank == 0 || pmi ? environment_with_room(3) : job.environments[0];
    if (pmi) {
        snprintf(kvsname, sizeof kvsname, "floor-%d", (int)getpid());
        char mapping[64];
        snprintf(mapping, sizeof mapping, "(vector,(0,1,%d))", size);
        store("PMI_process_mapping", mapping);
        clients = calloc((size_t)size, sizeof *clients);
        child_ends = calloc((size_t)size, sizeof *child_ends);
        for (int rank = 0; rank < size; rank++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
                die("socketpair");
            clients[rank].fd = pair[0];
            clients[rank].rank = rank;
            child_ends[rank] = pair[1];
            char **end = job.environments[rank];
            while (*end != NULL)
                end++;
            end[0] = "PMI_FD=3";
            end[1] = entry("PMI_RANK=%d", rank);
            end[2] = entry("PMI_SIZE=%d", size);
        }
        job.descriptors = child_ends;
        if ((errno = pthread_create(&responder, NULL, respond, NULL)) != 0)
            die("pthread_create");
    }
    spawn_all(&job);
    int result = wait_all(&job);
    if (pmi)
        pthread_join(responder, NULL);
    return result;
}
