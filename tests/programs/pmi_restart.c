/*
 * pmi_restart [--pmi2] STEP...
 *
 * A rank that leaves its PMI connection and starts the protocol again, by TCP (PMI_PORT and PMI_ID) or on the
 * inherited descriptor (PMI_FD). Steps, in order:
 *     join         connects where it has a port, and starts the protocol; a connection that is open is dropped
 *     put:TEXT     puts TEXT as its card
 *     meet         enters the barrier of all ranks
 *     see          prints the cards of all ranks, with - for one that is missing:
 *                      pmi_restart rank=R saw=A,B,C
 *     tell:FILE    makes the empty file FILE
 *     await:FILE   waits until FILE is there
 *     drop         closes the connection without a goodbye; an inherited descriptor stays open
 *     leave        ends the protocol
 *     kill         ends the process by SIGKILL
 * A server that closes the connection, or refuses something, is an error.
 */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

static int fd = -1, rank, size, pmi2, inherited;
static char reply[8192], job[256];

#define WRONG(format, ...) fail(1, "pmi_restart rank=%d: " format, rank, __VA_ARGS__)

static void read_exactly(char *to, size_t length)
{
    while (length > 0) {
        ssize_t n = read(fd, to, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            WRONG("the connection has ended: %s", n == 0 ? "closed" : strerror(errno));
        to += n;
        length -= (size_t)n;
    }
}

static void read_line(void)
{
    size_t length = 0;
    do {
        if (length + 1 >= sizeof reply)
            WRONG("%s", "a line without end");
        read_exactly(reply + length, 1);
    } while (reply[length++] != '\n');
    reply[length - 1] = '\0';
}

static void expect(const char *start)
{
    if (strncmp(reply, start, strlen(start)) != 0)
        WRONG("wanted %s, got: %s", start, reply);
}

static void send_text(const char *text)
{
    if (write_all(fd, text, strlen(text)) != 0)
        WRONG("write: %s", strerror(errno));
}

/* Sends a line, and reads one that must start so. */
__attribute__((format(printf, 2, 3))) static void ask_line(const char *start, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    send_text(line);
    read_line();
    expect(start);
}

/* Sends a frame, and reads the one that answers it. */
__attribute__((format(printf, 1, 2))) static void ask_frame(const char *format, ...)
{
    char frame[1024], text[1032], header[7];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(frame, sizeof frame, format, args);
    va_end(args);
    snprintf(text, sizeof text, "%6d%s", length, frame);
    send_text(text);
    read_exactly(header, 6);
    header[6] = '\0';
    size_t answer = (size_t)atoi(header);
    if (answer == 0 || answer >= sizeof reply)
        WRONG("a frame of %s bytes", header);
    read_exactly(reply, answer);
    reply[answer] = '\0';
}

/* The value of a field of the last reply, or NULL. */
static char *field(const char *name)
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%c%s=", pmi2 ? ';' : ' ', name);
    char *at = strstr(reply, pattern);
    if (at == NULL)
        return NULL;
    at += strlen(pattern);
    at[strcspn(at, pmi2 ? ";" : " ")] = '\0';
    return at;
}

static void expect_success(void)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%.200s", reply);
    const char *rc = field("rc");
    if (rc == NULL || atoi(rc) != 0)
        WRONG("refused: %s", whole);
}

static void connect_to(const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host)
        fail(2, "pmi_restart: PMI_PORT is %s", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, colon + 1, &hints, &found);
    if (error != 0)
        WRONG("%s: %s", address, gai_strerror(error));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) != 0)
        WRONG("connect to %s: %s", address, strerror(errno));
    freeaddrinfo(found);
}

static void drop(void)
{
    if (fd >= 0 && !inherited)
        close(fd);
    fd = -1;
}

