/*
 * The upcall socket. libpmix's thread writes requests and notices; the reader thread takes the
 * agent's answers and calls libpmix back, which an upcall itself must never do.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim.h"

/* A callback that the reader thread is to make. */
struct refusal {
    struct refusal *next;
    struct completion completion;
    pmix_status_t status;
};

static struct {
    int fd;      /* -1 before the start */
    int wake_fd; /* eventfd: refusals were queued, or stop */
    pthread_t reader;
    wireup_lost_fn lost;
    pthread_mutex_t write_lock; /* one frame at a time */
    pthread_mutex_t lock;       /* the fields below */
    bool stopping;
    struct refusal *refusals;
} link_ = {
    .fd = -1,
    .wake_fd = -1,
    .write_lock = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

static void wake_reader(void)
{
    const uint64_t one = 1;
    while (write(link_.wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/* ---- writing ---- */

static bool send_all(const uint8_t *bytes, size_t len)
{
    bool sent = true;
    pthread_mutex_lock(&link_.write_lock);
    while (sent && len > 0) {
        const ssize_t n = send(link_.fd, bytes, len, MSG_NOSIGNAL);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            sent = false;
            /* Half a frame may have been sent: nothing may follow it. The reader detects the end. */
            shutdown(link_.fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&link_.write_lock);
    return sent;
}

pmix_status_t link_notice(struct out *o, uint16_t op)
{
    size_t len;
    uint8_t *frame = out_finish(o, op, 0, &len);
    if (frame == NULL) {
        return PMIX_ERR_OUT_OF_RESOURCE;
    }
    const bool sent = send_all(frame, len);
    free(frame);
    return sent ? PMIX_SUCCESS : PMIX_ERR_LOST_CONNECTION;
}

pmix_status_t link_request(struct out *o, uint16_t op, const struct completion *completion)
{
    size_t len;
    if (o->failed) {
        out_free(o);
        return PMIX_ERR_OUT_OF_RESOURCE;
    }
    /* Added before the request is sent: the answer may arrive before this function returns. */
    const uint64_t id = pending_add(op, completion);
    if (id == 0) {
        out_free(o);
        return PMIX_ERR_LOST_CONNECTION;
    }
    uint8_t *frame = out_finish(o, op, id, &len);
    const bool sent = send_all(frame, len);
    free(frame);
    struct completion back;
    if (!sent && pending_take(id, op, &back)) {
        return PMIX_ERR_LOST_CONNECTION;
    }
    /* Sent, or already completed by the reader, which detected the end of the link. */
    return PMIX_SUCCESS;
}

void link_forward(uint64_t id, uint16_t op, struct out *o)
{
    size_t len;
    uint8_t *frame = out_finish(o, op, id, &len);
    const bool sent = frame != NULL && send_all(frame, len);
    free(frame);
    struct completion back;
    if (!sent && pending_take(id, op, &back)) {
        struct answer answer = {.status = PMIX_ERR_LOST_CONNECTION};
        complete(&back, &answer);
    }
}

void link_refuse_later(const struct completion *completion, pmix_status_t status)
{
    struct refusal *refusal = malloc(sizeof(*refusal));
    if (refusal == NULL) {
        return;
    }
    pthread_mutex_lock(&link_.lock);
    *refusal = (struct refusal){link_.refusals, *completion, status};
    link_.refusals = refusal;
    pthread_mutex_unlock(&link_.lock);
    wake_reader();
}

/* ---- reading ---- */

enum outcome { GOT_IT, ENDED, GARBAGE };

static enum outcome receive(uint8_t *bytes, size_t len)
{
    while (len > 0) {
        const ssize_t n = recv(link_.fd, bytes, len, 0);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            return ENDED;
        }
    }
    return GOT_IT;
}

/* Whether the answer has the name that it needs: a spawn that succeeded names its job, and a tool gets a name. */
static bool is_good_name(uint16_t op, const struct answer *answer)
{
    if ((op != WIREUP_OP_SPAWN && op != WIREUP_OP_TOOL_CONNECTED) || answer->status != PMIX_SUCCESS) {
        return true;
    }
    return answer->data_len > 0 && answer->data_len <= WIREUP_MAX_NSPACE
           && memchr(answer->data, 0, answer->data_len) == NULL;
}

/* Reads the fields of an answer to that operation; takes frame over in any case. */
static bool parse_answer(uint16_t op, uint8_t *frame, size_t len, struct answer *answer)
{
    *answer = (struct answer){.frame = frame, .infos = calloc(1, sizeof(*answer->infos))};
    if (answer->infos == NULL) {
        free(frame);
        return false;
    }
    struct in in;
    in_init(&in, frame, len, &answer->infos->arena);
    answer->status = (pmix_status_t)take_u32(&in);
    if (op == WIREUP_OP_LOOKUP) {
        answer->found = take_pdata(&in, &answer->found_count);
    } else {
        answer->data = take_bytes(&in, &answer->data_len);
        answer->infos->items = take_infos(&in, &answer->infos->count);
    }
    if (answer->data_len == 0) {
        answer->data = NULL;
    }
    if (!in_ok(&in) || in.next != in.end || !is_good_name(op, answer)) {
        free(frame);
        wireup_infos_free(answer->infos);
        return false;
    }
    return true;
}

static enum outcome read_answer(void)
{
    uint8_t header[WIREUP_HEADER_LEN];
    if (receive(header, sizeof(header)) != GOT_IT) {
        return ENDED;
    }
    struct in in;
    in_init(&in, header, sizeof(header), NULL);
    const uint32_t len = take_u32(&in);
    const uint16_t op = take_u16(&in);
    const uint16_t flags = take_u16(&in);
    const uint64_t id = take_u64(&in);
    if (len > WIREUP_MAX_PAYLOAD || flags != WIREUP_FLAG_REPLY) {
        return GARBAGE;
    }
    uint8_t *frame = malloc(len > 0 ? len : 1);
    if (frame == NULL) {
        return ENDED;
    }
    if (receive(frame, len) != GOT_IT) {
        free(frame);
        return ENDED;
    }
    struct answer answer;
    struct completion completion;
    if (!parse_answer(op, frame, len, &answer)) {
        return GARBAGE;
    }
    if (!pending_take(id, op, &completion)) {
        free(answer.frame);
        wireup_infos_free(answer.infos);
        return GARBAGE;
    }
    complete(&completion, &answer);
    return GOT_IT;
}

static void make_refusals(void)
{
    pthread_mutex_lock(&link_.lock);
    struct refusal *refusals = link_.refusals;
    link_.refusals = NULL;
    pthread_mutex_unlock(&link_.lock);
    while (refusals != NULL) {
        struct refusal *refusal = refusals;
        refusals = refusal->next;
        struct answer answer = {.status = refusal->status};
        complete(&refusal->completion, &answer);
        free(refusal);
    }
}

static void complete_all(void)
{
    struct completion completion;
    while (pending_drain(&completion)) {
        struct answer answer = {.status = PMIX_ERR_LOST_CONNECTION};
        complete(&completion, &answer);
    }
    make_refusals();
}

static bool is_stopping(void)
{
    pthread_mutex_lock(&link_.lock);
    const bool stopping = link_.stopping;
    pthread_mutex_unlock(&link_.lock);
    return stopping;
}

static void *reader(void *unused)
{
    (void)unused;
    enum outcome outcome = GOT_IT;
    while (outcome == GOT_IT && !is_stopping()) {
        struct pollfd fds[2] = {{.fd = link_.fd, .events = POLLIN},
                                {.fd = link_.wake_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0) {
            continue; /* EINTR */
        }
        if (fds[1].revents != 0) {
            uint64_t count;
            if (read(link_.wake_fd, &count, sizeof(count)) > 0) {
                make_refusals();
            }
        }
        if (fds[0].revents != 0) {
            outcome = read_answer();
        }
    }
    shutdown(link_.fd, SHUT_RDWR);
    complete_all();
    if (!is_stopping()) {
        link_.lost(outcome == GARBAGE ? "the agent's answer on the upcall socket is malformed"
                                      : "the agent closed the upcall socket");
    }
    return NULL;
}

int wireup_link_start(int fd, wireup_lost_fn lost)
{
    link_.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (link_.wake_fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        return errno;
    }
    link_.fd = fd;
    link_.lost = lost;
    /* Signals belong to the host's main thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&link_.reader, NULL, reader, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void wireup_link_stop(void)
{
    munge_stop();
    pthread_mutex_lock(&link_.lock);
    link_.stopping = true;
    pthread_mutex_unlock(&link_.lock);
    wake_reader();
    shutdown(link_.fd, SHUT_RDWR);
    pthread_join(link_.reader, NULL);
}
