/* See pmi2_draft.h. */
#define _GNU_SOURCE
#include "pmi2_draft.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH = 6, LONGEST = 32 * 1024, FRAME_MAX = 999999 };

static _Thread_local char message[512];

const char *pmi2_message(void)
{
    return message;
}

__attribute__((format(printf, 2, 3))) static int failed(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return code;
}

/* ---- text that grows; `ok` turns false for good when memory ends ------------------------------ */

struct text {
    char *bytes;
    size_t length, room;
    bool ok;
};

static void append(struct text *text, const char *bytes, size_t length)
{
    if (!text->ok)
        return;
    if (text->length + length + 1 > text->room) {
        size_t room = 2 * (text->length + length + 64);
        char *grown = realloc(text->bytes, room);
        if (grown == NULL) {
            text->ok = false;
            return;
        }
        text->bytes = grown;
        text->room = room;
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

static void field(struct text *text, const char *key, const char *value)
{
    append(text, key, strlen(key));
    append(text, "=", 1);
    for (size_t part; *value != '\0'; value += part) {
        part = strcspn(value, ";");
        append(text, value, part);
        if (value[part] == ';') {
            append(text, ";;", 2);
            part++;
        }
    }
    append(text, ";", 1);
}

static void number_field(struct text *text, const char *key, long value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%ld", value);
    field(text, key, digits);
}

static void indexed_field(struct text *text, const char *key, size_t index, const char *value)
{
    char name[64];
    snprintf(name, sizeof name, "%s%zu", key, index);
    field(text, name, value);
}

static void info_fields(struct text *text, size_t count, const struct pmi2_pair *infos)
{
    number_field(text, "infokeycount", (long)count);
    for (size_t i = 0; i < count; i++) {
        indexed_field(text, "infokey", i, infos[i].key);
        indexed_field(text, "infoval", i, infos[i].value);
    }
}

/* Where the pair behind the one at `at` starts. */
static const char *behind(const char *at)
{
    for (; *at != '\0'; at++) {
        if (*at != ';')
            continue;
        if (at[1] != ';')
            return at + 1;
        at++;
    }
    return at;
}

/* A copy of the value of a pair, NULL if there is none or no memory. */
static char *value_of(const char *frame, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = frame; *at != '\0'; at = behind(at)) {
        if (strncmp(at, key, length) != 0 || at[length] != '=')
            continue;
        const char *end = behind(at) - 1;
        at += length + 1;
        char *value = malloc((size_t)(end - at) + 1), *to = value;
        while (value != NULL && at < end) {
            *to++ = *at;
            at += *at == ';' ? 2 : 1;
        }
        if (value != NULL)
            *to = '\0';
        return value;
    }
    return NULL;
}

static long number_of(const char *frame, const char *key, long absent)
{
    char *text = value_of(frame, key);
    long value = text == NULL ? absent : strtol(text, NULL, 10);
    free(text);
    return value;
}

static bool truth_of(const char *frame, const char *key)
{
    char *text = value_of(frame, key);
    bool truth = text != NULL && (strcasecmp(text, "true") == 0 || strcasecmp(text, "yes") == 0);
    free(text);
    return truth;
}

/* ---- the connection --------------------------------------------------------------------------- */

/* A thread that waits for the reply to its request, on its own stack. */
struct waiter {
    struct waiter *next;
    unsigned long thrid;
    char name[80];
    /* What came before the reply, and the reply, which is the waiter's. */
    struct text before;
    char *reply;
};

struct pmi2 {
    int fd, rank, size, appnum;
    char *spawner;
    size_t longest;
    /* Messages of one request go out together. */
    pthread_mutex_t writing;
    /* Guards what follows; the thread that reads does so without it. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct waiter *waiters;
    unsigned long requests;
    bool is_read, is_lost;
};

static int write_bytes(int fd, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(-1, "cannot write to the PMI server: %s", strerror(errno));
        bytes += n;
        length -= (size_t)n;
    }
    return 0;
}

static int read_bytes(int fd, char *to, size_t length)
{
    while (length > 0) {
        ssize_t n = recv(fd, to, length, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return failed(-1, "the PMI server has closed the connection");
        to += n;
        length -= (size_t)n;
    }
    return 0;
}

static int write_frame(int fd, const char *text, size_t length)
{
    char digits[16];
    if (length > FRAME_MAX)
        return failed(-1, "a message of %zu bytes", length);
    snprintf(digits, sizeof digits, "%6zu", length);
    int code = write_bytes(fd, digits, LENGTH);
    return code != 0 ? code : write_bytes(fd, text, length);
}

/* *frame is to be freed. */
static int read_frame(int fd, char **frame)
{
    char digits[LENGTH + 1] = "";
    *frame = NULL;
    if (read_bytes(fd, digits, LENGTH) != 0)
        return -1;
    long length = strtol(digits, NULL, 10);
    if (length < 1 || length > FRAME_MAX)
        return failed(-1, "the PMI server sent a length of `%s`", digits);
    *frame = malloc((size_t)length + 1);
    if (*frame == NULL)
        return failed(-1, "out of memory");
    if (read_bytes(fd, *frame, (size_t)length) != 0) {
        free(*frame);
        *frame = NULL;
        return -1;
    }
    (*frame)[length] = '\0';
    return 0;
}

/* Writes a message, in parts if it is long: each has whole pairs, and the id of those that belong together. */
static int write_message(const struct pmi2 *self, const struct text *text, unsigned long thrid)
{
    struct text part = {.ok = true};
    const char *at = text->bytes, *end = at + text->length;
    int code = 0;

    if (!text->ok)
        return failed(-1, "out of memory");
    if (text->length <= self->longest)
        return write_frame(self->fd, text->bytes, text->length);
    while (code == 0 && at < end) {
        part.length = 0;
        if (at > text->bytes) {
            field(&part, "cmd", "concat");
            number_field(&part, "concatid", (long)thrid);
        }
        do {
            const char *next = behind(at);
            append(&part, at, (size_t)(next - at));
            at = next;
        } while (at < end && part.length + (size_t)(behind(at) - at) < self->longest);
        if (at < end)
            number_field(&part, "concat", (long)thrid);
        code = part.ok ? write_frame(self->fd, part.bytes, part.length) : failed(-1, "out of memory");
    }
    free(part.bytes);
    return code;
}

/* Hands a message to the thread that waits for it. With the lock. */
static void deliver(struct pmi2 *self, char *frame)
{
    unsigned long thrid = (unsigned long)number_of(frame, "thrid", 0);
    for (struct waiter *waiter = self->waiters; waiter != NULL; waiter = waiter->next) {
        size_t length = strlen(waiter->name);
        if (waiter->thrid != thrid || waiter->reply != NULL)
            continue;
        if (strncmp(frame, waiter->name, length) == 0 && frame[length] == ';') {
            waiter->reply = frame;
            return;
        }
        append(&waiter->before, frame, strlen(frame));
    }
    free(frame);
}

/* Reads, or waits while another thread does, until the reply is there. With the lock. */
static void progress(struct pmi2 *self, const struct waiter *mine)
{
    while (mine->reply == NULL && !self->is_lost) {
        if (self->is_read) {
            pthread_cond_wait(&self->changed, &self->lock);
            continue;
        }
        char *frame;
        self->is_read = true;
        pthread_mutex_unlock(&self->lock);
        int code = read_frame(self->fd, &frame);
        pthread_mutex_lock(&self->lock);
        self->is_read = false;
        if (code == 0)
            deliver(self, frame);
        else
            self->is_lost = true;
        pthread_cond_broadcast(&self->changed);
    }
}

/* A request: a message that `begin` has started, and perhaps others. */
struct request {
    struct pmi2 *self;
    struct waiter waiter;
    struct text text;
    int code;
};

static void start(struct request *request, const char *name)
{
    char thrid[24];
    request->text.length = 0;
    field(&request->text, "cmd", name);
    snprintf(thrid, sizeof thrid, "%lu", request->waiter.thrid);
    field(&request->text, "thrid", thrid);
}

/* Has the wire until `answer`. */
static void begin(struct request *request, struct pmi2 *self, const char *name)
{
    *request = (struct request){.self = self, .text.ok = true, .waiter.before.ok = true};
    snprintf(request->waiter.name, sizeof request->waiter.name, "cmd=%s-response", name);
    pthread_mutex_lock(&self->writing);
    pthread_mutex_lock(&self->lock);
    request->waiter.thrid = ++self->requests;
    request->waiter.next = self->waiters;
    self->waiters = &request->waiter;
    pthread_mutex_unlock(&self->lock);
    start(request, name);
}

/* Sends a message; another may be started. */
static void send_message(struct request *request)
{
    if (request->code == 0)
        request->code = write_message(request->self, &request->text, request->waiter.thrid);
}

/* Sends the last message and waits for the reply, which is to be freed, as is what came before it. */
static int answer(struct request *request, char **reply, char **before)
{
    struct pmi2 *self = request->self;
    struct waiter *mine = &request->waiter;

    send_message(request);
    free(request->text.bytes);
    pthread_mutex_unlock(&self->writing);
    pthread_mutex_lock(&self->lock);
    if (request->code == 0)
        progress(self, mine);
    for (struct waiter **at = &self->waiters; *at != NULL; at = &(*at)->next)
        if (*at == mine) {
            *at = mine->next;
            break;
        }
    pthread_mutex_unlock(&self->lock);
    if (request->code == 0 && mine->reply == NULL)
        request->code = failed(-1, "the PMI server has closed the connection");
    if (request->code == 0) {
        char *text = value_of(mine->reply, "errmsg");
        request->code = (int)number_of(mine->reply, "rc", -1);
        if (request->code != 0)
            failed(request->code, "%s: %s", mine->name + 4, text == NULL ? "refused" : text);
        free(text);
    }
    if (before != NULL && mine->before.ok)
        *before = mine->before.bytes;
    else
        free(mine->before.bytes);
    if (reply != NULL)
        *reply = mine->reply;
    else
        free(mine->reply);
    return request->code;
}

/* The same for requests whose reply has one value, or none. */
static int answer_value(struct request *request, const char *key, char **value)
{
    char *reply = NULL;
    int code = answer(request, &reply, NULL);
    if (value != NULL)
        *value = code == 0 ? value_of(reply, key) : NULL;
    free(reply);
    return code;
}

/* ---- SHA-256, for the proof -------------------------------------------------------------------- */

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turned(uint32_t word, int by)
{
    return word >> by | word << (32 - by);
}

static void sha_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) +
                       rounds[i] + w[i];
        uint32_t two =
            (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

/* The digest of a block and of a text behind it: all that HMAC needs. */
static void sha_behind(const unsigned char block[64], const unsigned char *text, size_t length, unsigned char digest[32])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint64_t bits = (64 + (uint64_t)length) * 8;
    unsigned char last[128] = {0};
    size_t rest = length % 64, padded = rest < 56 ? 64 : 128;

    sha_block(state, block);
    for (size_t at = 0; at + 64 <= length; at += 64)
        sha_block(state, text + at);
    memcpy(last, text + length - rest, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        last[padded - 1 - (size_t)i] = (unsigned char)(bits >> 8 * i);
    for (size_t at = 0; at < padded; at += 64)
        sha_block(state, last + at);
    for (int i = 0; i < 32; i++)
        digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* HMAC-SHA-256 in hexadecimal digits, under a key of at most 64 bytes. */
static void sign(const char *key, const char *text, char digits[65])
{
    unsigned char inner[64], outer[64], digest[32];
    size_t length = strlen(key);
    for (size_t i = 0; i < 64; i++) {
        unsigned char byte = i < length ? (unsigned char)key[i] : 0;
        inner[i] = byte ^ 0x36;
        outer[i] = byte ^ 0x5c;
    }
    sha_behind(inner, (const unsigned char *)text, strlen(text), digest);
    sha_behind(outer, digest, sizeof digest, digest);
    for (int i = 0; i < 32; i++)
        snprintf(digits + 2 * i, 3, "%02x", digest[i]);
}

/* ---- start and end ---------------------------------------------------------------------------- */

/* Connects to PMI_PORT, HOST:PORT. */
static int connect_to_port(int *fd)
{
    const char *port = getenv("PMI_PORT"), *colon = port == NULL ? NULL : strrchr(port, ':');
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256];

    if (colon == NULL)
        return failed(-1, "neither PMI_FD nor PMI_PORT is set");
    snprintf(host, sizeof host, "%.*s", (int)(colon - port), port);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return failed(-1, "%s has no address", host);
    *fd = -1;
    for (const struct addrinfo *at = found; *fd < 0 && at != NULL; at = at->ai_next) {
        *fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0);
        if (*fd >= 0 && connect(*fd, at->ai_addr, at->ai_addrlen) != 0) {
            close(*fd);
            *fd = -1;
        }
    }
    freeaddrinfo(found);
    return *fd >= 0 ? 0 : failed(-1, "cannot connect to %s: %s", port, strerror(errno));
}

int pmi2_notices(const char *signal, int *fd)
{
    char line[128];
    int code = connect_to_port(fd);
    if (code != 0)
        return code;
    int length = snprintf(line, sizeof line, "cmd=init_oob signal=%s pmi_version=2 pmi_subversion=0\n", signal);
    code = write_bytes(*fd, line, (size_t)length);
    if (code != 0)
        close(*fd);
    return code;
}

/* Sends what is in the text and reads the answer. */
static int exchange(int fd, struct text *text, char **frame)
{
    int code = text->ok ? write_frame(fd, text->bytes, text->length) : failed(-1, "out of memory");
    return code != 0 ? code : read_frame(fd, frame);
}

static int full_init(struct pmi2 *self)
{
    const char *key = getenv("PMI_AUTH_KEY"), *job = getenv("PMI_JOBID");
    const char *rank = getenv(getenv("PMI_FD") == NULL ? "PMI_ID" : "PMI_RANK");
    struct text text = {.ok = true};
    char *frame = NULL;

    field(&text, "cmd", "fullinit");
    if (job != NULL)
        field(&text, "pmijobid", job);
    if (rank != NULL)
        field(&text, "pmirank", rank);
    field(&text, "threaded", "TRUE");
    if (key != NULL && getenv("PMI_FD") == NULL)
        field(&text, "authtype", "challenge-hmac-sha256");
    int code = exchange(self->fd, &text, &frame);
    if (code == 0 && strncmp(frame, "cmd=auth-response;", 18) == 0) {
        char digits[65] = "", *challenge = value_of(frame, "authinfo");
        if (challenge != NULL && key != NULL)
            sign(key, challenge, digits);
        free(challenge);
        free(frame);
        text.length = 0;
        field(&text, "cmd", "auth-response-complete");
        field(&text, "authinfo", digits);
        code = exchange(self->fd, &text, &frame);
    }
    free(text.bytes);
    if (code == 0 && strncmp(frame, "cmd=fullinit-response;", 22) != 0)
        code = failed(-1, "the answer to fullinit is %.200s", frame);
    if (code == 0 && (code = (int)number_of(frame, "rc", -1)) != 0)
        failed(code, "the PMI server refuses: %.200s", frame);
    if (code == 0) {
        self->rank = (int)number_of(frame, "rank", -1);
        self->size = (int)number_of(frame, "size", -1);
        self->appnum = (int)number_of(frame, "appnum", -1);
        self->spawner = value_of(frame, "spawner-jobid");
    }
    free(frame);
    return code;
}

int pmi2_open(struct pmi2 **out)
{
    static const char init[] = "cmd=init pmi_version=2 pmi_subversion=0\n";
    const char *descriptor = getenv("PMI_FD");
    char line[256];
    size_t length = 0;
    struct pmi2 *self = calloc(1, sizeof *self);

    *out = NULL;
    if (self == NULL)
        return failed(-1, "out of memory");
    self->longest = LONGEST;
    self->fd = descriptor == NULL ? -1 : (int)strtol(descriptor, NULL, 10);
    pthread_mutex_init(&self->writing, NULL);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    int code = self->fd >= 0 ? 0 : connect_to_port(&self->fd);
    if (code == 0)
        code = write_bytes(self->fd, init, sizeof init - 1);
    while (code == 0 && (length == 0 || line[length - 1] != '\n')) {
        if (length + 1 == sizeof line)
            code = failed(-1, "the answer to init has no end");
        else
            code = read_bytes(self->fd, line + length++, 1);
    }
    line[length] = '\0';
    if (code == 0 && (strncmp(line, "cmd=response_to_init ", 21) != 0 || strstr(line, " rc=0 ") == NULL))
        code = failed(-1, "the answer to init is %s", line);
    if (code == 0)
        code = full_init(self);
    if (code == 0)
        *out = self;
    else
        pmi2_close(self);
    return code;
}

int pmi2_finalize(struct pmi2 *self)
{
    return pmi2_request(self, "finalize", 0, NULL, NULL);
}

void pmi2_close(struct pmi2 *self)
{
    if (self == NULL)
        return;
    if (self->fd >= 0)
        close(self->fd);
    pthread_mutex_destroy(&self->writing);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    free(self->spawner);
    free(self);
}

int pmi2_rank(const struct pmi2 *self)
{
    return self->rank;
}

int pmi2_size(const struct pmi2 *self)
{
    return self->size;
}

int pmi2_appnum(const struct pmi2 *self)
{
    return self->appnum;
}

const char *pmi2_spawner(const struct pmi2 *self)
{
    return self->spawner;
}

void pmi2_set_longest(struct pmi2 *self, size_t bytes)
{
    self->longest = bytes < FRAME_MAX ? bytes : FRAME_MAX;
}

/* ---- requests --------------------------------------------------------------------------------- */

int pmi2_request(struct pmi2 *self, const char *name, size_t count, const struct pmi2_pair *fields, char **value)
{
    struct request request;
    begin(&request, self, name);
    for (size_t i = 0; i < count; i++)
        field(&request.text, fields[i].key, fields[i].value);
    return answer_value(&request, "value", value);
}

int pmi2_job_id(struct pmi2 *self, char **job)
{
    struct request request;
    begin(&request, self, "job-getid");
    return answer_value(&request, "jobid", job);
}

/* Has no reply. */
int pmi2_abort(struct pmi2 *self, const char *text)
{
    struct text frame = {.ok = true};
    field(&frame, "cmd", "abort");
    field(&frame, "isworld", "TRUE");
    field(&frame, "msg", text);
    pthread_mutex_lock(&self->writing);
    int code = frame.ok ? write_frame(self->fd, frame.bytes, frame.length) : failed(-1, "out of memory");
    pthread_mutex_unlock(&self->writing);
    free(frame.bytes);
    return code;
}

int pmi2_put(struct pmi2 *self, const char *key, const char *value)
{
    const struct pmi2_pair fields[] = {{"key", (char *)key}, {"value", (char *)value}};
    return pmi2_request(self, "kvs-put", 2, fields, NULL);
}

int pmi2_get(struct pmi2 *self, const char *job, const char *key, char **value)
{
    struct request request;
    begin(&request, self, "kvs-get");
    if (job != NULL)
        field(&request.text, "jobid", job);
    field(&request.text, "key", key);
    return answer_value(&request, "value", value);
}

int pmi2_fence(struct pmi2 *self)
{
    return pmi2_request(self, "kvs-fence", 0, NULL, NULL);
}

int pmi2_job_attribute(struct pmi2 *self, const char *key, char **value)
{
    const struct pmi2_pair fields[] = {{"key", (char *)key}};
    return pmi2_request(self, "info-getjobattr", 1, fields, value);
}

int pmi2_node_attribute(struct pmi2 *self, const char *key, bool wait, char **value)
{
    const struct pmi2_pair fields[] = {{"key", (char *)key}, {"wait", wait ? "TRUE" : "FALSE"}};
    return pmi2_request(self, "info-getnodeattr", 2, fields, value);
}

int pmi2_put_node_attribute(struct pmi2 *self, const char *key, const char *value)
{
    const struct pmi2_pair fields[] = {{"key", (char *)key}, {"value", (char *)value}};
    return pmi2_request(self, "info-putnodeattr", 2, fields, NULL);
}

static int about_name(struct pmi2 *self, const char *command, const char *name, const char *port, size_t count,
                      const struct pmi2_pair *infos, char **found)
{
    struct request request;
    begin(&request, self, command);
    field(&request.text, "name", name);
    if (port != NULL)
        field(&request.text, "port", port);
    info_fields(&request.text, count, infos);
    return answer_value(&request, "value", found);
}

int pmi2_publish(struct pmi2 *self, const char *name, const char *port, size_t count, const struct pmi2_pair *infos)
{
    return about_name(self, "name-publish", name, port, count, infos, NULL);
}

int pmi2_lookup(struct pmi2 *self, const char *name, size_t count, const struct pmi2_pair *infos, char **port)
{
    return about_name(self, "name-lookup", name, NULL, count, infos, port);
}

int pmi2_unpublish(struct pmi2 *self, const char *name, size_t count, const struct pmi2_pair *infos)
{
    return about_name(self, "name-unpublish", name, NULL, count, infos, NULL);
}

int pmi2_spawn(struct pmi2 *self, size_t count, const struct pmi2_command *commands, size_t preput_count,
               const struct pmi2_pair *preputs, char **job)
{
    struct request request;
    begin(&request, self, "spawn");
    number_field(&request.text, "ncmds", (long)count);
    number_field(&request.text, "preputcount", (long)preput_count);
    for (size_t i = 0; i < preput_count; i++) {
        indexed_field(&request.text, "ppkey", i, preputs[i].key);
        indexed_field(&request.text, "ppval", i, preputs[i].value);
    }
    for (size_t i = 0; i < count; i++) {
        send_message(&request);
        start(&request, "spawn-cmd");
        number_field(&request.text, "maxprocs", commands[i].maxprocs);
        number_field(&request.text, "argc", commands[i].argc);
        for (int arg = 0; arg < commands[i].argc; arg++)
            indexed_field(&request.text, "argv", (size_t)arg, commands[i].argv[arg]);
        info_fields(&request.text, commands[i].info_count, commands[i].infos);
    }
    return answer_value(&request, "jobid", job);
}

int pmi2_connect(struct pmi2 *self, const char *job, bool *copy)
{
    struct request request;
    char *reply = NULL;
    begin(&request, self, "job-connect");
    field(&request.text, "jobid", job);
    int code = answer(&request, &reply, NULL);
    *copy = code == 0 && truth_of(reply, "kvscopy");
    free(reply);
    return code;
}

int pmi2_disconnect(struct pmi2 *self, const char *job)
{
    const struct pmi2_pair fields[] = {{"jobid", (char *)job}};
    return pmi2_request(self, "job-disconnect", 1, fields, NULL);
}

int pmi2_get_all(struct pmi2 *self, const char *job, size_t *count, struct pmi2_pair **pairs)
{
    static const char pair[] = "cmd=kvs-getall-pair-response;";
    struct request request;
    char *before = NULL;
    size_t found = 0;

    *pairs = NULL;
    *count = 0;
    begin(&request, self, "kvs-getall");
    if (job != NULL)
        field(&request.text, "jobid", job);
    int code = answer(&request, NULL, &before);
    if (code == 0 && before != NULL) {
        long announced = number_of(before, "npair", 0);
        *pairs = calloc((size_t)announced + 1, sizeof **pairs);
        if (*pairs == NULL)
            code = failed(-1, "out of memory");
        for (const char *at = before; code == 0 && *at != '\0'; at = behind(at)) {
            if (strncmp(at, pair, sizeof pair - 1) != 0)
                continue;
            struct pmi2_pair *next = *pairs + found;
            if (found++ == (size_t)announced || (next->key = value_of(at, "key")) == NULL ||
                (next->value = value_of(at, "val")) == NULL)
                code = failed(-1, "the pairs are not those announced");
        }
        if (code == 0 && found != (size_t)announced)
            code = failed(-1, "the pairs are not those announced");
        if (code == 0)
            *count = found;
        else {
            pmi2_free_pairs(*pairs == NULL ? 0 : found < (size_t)announced ? found : (size_t)announced, *pairs);
            *pairs = NULL;
        }
    }
    free(before);
    return code;
}

int pmi2_put_all(struct pmi2 *self, const char *job, size_t count, const struct pmi2_pair *pairs)
{
    struct request request;
    begin(&request, self, "kvs-putall");
    field(&request.text, "jobid", job);
    number_field(&request.text, "npair", (long)count);
    for (size_t i = 0; i < count; i++) {
        send_message(&request);
        start(&request, "kvs-putall-pair");
        field(&request.text, "key", pairs[i].key);
        field(&request.text, "val", pairs[i].value);
    }
    return answer_value(&request, "value", NULL);
}

void pmi2_free_pairs(size_t count, struct pmi2_pair *pairs)
{
    for (size_t i = 0; i < count && pairs != NULL; i++) {
        free(pairs[i].key);
        free(pairs[i].value);
    }
    free(pairs);
}