static void join(void)
{
    const char *address = getenv("PMI_PORT"), *id = getenv("PMI_ID"), *given = getenv("PMI_FD");
    drop();
    inherited = address == NULL;
    if (inherited) {
        const char *count = getenv("PMI_SIZE");
        rank = rank_from_environment();
        if (given == NULL || count == NULL || rank < 0)
            fail(2, "%s", "pmi_restart: neither PMI_PORT nor PMI_FD");
        fd = (int)number_argument(given);
        size = (int)number_argument(count);
    } else {
        rank = (int)number_argument(id);
        connect_to(address);
    }
    if (!inherited && !pmi2) {
        ask_line("cmd=initack rc=0", "cmd=initack pmiid=%d\n", rank);
        read_line();
        expect("cmd=set size=");
        size = atoi(reply + strlen("cmd=set size="));
        read_line();
        expect("cmd=set rank=");
        read_line();
        expect("cmd=set debug=");
    }
    ask_line("cmd=response_to_init", "cmd=init pmi_version=%d pmi_subversion=%d\n", pmi2 ? 2 : 1, pmi2 ? 0 : 1);
    if (pmi2) {
        ask_frame("cmd=fullinit;pmirank=%d;threaded=FALSE;", rank);
        const char *count = field("size");
        if (count == NULL)
            WRONG("no size in: %s", reply);
        size = atoi(count);
        ask_frame("cmd=job-getid;");
    } else {
        ask_line("cmd=my_kvsname", "cmd=get_my_kvsname\n");
    }
    const char *name = field(pmi2 ? "jobid" : "kvsname");
    if (name == NULL)
        WRONG("no name in: %s", reply);
    snprintf(job, sizeof job, "%.200s", name);
}

static void put(const char *text)
{
    if (pmi2)
        ask_frame("cmd=kvs-put;key=card-%d;value=%s;", rank, text);
    else
        ask_line("cmd=put_result", "cmd=put kvsname=%s key=card-%d value=%s\n", job, rank, text);
    expect_success();
}

static void meet(void)
{
    if (pmi2)
        ask_frame("cmd=kvs-fence;");
    else
        ask_line("cmd=barrier_out", "cmd=barrier_in\n");
    expect_success();
}

static void see(void)
{
    char all[4096] = "";
    for (int owner = 0; owner < size; owner++) {
        if (pmi2)
            ask_frame("cmd=kvs-get;jobid=%s;srcid=-1;key=card-%d;", job, owner);
        else
            ask_line("cmd=get_result", "cmd=get kvsname=%s key=card-%d\n", job, owner);
        const char *value = field("value");
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", owner ? "," : "", value ? value : "-");
    }
    report("pmi_restart rank=%d saw=%s", rank, all);
}

static void leave(void)
{
    if (pmi2)
        ask_frame("cmd=finalize;");
    else
        ask_line("cmd=finalize_ack", "cmd=finalize\n");
    drop();
}

static void tell(const char *file)
{
    int made = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (made < 0)
        WRONG("%s: %s", file, strerror(errno));
    close(made);
}

static void await(const char *file)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    while (access(file, F_OK) != 0)
        nanosleep(&pause, NULL);
}

/* The text behind `name:`, or NULL. */
static const char *argument(const char *step, const char *name)
{
    size_t length = strlen(name);
    return strncmp(step, name, length) == 0 && step[length] == ':' ? step + length + 1 : NULL;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    alarm(LAST_RESORT_SECONDS);
    for (int at = 1; at < argc; at++) {
        const char *step = argv[at], *text;
        if (strcmp(step, "--pmi2") == 0)
            pmi2 = 1;
        else if (strcmp(step, "join") == 0)
            join();
        else if ((text = argument(step, "put")) != NULL)
            put(text);
        else if (strcmp(step, "meet") == 0)
            meet();
        else if (strcmp(step, "see") == 0)
            see();
        else if ((text = argument(step, "tell")) != NULL)
            tell(text);
        else if ((text = argument(step, "await")) != NULL)
            await(text);
        else if (strcmp(step, "drop") == 0)
            drop();
        else if (strcmp(step, "leave") == 0)
            leave();
        else if (strcmp(step, "kill") == 0)
            raise(SIGKILL);
        else
            fail(2, "pmi_restart: no such step: %s", step);
    }
    return 0;
}
