/*
 * Loaded into wireup-pmix-host, in front of everything: makes it fail at a chosen frame of its two
 * sockets. Being inside, it acts between two instructions of the host: what the host has said
 * before is said, and nothing else.
 *
 * WIREUP_TEST_FAULT holds the rule: "[node=K] OPERATION [reply] COUNT MOMENT ACTION", at the
 * COUNTth such frame. With a node, frames count after its `init` has arrived. A moment is
 *     before   a frame of the host: instead of sending it
 *              a frame of the agent: it has arrived, nothing of it has been done
 *     after    a frame of the host: it is sent
 *              a frame of the agent: what it asked for is done, or was begun
 * and the actions are those of `act` below, which first says "preload: acting" on standard error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

enum { CONTROL_FD = 3, UPCALL_FD = 4 };

static const struct {
    const char *name;
    uint16_t op;
} OPERATIONS[] = {
    {"hello", WIREUP_OP_HELLO},
    {"failed", WIREUP_OP_FAILED},
    {"init", WIREUP_OP_INIT},
    {"register_job", WIREUP_OP_REGISTER_JOB},
    {"dmodex_request", WIREUP_OP_DMODEX_REQUEST},
    {"notify", WIREUP_OP_NOTIFY},
    {"deregister_job", WIREUP_OP_DEREGISTER_JOB},
    {"finalize", WIREUP_OP_FINALIZE},
    {"client_connected", WIREUP_OP_CLIENT_CONNECTED},
    {"client_finalized", WIREUP_OP_CLIENT_FINALIZED},
    {"register_events", WIREUP_OP_REGISTER_EVENTS},
    {"notify_event", WIREUP_OP_NOTIFY_EVENT},
    {"abort", WIREUP_OP_ABORT},
    {"fence", WIREUP_OP_FENCE},
    {"direct_modex", WIREUP_OP_DIRECT_MODEX},
    {"query", WIREUP_OP_QUERY},
    {"log", WIREUP_OP_LOG},
    {"publish", WIREUP_OP_PUBLISH},
    {"lookup", WIREUP_OP_LOOKUP},
    {"unpublish", WIREUP_OP_UNPUBLISH},
    {"group", WIREUP_OP_GROUP},
    {"iof_pull", WIREUP_OP_IOF_PULL},
    {"job_control", WIREUP_OP_JOB_CONTROL},
    {"spawn", WIREUP_OP_SPAWN},
    {"connect", WIREUP_OP_CONNECT},
    {"disconnect", WIREUP_OP_DISCONNECT},
    {"push_stdin", WIREUP_OP_PUSH_STDIN},
    {"get_credential", WIREUP_OP_GET_CREDENTIAL},
    {"validate_credential", WIREUP_OP_VALIDATE_CREDENTIAL},
    {"allocate", WIREUP_OP_ALLOCATE},
};

static struct {
    bool armed;
    long node; /* -1 for any */
    uint16_t op, flags;
    long count;
    bool after;
    char action[32];
} rule;

/* One of the two sockets: its identity, and the incoming stream up to now. */
static struct channel {
    ino_t inode;
    uint8_t header[WIREUP_HEADER_LEN];
    size_t have, payload_left;
    bool act_at_next_read;
} channels[2];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long node = -1, seen;

static ssize_t (*real_send)(int, const void *, size_t, int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_recv)(int, void *, size_t, int);
static ssize_t (*real_read)(int, void *, size_t);

__attribute__((noreturn)) static void refuse(const char *what)
{
    fprintf(stderr, "preload: %s in WIREUP_TEST_FAULT\n", what);
    _exit(99);
}

