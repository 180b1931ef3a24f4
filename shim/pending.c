/* Upcalls that wait for their answer: id -> how to call back, each taken exactly once. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { BUCKETS = 256 };

struct entry {
    struct entry *next;
    uint64_t id;
    uint16_t op;
    struct completion completion;
};

static struct {
    pthread_mutex_t lock;
    uint64_t last_id;
    bool closed;
    struct entry *buckets[BUCKETS];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t pending_add(uint16_t op, const struct completion *completion)
{
    struct entry *entry = malloc(sizeof(*entry));
    if (entry == NULL) {
        return 0;
    }
    pthread_mutex_lock(&table.lock);
    const bool closed = table.closed;
    const uint64_t id = closed ? 0 : ++table.last_id;
    if (!closed) {
        struct entry **bucket = &table.buckets[id % BUCKETS];
        *entry = (struct entry){.next = *bucket, .id = id, .op = op, .completion = *completion};
        *bucket = entry;
    }
    pthread_mutex_unlock(&table.lock);
    if (closed) {
        free(entry);
    }
    return id;
}

bool pending_take(uint64_t id, uint16_t op, struct completion *completion)
{
    struct entry *found = NULL;
    pthread_mutex_lock(&table.lock);
    for (struct entry **at = &table.buckets[id % BUCKETS]; *at != NULL; at = &(*at)->next) {
        if ((*at)->id == id && (*at)->op == op) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&table.lock);
    if (found == NULL) {
        return false;
    }
    *completion = found->completion;
    free(found);
    return true;
}

bool pending_drain(struct completion *completion)
{
    struct entry *found = NULL;
    pthread_mutex_lock(&table.lock);
    table.closed = true;
    for (size_t i = 0; i < BUCKETS && found == NULL; i++) {
        found = table.buckets[i];
        if (found != NULL) {
            table.buckets[i] = found->next;
        }
    }
    pthread_mutex_unlock(&table.lock);
    if (found == NULL) {
        return false;
    }
    *completion = found->completion;
    free(found);
    return true;
}

/* Frees infos; libpmix calls this function when it needs them no more. list may be NULL. */
static void release_infos(void *list)
{
    wireup_infos_free(list);
}

/*
 * libpmix takes a group's endpoint data over and frees it, but only if it comes to read it; then it
 * leaves NULL behind. So these bytes are outside the list, and this code frees those that are left.
 */
static bool is_endpoint_data(const pmix_info_t *info)
{
    return info->value.type == PMIX_BYTE_OBJECT
           && strncmp(info->key, PMIX_GROUP_ENDPT_DATA, PMIX_MAX_KEYLEN) == 0;
}

static bool lend_endpoint_data(wireup_infos_t *list)
{
    bool good = true;
    for (size_t i = 0; i < list->count; i++) {
        pmix_byte_object_t *bo = &list->items[i].value.data.bo;
        if (is_endpoint_data(&list->items[i]) && bo->size > 0) {
            char *copy = good ? malloc(bo->size) : NULL;
            if (copy != NULL) {
                memcpy(copy, bo->bytes, bo->size);
            } else {
                bo->size = 0;
                good = false;
            }
            bo->bytes = copy;
        }
    }
    return good;
}

static void release_group(void *data)
{
    wireup_infos_t *list = data;
    for (size_t i = 0; list != NULL && i < list->count; i++) {
        if (is_endpoint_data(&list->items[i])) {
            free(list->items[i].value.data.bo.bytes);
        }
    }
    wireup_infos_free(list);
}

