/*
 * Credentials of munge, which a daemon on every host of a site makes and checks. It confirms the
 * user and group of the process that asks: this one has those of the job's ranks.
 *
 * The library is loaded at the first request, and the daemon may be slow: so a separate thread does
 * it, one request at a time, and ends when there is none. Requests that it cannot serve go to the
 * agent, or are refused.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include "shim.h"

/* Copied from munge.h; the interface has not changed since libmunge.so.2. */
enum { EMUNGE_SUCCESS = 0, EMUNGE_SOCKET = 6 };
typedef int encode_fn(char **credential, void *context, const void *payload, int len);
typedef int decode_fn(const char *credential, void *context, void **payload, int *len, uid_t *uid,
                      gid_t *gid);

static const char prefix[] = "MUNGE:";

struct errand {
    struct errand *next;
    uint64_t id;
    uint16_t op;
    char *credential;    /* to be checked; NULL to make one */
    bool may_forward;    /* the agent may do it instead */
    struct out request;  /* for the agent */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t idle; /* running became false */
    pthread_t thread;
    bool running;
    bool to_join; /* thread has been started, and not been waited for */
    struct errand *first;
    struct errand **last;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER};

/* Held while libpmix is called back, and to end callbacks permanently. */
static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;
static bool stopped;

/* Used by the thread alone. */
static struct {
    bool tried;
    encode_fn *encode;
    decode_fn *decode;
} library;

static bool load(void)
{
    if (!library.tried) {
        library.tried = true;
        void *handle = dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
        if (handle != NULL) {
            library.encode = (encode_fn *)dlsym(handle, "munge_encode");
            library.decode = (decode_fn *)dlsym(handle, "munge_decode");
        }
    }
    return library.encode != NULL && library.decode != NULL;
}

static void set_key(pmix_info_t *info, const char *key)
{
    strncpy(info->key, key, PMIX_MAX_KEYLEN);
}

/* Returns a credential's type, and with ids its user, as infos; NULL without memory. */
static wireup_infos_t *describe(const uid_t *uid, const gid_t *gid)
{
    static const char type[] = "munge";
    wireup_infos_t *list = calloc(1, sizeof(*list));
    if (list == NULL) {
        return NULL;
    }
    list->items = arena_alloc(&list->arena, 3 * sizeof(*list->items));
    char *text = arena_alloc(&list->arena, sizeof(type));
    if (list->items == NULL || text == NULL) {
        wireup_infos_free(list);
        return NULL;
    }
    memcpy(text, type, sizeof(type));
    set_key(&list->items[0], PMIX_CRED_TYPE);
    list->items[0].value.type = PMIX_STRING;
    list->items[0].value.data.string = text;
    list->count = 1;
    if (uid != NULL) {
        set_key(&list->items[1], PMIX_USERID);
        list->items[1].value.type = PMIX_UINT32;
        list->items[1].value.data.uint32 = *uid;
        set_key(&list->items[2], PMIX_GRPID);
        list->items[2].value.type = PMIX_UINT32;
        list->items[2].value.data.uint32 = *gid;
        list->count = 3;
    }
    return list;
}

static struct answer make(void)
{
    struct answer answer = {.status = PMIX_ERR_NOT_SUPPORTED};
    char *credential = NULL;
    if (load() && library.encode(&credential, NULL, NULL, 0) == EMUNGE_SUCCESS) {
        answer.status = PMIX_SUCCESS;
        answer.frame = (uint8_t *)credential;
        answer.data = answer.frame;
        answer.data_len = strlen(credential) + 1;
        answer.infos = describe(NULL, NULL);
    }
    return answer;
}

static struct answer check(const char *credential)
{
    struct answer answer = {.status = PMIX_ERR_NOT_SUPPORTED};
    uid_t uid;
    gid_t gid;
    if (load()) {
        const int error = library.decode(credential, NULL, NULL, NULL, &uid, &gid);
        if (error == EMUNGE_SUCCESS) {
            answer.infos = describe(&uid, &gid);
            answer.status = answer.infos == NULL ? PMIX_ERR_NOMEM : PMIX_SUCCESS;
        } else if (error != EMUNGE_SOCKET) {
            answer.status = PMIX_ERR_INVALID_CRED;
        }
    }
    return answer;
}

