/*
 * pmi2_raw STEP [ARGUMENT...]...
 *
 * A PMI-2 client that writes what real clients write, byte for byte, and misbehaves when told to.
 * Every rank walks through all steps and carries out those that are for it:
 *     for R|all           the steps that follow are for rank R only, or for all (at the start)
 *     as CLIENT           they write as mpich4, slurm (at the start) or mpich5 does
 *     threaded            they name their thread, as after MPI_THREAD_MULTIPLE
 *     pieces N            each write has at most N bytes
 * A request waits for its reply, checks what that client checks, and prints it:
 *     pmi2_raw rank=R reply=TEXT
 *     init  job-getid  fence  finalize  put KEY VALUE  get KEY  get-of JOB KEY  job-attr KEY
 *     put-node KEY VALUE  node-attr KEY  wait-node KEY  publish NAME PORT  lookup NAME
 *     unpublish NAME  ring LEFT RIGHT  frame TEXT (any request)
 *     later REQUEST       sends it only;  reply  reads the reply to the oldest one such
 *     expect VALUE        the last reply must have this `value`
 * Others:
 *     abort TEXT          has no reply
 *     bytes TEXT          TEXT as it is
 *     garbage N           that many pseudo-random bytes
 *     endless N           valid requests until that many bytes, never reading a reply
 *     close               closes the socket
 *     touch FILE, await FILE    makes a file, waits until it is there
 *     kill SIGNAL, exit CODE, wait (to be killed)
 *     only-print          from here on nothing is sent or read; what would be sent is printed as
 *         pmi2_raw rank=R bytes=TEXT
 * In all arguments %r is the rank, %n the number of ranks, %s the next rank, %p the previous one
 * and %j the job; \n, \0, \\ are bytes in those of `bytes` and `frame`.
 */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

enum { LENGTH = 6, LONGEST = 1 << 17, JUNK = 6, WAITING = 16 };

static enum { MPICH4, SLURM, MPICH5 } client = SLURM;
static bool threaded, only_print, sends_only;
static int fd = -1, rank, size;
static size_t piece = LONGEST;
static const char *job;

/* The command and the thread of each request that has no reply yet, oldest first. */
static struct {
    char name[64], thread[32];
} unanswered[WAITING];
static int open_requests;

/* The last reply, with a semicolon in front. */
static char reply[LONGEST];

/* What MPICH 4.0 leaves behind its messages and counts: old stack and old messages. */
static const char junk[][JUNK + 1] = {
    "\0\0\0\0\0\0", "\0;valu",       "=0;\0\0\0",     "\xcc\xfc\x7f\0\0\xff",
    "#vm$if",       "\0  cmd",       "\0\0\0\x34\x31 ", "\0/\x0c\xc2\xac\xfd",
};

/* ---- bytes ---------------------------------------------------------------------------------- */

static void print_escaped(const char *bytes, size_t length)
{
    char text[2048];
    size_t to = 0;
    for (size_t i = 0; i < length && to + 8 < sizeof text; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\n')
            to += (size_t)sprintf(text + to, "\\n");
        else if (c < ' ' || c > '~')
            to += (size_t)sprintf(text + to, "\\x%02x", c);
        else
            text[to++] = (char)c;
    }
    report("pmi2_raw rank=%d bytes=%.*s", rank, (int)to, text);
}

static void send_bytes(const char *bytes, size_t length)
{
    if (only_print) {
        print_escaped(bytes, length);
        return;
    }
    while (length > 0) {
        size_t part = length < piece ? length : piece;
        if (write_all(fd, bytes, part) != 0) {
            report("pmi2_raw rank=%d write=%s", rank, strerrorname_np(errno));
            return;
        }
        bytes += part;
        length -= part;
    }
}

