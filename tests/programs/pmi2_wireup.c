/*
 * pmi2_wireup [-q|-w] [GETS [BYTES]]
 *
 * pmi_wireup in PMI-2: init, one put of BYTES (default 200), a fence, GETS gets (default 32) of the
 * ranks after it, finalize, with the same keys and values, so that ranks of both kinds can meet.
 * Every value is checked. Prints, unless -q,
 *     pmi2_wireup rank=R size=N gets=G jobid=J
 * and with -w waits before finalize until it is killed.
 * Speaks the wire itself, so that a benchmark measures the server and no client library.
 */
#include "common.h"

enum { LENGTH = 6, LONGEST = 4096 };

static int fd, rank;
/* What was read; a frame that was returned is `begin` to `next`. */
static char input[2 * LONGEST + 1];
static size_t begin, end;
static char reply[LONGEST + 1];

static void receive(void)
{
    if (end == sizeof input - 1) {
        memmove(input, input + begin, end - begin);
        end -= begin;
        begin = 0;
    }
    ssize_t got = read(fd, input + end, sizeof input - 1 - end);
    if (got < 0 && errno == EINTR)
        return;
    if (got <= 0)
        fail(1, "pmi2_wireup rank=%d: the server closed the connection", rank);
    end += (size_t)got;
}

/* Reads the one line that PMI-2 has. */
static void read_line(void)
{
    char *newline;
    while ((newline = memchr(input + begin, '\n', end - begin)) == NULL)
        receive();
    size_t length = (size_t)(newline - input) - begin;
    memcpy(reply, input + begin, length);
    reply[length] = '\0';
    begin += length + 1;
}

/* Reads a frame into `reply`, which then begins with a semicolon for `field` to find. */
static void read_frame(void)
{
    while (end - begin < LENGTH)
        receive();
    char digits[LENGTH + 1] = "";
    memcpy(digits, input + begin, LENGTH);
    size_t length = (size_t)atoi(digits);
    if (length == 0 || length >= LONGEST)
        fail(1, "pmi2_wireup rank=%d: a frame of length %s", rank, digits);
    while (end - begin < LENGTH + length)
        receive();
    reply[0] = ';';
    memcpy(reply + 1, input + begin + LENGTH, length);
    reply[1 + length] = '\0';
    begin += LENGTH + length;
    if (begin == end)
        begin = end = 0;
}

/* The value of a field of the last frame, up to the next semicolon; NULL when it is not there. */
static char *field(const char *name)
{
    char pattern[64];
    int length = snprintf(pattern, sizeof pattern, ";%s=", name);
    char *at = strstr(reply, pattern);
    if (at == NULL)
        return NULL;
    at += length;
    at[strcspn(at, ";")] = '\0';
    return at;
}

/* Sends a request and reads its answer, which must be a good one. */
static void ask(const char *name, const char *format, ...)
{
    char frame[LONGEST], expected[64];
    va_list args;
    int head = snprintf(frame, sizeof frame, "%*scmd=%s;", LENGTH, "", name);
    va_start(args, format);
    int length = head + vsnprintf(frame + head, sizeof frame - (size_t)head, format, args);
    va_end(args);
    char digits[16];
    snprintf(digits, sizeof digits, "%6d", length - LENGTH);
    memcpy(frame, digits, LENGTH);
    if (write_all(fd, frame, (size_t)length) != 0)
        fail(1, "pmi2_wireup rank=%d: write: %s", rank, strerror(errno));
    read_frame();
    int wanted = snprintf(expected, sizeof expected, ";cmd=%s-response;", name);
    const char *rc = strstr(reply, ";rc=");
    if (strncmp(reply, expected, (size_t)wanted) != 0 || rc == NULL || atoi(rc + 4) != 0)
        fail(1, "pmi2_wireup rank=%d: answer to %s: %s", rank, name, reply + 1);
}

int main(int argc, char **argv)
{
    static const char init[] = "cmd=init pmi_version=2 pmi_subversion=0\n";
    char jobid[256], value[1024], expected[1024];
    int quiet = argc > 1 && strcmp(argv[1], "-q") == 0;
    int waits = argc > 1 && strcmp(argv[1], "-w") == 0, at = 1 + (quiet || waits);
    int gets = argc > at ? (int)number_argument(argv[at]) : 32;
    size_t bytes = argc > at + 1 ? (size_t)number_argument(argv[at + 1]) : 200;
    const char *descriptor = getenv("PMI_FD"), *text;

    rank = rank_from_environment();
    if (descriptor == NULL || rank < 0)
        fail(1, "pmi2_wireup: PMI_FD or PMI_RANK is not set");
    if (bytes < 16 || bytes >= sizeof value)
        fail(2, "pmi2_wireup: value length out of range");
    fd = (int)number_argument(descriptor);
    if (write_all(fd, init, sizeof init - 1) != 0)
        fail(1, "pmi2_wireup rank=%d: write: %s", rank, strerror(errno));
    read_line();
    if (strncmp(reply, "cmd=response_to_init ", 21) != 0 || strstr(reply, "rc=0") == NULL)
        fail(1, "pmi2_wireup rank=%d: answer to init: %s", rank, reply);
    /* Slurm's server refuses who does not name his job. */
    const char *job = getenv("PMI_JOBID");
    ask("fullinit", "%s%s%spmirank=%d;threaded=FALSE;", job == NULL ? "" : "pmijobid=",
        job == NULL ? "" : job, job == NULL ? "" : ";", rank);
    if ((text = field("size")) == NULL)
        fail(1, "pmi2_wireup rank=%d: no size in the answer to fullinit", rank);
    int size = (int)number_argument(text);
    ask("job-getid", "");
    if ((text = field("jobid")) == NULL)
        fail(1, "pmi2_wireup rank=%d: no jobid in the answer to job-getid", rank);
    snprintf(jobid, sizeof jobid, "%s", text);
    fill_card(rank, value, bytes);
    ask("kvs-put", "key=card-%d;value=%s;", rank, value);
    ask("kvs-fence", "");
    for (int i = 1; i <= gets; i++) {
        int peer = (rank + i) % size;
        ask("kvs-get", "jobid=%s;srcid=%d;key=card-%d;", jobid, peer, peer);
        fill_card(peer, expected, bytes);
        if ((text = field("value")) == NULL || strcmp(text, expected) != 0)
            fail(1, "pmi2_wireup rank=%d: wrong value for rank %d", rank, peer);
    }
    if (!quiet)
        report("pmi2_wireup rank=%d size=%d gets=%d jobid=%s", rank, size, gets, jobid);
    if (waits)
        wait_for_the_end();
    ask("finalize", "");
    return 0;
}