static void run(struct errand *errand)
{
    struct answer answer = errand->credential == NULL ? make() : check(errand->credential);
    if (answer.status != PMIX_SUCCESS && errand->may_forward) {
        link_forward(errand->id, errand->op, &errand->request);
    } else {
        struct completion completion;
        pthread_mutex_lock(&calling);
        if (!stopped && pending_take(errand->id, errand->op, &completion)) {
            complete(&completion, &answer);
        } else {
            free(answer.frame);
            wireup_infos_free(answer.infos);
        }
        pthread_mutex_unlock(&calling);
    }
    out_free(&errand->request);
    free(errand->credential);
    free(errand);
}

static void *worker(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&queue.lock);
    while (queue.first != NULL) {
        struct errand *errand = queue.first;
        queue.first = errand->next;
        pthread_mutex_unlock(&queue.lock);
        run(errand);
        pthread_mutex_lock(&queue.lock);
    }
    queue.running = false;
    pthread_cond_broadcast(&queue.idle);
    pthread_mutex_unlock(&queue.lock);
    return NULL;
}

/* Joins the thread, which is at its end. Call with the queue locked. */
static void join(void)
{
    if (queue.to_join) {
        pthread_join(queue.thread, NULL);
        queue.to_join = false;
    }
}

/* Starts the thread. Call with the queue locked. */
static bool start(void)
{
    if (!queue.running) {
        join();
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        queue.running = pthread_create(&queue.thread, NULL, worker, NULL) == 0;
        queue.to_join = queue.running;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return queue.running;
}

static pmix_status_t ask(struct out *request, uint16_t op, char *credential, bool may_forward,
                         const struct completion *completion)
{
    struct errand *errand = calloc(1, sizeof(*errand));
    const bool failed = errand == NULL || request->failed;
    const uint64_t id = failed ? 0 : pending_add(op, completion);
    if (id == 0) {
        out_free(request);
        free(credential);
        free(errand);
        return failed ? PMIX_ERR_OUT_OF_RESOURCE : PMIX_ERR_LOST_CONNECTION;
    }
    *errand = (struct errand){
        .id = id, .op = op, .credential = credential, .may_forward = may_forward, .request = *request};
    memset(request, 0, sizeof(*request));
    pthread_mutex_lock(&queue.lock);
    /* The thread takes the request when it gets the lock. */
    const bool started = start();
    if (started) {
        if (queue.first == NULL) {
            queue.last = &queue.first;
        }
        *queue.last = errand;
        queue.last = &errand->next;
    }
    pthread_mutex_unlock(&queue.lock);
    if (!started) {
        struct completion back;
        const bool ours = pending_take(id, op, &back);
        out_free(&errand->request);
        free(errand->credential);
        free(errand);
        /* If the request is not ours, the link has ended, and has called back. */
        return ours ? PMIX_ERR_OUT_OF_RESOURCE : PMIX_SUCCESS;
    }
    return PMIX_SUCCESS;
}

pmix_status_t munge_make(struct out *request, uint16_t op, bool may_forward,
                         const struct completion *completion)
{
    return ask(request, op, NULL, may_forward, completion);
}

bool munge_made(const pmix_byte_object_t *credential)
{
    const size_t len = sizeof(prefix) - 1;
    return credential != NULL && credential->bytes != NULL && credential->size > len
           && memcmp(credential->bytes, prefix, len) == 0;
}

pmix_status_t munge_check(struct out *request, uint16_t op, const pmix_byte_object_t *credential,
                          const struct completion *completion)
{
    char *text = strndup(credential->bytes, credential->size);
    if (text == NULL) {
        out_free(request);
        return PMIX_ERR_NOMEM;
    }
    return ask(request, op, text, false, completion);
}

void munge_stop(void)
{
    pthread_mutex_lock(&calling);
    stopped = true;
    pthread_mutex_unlock(&calling);
    /* The wait is limited: the daemon may not answer, and the process ends in any case. */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&queue.lock);
    while (queue.running && pthread_cond_timedwait(&queue.idle, &queue.lock, &until) == 0) {
    }
    if (!queue.running) {
        join();
    }
    pthread_mutex_unlock(&queue.lock);
}