static void call_back(const struct completion *completion, struct answer *answer)
{
    wireup_infos_t *list = answer->infos;
    pmix_info_t *items = list == NULL ? NULL : list->items;
    const size_t count = list == NULL ? 0 : list->count;
    switch (completion->kind) {
    case COMPLETE_OP:
        completion->call.op(answer->status, completion->cbdata);
        break;
    case COMPLETE_MODEX:
        /* The frame lives until libpmix releases it. */
        completion->call.modex(answer->status, (const char *)answer->data, answer->data_len,
                               completion->cbdata, free, answer->frame);
        answer->frame = NULL;
        break;
    case COMPLETE_INFO:
        answer->infos = NULL;
        completion->call.info(answer->status, items, count, completion->cbdata, release_infos, list);
        break;
    case COMPLETE_GROUP:
        answer->infos = NULL;
        if (list != NULL && !lend_endpoint_data(list)) {
            answer->status = PMIX_ERR_NOMEM;
        }
        completion->call.info(answer->status, items, count, completion->cbdata, release_group, list);
        break;
    case COMPLETE_CREDENTIAL: {
        /* libpmix packs both before it returns; there is no release function. */
        pmix_byte_object_t credential = {.bytes = (char *)answer->data, .size = answer->data_len};
        completion->call.credential(answer->status, &credential, items, count, completion->cbdata);
        break;
    }
    case COMPLETE_VALIDATION:
        completion->call.validation(answer->status, items, count, completion->cbdata);
        break;
    case COMPLETE_LOOKUP:
        /* libpmix packs or copies the values before it returns; there is no release function. */
        completion->call.lookup(answer->status, answer->found, answer->found_count,
                                completion->cbdata);
        break;
    case COMPLETE_SPAWN: {
        /* A failure passes no name: clients store data for any given name. */
        pmix_nspace_t nspace = {0};
        if (answer->status == PMIX_SUCCESS) {
            memcpy(nspace, answer->data, answer->data_len);
        }
        completion->call.spawn(answer->status, answer->status == PMIX_SUCCESS ? nspace : NULL,
                               completion->cbdata);
        /* Not before: now libpmix, which may have changed the name, knows that the caller may want the job's output. */
        if (answer->status == PMIX_SUCCESS) {
            notice_of_spawn((const char *)answer->data, answer->data_len);
        }
        break;
    }
    case COMPLETE_TOOL: {
        /* The status is never an error: libpmix 4.2 then uses memory that it has freed. A tool without
         * a name from the agent loses its connection, because the agent is gone. */
        pmix_proc_t proc;
        memset(&proc, 0, sizeof(proc));
        if (answer->status == PMIX_SUCCESS) {
            memcpy(proc.nspace, answer->data, answer->data_len);
        } else {
            strcpy(proc.nspace, "wireup-lost");
        }
        if (count == 1 && items[0].value.type == PMIX_PROC_RANK) {
            proc.rank = items[0].value.data.rank;
        }
        completion->call.tool(PMIX_SUCCESS, &proc, completion->cbdata);
        break;
    }
    }
    free(answer->frame);
    wireup_infos_free(answer->infos);
}

/* A callback that waits for libpmix's thread. */
struct shifted {
    struct completion completion;
    struct answer answer;
};

static void on_libpmix_thread(pmix_status_t status, void *data)
{
    struct shifted *shifted = data;
    (void)status; /* the status of a request about an unknown process */
    call_back(&shifted->completion, &shifted->answer);
    free(shifted);
}

/*
 * Whether libpmix's callback touches data that only its own thread may touch. That of a spawn
 * records the caller's output subscriptions; the others append the answer to the client's send
 * queue, and an answer that is appended while libpmix sends may never be sent. Other callbacks pass
 * their data to that thread themselves.
 */
static bool is_for_libpmix_thread(const struct completion *completion)
{
    switch (completion->kind) {
    case COMPLETE_OP:
    case COMPLETE_MODEX:
    case COMPLETE_GROUP:
    case COMPLETE_TOOL:
        return false;
    case COMPLETE_INFO:
    case COMPLETE_LOOKUP:
    case COMPLETE_SPAWN:
    case COMPLETE_CREDENTIAL:
    case COMPLETE_VALIDATION:
        break;
    }
    return true;
}

/* Asks libpmix's thread to forget a process that it never knew, so that the callback runs there. */
void complete(const struct completion *completion, struct answer *answer)
{
    struct shifted *shifted = NULL;
    if (is_for_libpmix_thread(completion)) {
        shifted = malloc(sizeof(*shifted));
    }
    if (shifted == NULL) {
        call_back(completion, answer);
        return;
    }
    *shifted = (struct shifted){.completion = *completion, .answer = *answer};
    pmix_proc_t nobody;
    memset(&nobody, 0, sizeof(nobody));
    strcpy(nobody.nspace, "wireup-answered");
    PMIx_server_deregister_client(&nobody, on_libpmix_thread, shifted);
}