static void read_bytes(char *to, size_t length)
{
    while (length > 0) {
        ssize_t got = read(fd, to, length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            fail(1, "pmi2_raw rank=%d: the server closed the connection", rank);
        to += got;
        length -= (size_t)got;
    }
}

/* Sends the text of a frame with its length, as this client writes it. */
static void send_frame(const char *text, size_t length)
{
    static unsigned sent;
    static char frame[LENGTH + LONGEST + JUNK];
    size_t extra = client == MPICH4 ? JUNK : 0;
    char digits[16];

    if (length > LONGEST)
        fail(2, "pmi2_raw: too long a frame");
    snprintf(digits, sizeof digits, client == MPICH5 ? "%6zu" : "%-6zu", length + extra);
    memcpy(frame, digits, LENGTH);
    memcpy(frame + LENGTH, text, length);
    memcpy(frame + LENGTH + length, junk[sent % (sizeof junk / sizeof *junk)], JUNK);
    /* The first message of a process finds a clean stack. */
    if (!only_print)
        sent++;
    send_bytes(frame, LENGTH + length + extra);
}

/* ---- arguments ------------------------------------------------------------------------------ */

static char *expanded(const char *text)
{
    size_t room = strlen(text) + 1024, to = 0;
    char *result = malloc(room);
    if (result == NULL)
        fail(1, "pmi2_raw: out of memory");
    for (; *text != '\0' && to + 300 < room; text++) {
        int number = -1;
        if (*text == '%' && text[1] != '\0') {
            switch (*++text) {
            case 'r': number = rank; break;
            case 'n': number = size; break;
            case 's': number = (rank + 1) % size; break;
            case 'p': number = (rank + size - 1) % size; break;
            case 'j': to += (size_t)sprintf(result + to, "%.250s", job); continue;
            default: break;
            }
        }
        if (number >= 0)
            to += (size_t)sprintf(result + to, "%d", number);
        else
            result[to++] = *text;
    }
    result[to] = '\0';
    return result;
}

static size_t unescape(char *text)
{
    size_t to = 0;
    for (size_t from = 0; text[from] != '\0'; from++) {
        char c = text[from];
        if (c == '\\' && text[from + 1] != '\0') {
            c = text[++from];
            c = c == 'n' ? '\n' : c == '0' ? '\0' : c;
        }
        text[to++] = c;
    }
    return to;
}

/* ---- requests ------------------------------------------------------------------------------- */

/* The request being built. */
static char request[LONGEST];
static size_t request_length;

static void append(const char *text)
{
    size_t length = strlen(text);
    if (request_length + length >= sizeof request)
        fail(2, "pmi2_raw: too long a request");
    memcpy(request + request_length, text, length + 1);
    request_length += length;
}

static void field(const char *key, const char *value)
{
    append(key);
    append("=");
    for (const char *c = value; *c != '\0'; c++) {
        /* MPICH 5 does not know that a semicolon must be doubled. */
        if (*c == ';' && client != MPICH5)
            append(";");
        append((const char[]){*c, '\0'});
    }
    append(";");
}

static const char *thread(void)
{
    return client == MPICH4 ? "0x7ffe9344b370" : "140737354045504";
}

static void begin(const char *name)
{
    request_length = 0;
    field("cmd", name);
    /* The first request comes before the threads; Slurm's library knows none. */
    if (threaded && client == MPICH4 && strcmp(name, "fullinit") != 0)
        field("thrid", thread());
}

static char *reply_field(const char *key)
{
    static char value[LONGEST];
    char pattern[64];
    int length = snprintf(pattern, sizeof pattern, ";%s=", key);
    char *at = strstr(reply, pattern);
    if (at == NULL)
        return NULL;
    at += length;
    size_t to = 0;
    for (; *at != '\0' && (*at != ';' || (client != MPICH5 && at[1] == ';')); at++) {
        value[to++] = *at;
        at += *at == ';';
    }
    value[to] = '\0';
    return value;
}

/* Fails unless the reply has what this client insists on. */
static void check_reply(const char *name, const char *thread_name)
{
    static const char *const old_needs[] = {"rc",   "pmi-version", "pmi-subversion",
                                            "rank", "size",        "appnum"};
    static const char *const new_needs[] = {"rc", "rank", "size", "appnum", "pmiverbose"};
    bool full = strcmp(name, "fullinit") == 0, old = client != MPICH5;
    const char *const *needs = old ? old_needs : new_needs;
    size_t count = !full ? 1 : old ? 6 : 5;
    char expected[128];

    int length = snprintf(expected, sizeof expected, ";cmd=%s-response;", name);
    if (strncmp(reply, expected, (size_t)length) != 0)
        fail(1, "pmi2_raw rank=%d: answer to %s: %s", rank, name, reply + 1);
    for (size_t i = 0; i < count; i++)
        if (reply_field(needs[i]) == NULL)
            fail(1, "pmi2_raw rank=%d: no %s in %s", rank, needs[i], reply + 1);
    const char *found = reply_field("found"), *value;
    if (found != NULL && strcmp(found, "TRUE") != 0 && strcmp(found, "FALSE") != 0)
        fail(1, "pmi2_raw rank=%d: found is %s", rank, found);
    if (client == MPICH5 && strstr(reply, "=;") != NULL)
        fail(1, "pmi2_raw rank=%d: an empty value in %s", rank, reply + 1);
    if (client == SLURM && (value = reply_field("value")) != NULL && strlen(value) > 1024)
        fail(1, "pmi2_raw rank=%d: a value of %zu bytes", rank, strlen(value));
    const char *told = reply_field("thrid");
    if (thread_name[0] != '\0' && (told == NULL || strcmp(told, thread_name) != 0))
        fail(1, "pmi2_raw rank=%d: thread %s in %s", rank, told, reply + 1);
}

static void read_reply(void)
{
    char digits[LENGTH + 1] = "", *end;
    if (open_requests == 0)
        fail(2, "pmi2_raw: there is no request to be answered");
    read_bytes(digits, LENGTH);
    long length = strtol(digits, &end, 10);
    if (length < 1 || length > LONGEST - 2 || end[strspn(end, " ")] != '\0')
        fail(1, "pmi2_raw rank=%d: a frame of length %s", rank, digits);
    reply[0] = ';';
    read_bytes(reply + 1, (size_t)length);
    reply[1 + length] = '\0';
    if (strlen(reply) != (size_t)length + 1 || reply[length] != ';')
        fail(1, "pmi2_raw rank=%d: a frame that does not end in a semicolon: %s", rank, reply + 1);
    report("pmi2_raw rank=%d reply=%s", rank, reply + 1);
    check_reply(unanswered[0].name, unanswered[0].thread);
    memmove(unanswered, unanswered + 1, (size_t)--open_requests * sizeof *unanswered);
}

static void remember(const char *name, const char *thread_name)
{
    if (open_requests == WAITING)
        fail(2, "pmi2_raw: too many requests without a reply");
    snprintf(unanswered[open_requests].name, sizeof unanswered->name, "%s", name);
    snprintf(unanswered[open_requests].thread, sizeof unanswered->thread, "%s", thread_name);
    open_requests++;
}

/* Sends the request that was begun with this name, and reads the reply unless that comes later. */
static void ask(const char *name)
{
    bool first = strcmp(name, "fullinit") == 0;
    if (threaded && client == MPICH5 && !first)
        field("thrid", thread());
    send_frame(request, request_length);
    if (only_print)
        return;
    remember(name, threaded && client != SLURM && !first ? thread() : "");
    if (!sends_only)
        read_reply();
}

static void init(char *a, char *b)
{
    static const char line[] = "cmd=init pmi_version=2 pmi_subversion=0\n";
    char number[16];

    (void)a, (void)b;
    send_bytes(line, sizeof line - 1);
    if (!only_print) {
        char answer[256];
        size_t length = 0;
        do
            read_bytes(answer + length, 1);
        while (answer[length] != '\n' && ++length + 1 < sizeof answer);
        answer[length] = '\0';
        report("pmi2_raw rank=%d reply=%s", rank, answer);
        if (strncmp(answer, "cmd=response_to_init ", 21) != 0 || strstr(answer, " rc=0") == NULL)
            fail(1, "pmi2_raw rank=%d: answer to init: %s", rank, answer);
    }
    begin("fullinit");
    if (client != MPICH5 && job[0] != '\0')
        field("pmijobid", job);
    snprintf(number, sizeof number, "%d", rank);
    field("pmirank", number);
    if (client != MPICH5)
        field("threaded", threaded ? "TRUE" : "FALSE");
    ask("fullinit");
}

static void get_from(const char *of, const char *key)
{
    begin("kvs-get");
    if (client != MPICH5 || of != NULL)
        field("jobid", of == NULL ? "" : of);
    if (client != MPICH5)
        field("srcid", "-1");
    field("key", key);
    ask("kvs-get");
}

static void with_pair(const char *name, const char *key, const char *value)
{
    begin(name);
    field("key", key);
    if (value != NULL)
        field("value", value);
    ask(name);
}

static void ask_node(const char *key, bool wait)
{
    begin("info-getnodeattr");
    field("key", key);
    if (wait || client != MPICH5)
        field("wait", wait ? "TRUE" : "FALSE");
    ask("info-getnodeattr");
}

static void about_name(const char *command, const char *name, const char *port)
{
    begin(command);
    field("name", name);
    if (port != NULL)
        field("port", port);
    if (client != MPICH5)
        field("infokeycount", "0");
    ask(command);
}

static void send_many(bool valid, long bytes)
{
    static const char one[] = "    14cmd=job-getid;";
    static char many[3200 * (sizeof one - 1)];
    unsigned state = (unsigned)rank * 2654435761u + 1;

    for (size_t i = 0; valid && i < sizeof many; i++)
        many[i] = one[i % (sizeof one - 1)];
    while (bytes > 0) {
        size_t part = bytes < (long)sizeof many ? (size_t)bytes : sizeof many;
        for (size_t i = 0; !valid && i < part; i++)
            many[i] = (char)((state = state * 1103515245u + 12345u) >> 16);
        if (write_all(fd, many, part) != 0) {
            report("pmi2_raw rank=%d write=%s", rank, strerrorname_np(errno));
            return;
        }
        bytes -= (long)part;
    }
}

/* ---- steps: each with its arguments, expanded ------------------------------------------------ */

#define STEP(name) static void name(__attribute__((unused)) char *a, __attribute__((unused)) char *b)

STEP(job_getid) { begin("job-getid"), ask("job-getid"); }
STEP(fence) { begin("kvs-fence"), ask("kvs-fence"); }
STEP(finalize) { begin("finalize"), ask("finalize"); }
STEP(put) { with_pair("kvs-put", a, b); }
STEP(get) { get_from(NULL, a); }
STEP(get_of) { get_from(a, b); }
STEP(job_attr) { with_pair("info-getjobattr", a, NULL); }
STEP(put_node) { with_pair("info-putnodeattr", a, b); }
STEP(node_attr) { ask_node(a, false); }
STEP(wait_node) { ask_node(a, true); }
STEP(publish) { about_name("name-publish", a, b); }
STEP(lookup) { about_name("name-lookup", a, NULL); }
STEP(unpublish) { about_name("name-unpublish", a, NULL); }

STEP(ring)
{
    begin("ring");
    field("ring-count", "1");
    field("ring-left", a);
    field("ring-right", b);
    ask("ring");
}

STEP(any_frame)
{
    char name[64] = "";
    size_t length = unescape(a);
    if (strncmp(a, "cmd=", 4) == 0)
        snprintf(name, sizeof name, "%.*s", (int)strcspn(a + 4, ";"), a + 4);
    send_frame(a, length);
    remember(name, "");
    if (!sends_only)
        read_reply();
}

STEP(abort_job)
{
    begin("abort");
    field(client == MPICH5 ? "exitcode" : "isworld", client == MPICH5 ? "-1" : "TRUE");
    field(client == MPICH5 ? "message" : "msg", a);
    send_frame(request, request_length);
}

STEP(expect)
{
    const char *value = reply_field("value");
    if (value == NULL || strcmp(value, a) != 0)
        fail(1, "pmi2_raw rank=%d: wanted the value %s: %s", rank, a, reply + 1);
}

STEP(as)
{
    if (strcmp(a, "slurm") != 0 && strncmp(a, "mpich", 5) != 0)
        fail(2, "pmi2_raw: unknown client %s", a);
    client = *a == 's' ? SLURM : a[5] == '4' ? MPICH4 : MPICH5;
}

STEP(touch)
{
    FILE *file = fopen(a, "w");
    if (file == NULL || fclose(file) != 0)
        fail(1, "pmi2_raw: %s: %s", a, strerror(errno));
}

STEP(await)
{
    struct stat status;
    while (stat(a, &status) != 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

STEP(next_reply) { read_reply(); }
STEP(raw_bytes) { send_bytes(a, unescape(a)); }
STEP(garbage) { send_many(false, number_argument(a)); }
STEP(endless) { send_many(true, number_argument(a)); }
STEP(close_socket) { close(fd); }
STEP(kill_self) { raise((int)number_argument(a)); }
STEP(exit_with) { _exit((int)number_argument(a)); }
STEP(wait_to_be_killed) { wait_for_the_end(); }
STEP(name_threads) { threaded = true; }
STEP(write_pieces) { piece = (size_t)number_argument(a); }
STEP(print_only) { only_print = true; }

static const struct {
    const char *name;
    int arguments;
    void (*run)(char *a, char *b);
} steps[] = {
    {"init", 0, init},
    {"job-getid", 0, job_getid},
    {"fence", 0, fence},
    {"finalize", 0, finalize},
    {"put", 2, put},
    {"get", 1, get},
    {"get-of", 2, get_of},
    {"job-attr", 1, job_attr},
    {"put-node", 2, put_node},
    {"node-attr", 1, node_attr},
    {"wait-node", 1, wait_node},
    {"publish", 2, publish},
    {"lookup", 1, lookup},
    {"unpublish", 1, unpublish},
    {"ring", 2, ring},
    {"frame", 1, any_frame},
    {"reply", 0, next_reply},
    {"expect", 1, expect},
    {"abort", 1, abort_job},
    {"bytes", 1, raw_bytes},
    {"garbage", 1, garbage},
    {"endless", 1, endless},
    {"close", 0, close_socket},
    {"touch", 1, touch},
    {"await", 1, await},
    {"kill", 1, kill_self},
    {"exit", 1, exit_with},
    {"wait", 0, wait_to_be_killed},
    {"as", 1, as},
    {"threaded", 0, name_threads},
    {"pieces", 1, write_pieces},
    {"only-print", 0, print_only},
};

/* Carries out the step at argv[0], if it is for this rank; how many words it has. */
static int step(char **argv, bool mine)
{
    char *given[2] = {NULL, NULL};
    size_t i = 0;

    if (strcmp(argv[0], "later") == 0 && argv[1] != NULL) {
        sends_only = true;
        int words = step(argv + 1, mine);
        sends_only = false;
        return 1 + words;
    }
    while (strcmp(steps[i].name, argv[0]) != 0)
        if (++i == sizeof steps / sizeof *steps)
            fail(2, "pmi2_raw: unknown step %s", argv[0]);
    for (int at = 0; at < steps[i].arguments; at++) {
        if (argv[1 + at] == NULL)
            fail(2, "pmi2_raw: %s needs %d arguments", argv[0], steps[i].arguments);
        given[at] = mine ? expanded(argv[1 + at]) : NULL;
    }
    if (mine)
        steps[i].run(given[0], given[1]);
    free(given[0]);
    free(given[1]);
    return 1 + steps[i].arguments;
}

int main(int argc, char **argv)
{
    const char *descriptor = getenv("PMI_FD"), *size_text = getenv("PMI_SIZE");
    bool mine = true;

    rank = rank_from_environment();
    size = size_text == NULL ? 1 : (int)number_argument(size_text);
    job = getenv("PMI_JOBID");
    job = job == NULL ? "" : job;
    fd = descriptor == NULL ? -1 : (int)number_argument(descriptor);
    signal(SIGPIPE, SIG_IGN);
    alarm(LAST_RESORT_SECONDS);
    for (int at = 1; at < argc;) {
        if (strcmp(argv[at], "for") == 0 && at + 1 < argc) {
            mine = strcmp(argv[at + 1], "all") == 0 || rank == (int)number_argument(argv[at + 1]);
            at += 2;
        } else {
            at += step(argv + at, mine);
        }
    }
    return 0;
}