static void parse_rule(char *text)
{
    char *word = strtok(text, " ");
    rule.node = -1;
    if (word != NULL && strncmp(word, "node=", 5) == 0) {
        rule.node = atol(word + 5);
        word = strtok(NULL, " ");
    }
    for (size_t i = 0; word != NULL && i < sizeof(OPERATIONS) / sizeof(*OPERATIONS); i++) {
        if (strcmp(word, OPERATIONS[i].name) == 0) {
            rule.op = OPERATIONS[i].op;
        }
    }
    if (rule.op == 0) {
        refuse("no operation");
    }
    word = strtok(NULL, " ");
    if (word != NULL && strcmp(word, "reply") == 0) {
        rule.flags = WIREUP_FLAG_REPLY;
        word = strtok(NULL, " ");
    }
    rule.count = word == NULL ? 0 : atol(word);
    const char *moment = strtok(NULL, " "), *action = strtok(NULL, " ");
    if (rule.count < 1 || action == NULL) {
        refuse("no count, moment and action");
    }
    rule.after = strcmp(moment, "after") == 0;
    snprintf(rule.action, sizeof(rule.action), "%s", action);
    rule.armed = true;
}

__attribute__((constructor)) static void start(void)
{
    real_send = dlsym(RTLD_NEXT, "send");
    real_write = dlsym(RTLD_NEXT, "write");
    real_recv = dlsym(RTLD_NEXT, "recv");
    real_read = dlsym(RTLD_NEXT, "read");
    const int fds[2] = {CONTROL_FD, UPCALL_FD};
    for (int i = 0; i < 2; i++) {
        struct stat st;
        if (fstat(fds[i], &st) == 0 && S_ISSOCK(st.st_mode)) {
            channels[i].inode = st.st_ino;
        }
    }
    const char *text = getenv("WIREUP_TEST_FAULT");
    /* env(1), which puts us into the host's environment, must not be disturbed. */
    if (text != NULL && channels[0].inode != 0 && channels[1].inode != 0) {
        parse_rule(strdup(text));
    }
}

static struct channel *channel_of(int fd)
{
    struct stat st;
    if (!rule.armed || fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        if (channels[i].inode == st.st_ino) {
            return &channels[i];
        }
    }
    return NULL;
}

static uint64_t number(const uint8_t *bytes, int size)
{
    uint64_t value = 0;
    for (int i = size; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* Whether this is the frame; counts it. */
static bool is_due(const uint8_t *header)
{
    bool due = false;
    pthread_mutex_lock(&lock);
    if (number(header + 4, 2) == rule.op && number(header + 6, 2) == rule.flags &&
        (rule.node < 0 || rule.node == node)) {
        due = ++seen == rule.count;
    }
    pthread_mutex_unlock(&lock);
    return due;
}

static void send_all(int fd, const void *bytes, size_t len)
{
    for (const char *next = bytes; len > 0;) {
        const ssize_t n = real_send(fd, next, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return;
        }
        next += n;
        len -= (size_t)n;
    }
}

__attribute__((noreturn)) static void hang(void)
{
    for (;;) {
        pause();
    }
}

static void act(int fd, const uint8_t *frame, size_t len)
{
    uint8_t header[WIREUP_HEADER_LEN];
    if (frame != NULL) {
        memcpy(header, frame, sizeof(header));
    }
    const char *action = rule.action;
    static const char TOLD[] = "preload: acting\n";
    if (real_write(STDERR_FILENO, TOLD, sizeof(TOLD) - 1) < 0) {
        _exit(99);
    }
    if (strcmp(action, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(action, "crash") == 0) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    } else if (strcmp(action, "stop") == 0) {
        raise(SIGSTOP);
    } else if (strcmp(action, "hang") == 0) {
        hang(); /* this thread only */
    } else if (strcmp(action, "exit") == 0) {
        _exit(0);
    } else if (strcmp(action, "noise") == 0) {
        for (int i = 0; i < 20000; i++) {
            fprintf(stderr, "a line that nobody wants to see, number %d of many\n", i);
        }
        fprintf(stderr, "the last line\n");
        raise(SIGKILL);
    } else if (strcmp(action, "close-control") == 0) {
        shutdown(CONTROL_FD, SHUT_WR);
    } else if (strcmp(action, "close-upcall") == 0) {
        shutdown(UPCALL_FD, SHUT_WR);
    } else if (frame == NULL) {
        refuse("an action for a frame of the host");
    } else if (strcmp(action, "cut") == 0) {
        send_all(fd, frame, len / 2);
        _exit(0);
    } else if (strcmp(action, "stall") == 0) {
        send_all(fd, frame, len / 2);
        hang();
    } else if (strcmp(action, "garbage") == 0) {
        memset(header, 0xa5, sizeof(header));
        send_all(fd, header, sizeof(header));
    } else if (strcmp(action, "oversize") == 0) {
        const uint32_t size = WIREUP_MAX_PAYLOAD + 1;
        memcpy(header, &size, sizeof(size));
        send_all(fd, header, sizeof(header));
    } else if (strcmp(action, "unknown-id") == 0) {
        header[9] ^= 0x40;
        send_all(fd, header, sizeof(header));
        send_all(fd, frame + sizeof(header), len - sizeof(header));
    } else if (strcmp(action, "twice") == 0) {
        send_all(fd, frame, len);
        send_all(fd, frame, len);
    } else {
        refuse("an unknown action");
    }
}

/* The host writes whole frames; the call returns that all was taken. */
static ssize_t on_write(int fd, const uint8_t *frame, size_t len)
{
    if (!is_due(frame)) {
        send_all(fd, frame, len);
        return (ssize_t)len;
    }
    if (rule.after) {
        send_all(fd, frame, len);
    }
    act(fd, frame, len);
    return (ssize_t)len;
}

static void before_read(struct channel *channel, int fd)
{
    if (channel->act_at_next_read) {
        channel->act_at_next_read = false;
        act(fd, NULL, 0);
    }
}

/* The node's number is the server's rank, an info of `init`: key, u32 flags, tag, u32. */
static void find_node(const uint8_t *bytes, size_t len)
{
    static const char KEY[] = "pmix.srv.rank";
    const uint8_t *key = memmem(bytes, len, KEY, sizeof(KEY) - 1);
    if (key != NULL && key + sizeof(KEY) - 1 + 9 <= bytes + len) {
        node = (long)number(key + sizeof(KEY) - 1 + 5, 4);
    }
}

static void after_read(struct channel *channel, int fd, const uint8_t *bytes, ssize_t got)
{
    if (got > 0 && node < 0) {
        find_node(bytes, (size_t)got);
    }
    while (got > 0) {
        size_t take = channel->payload_left;
        if (take > 0) {
            take = take < (size_t)got ? take : (size_t)got;
            channel->payload_left -= take;
        } else {
            take = sizeof(channel->header) - channel->have;
            take = take < (size_t)got ? take : (size_t)got;
            memcpy(channel->header + channel->have, bytes, take);
            channel->have += take;
            if (channel->have == sizeof(channel->header)) {
                channel->have = 0;
                channel->payload_left = number(channel->header, 4);
                if (is_due(channel->header)) {
                    if (rule.after) {
                        channel->act_at_next_read = true;
                    } else {
                        act(fd, NULL, 0);
                    }
                }
            }
        }
        bytes += take;
        got -= (ssize_t)take;
    }
}

ssize_t send(int fd, const void *bytes, size_t len, int flags)
{
    return channel_of(fd) == NULL ? real_send(fd, bytes, len, flags) : on_write(fd, bytes, len);
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    return channel_of(fd) == NULL ? real_write(fd, bytes, len) : on_write(fd, bytes, len);
}

ssize_t recv(int fd, void *bytes, size_t len, int flags)
{
    struct channel *channel = channel_of(fd);
    if (channel == NULL) {
        return real_recv(fd, bytes, len, flags);
    }
    before_read(channel, fd);
    const ssize_t got = real_recv(fd, bytes, len, flags);
    after_read(channel, fd, bytes, got);
    return got;
}

ssize_t read(int fd, void *bytes, size_t len)
{
    struct channel *channel = channel_of(fd);
    if (channel == NULL) {
        return real_read(fd, bytes, len);
    }
    before_read(channel, fd);
    const ssize_t got = real_read(fd, bytes, len);
    after_read(channel, fd, bytes, got);
    return got;
}
