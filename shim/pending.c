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

/* libpmix calls it when it is done with the infos; list may be NULL. */
static void release_infos(void *list)
{
    wireup_infos_free(list);
}

/*
 * libpmix takes a group's endpoint data over and frees it, but only if it comes to read it; then it
 * leaves NULL behind. So these bytes live outside the list, and we free what is still there.
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

/* A spawn's callback that waits for libpmix's thread. */
struct spawned {
    struct completion completion;
    pmix_nspace_t nspace;
};

static void on_libpmix_thread(pmix_status_t status, void *data)
{
    struct spawned *spawned = data;
    (void)status; /* how it went with a process that nobody knows */
    spawned->completion.call.spawn(PMIX_SUCCESS, spawned->nspace, spawned->completion.cbdata);
    free(spawned);
}

/*
 * libpmix's callback itself notes whose output the caller wants, in lists that only its own thread
 * may touch. So that thread is asked to forget a process it never knew, and calls back then.
 * A failure needs no list, and no name: clients store what they know of any name that is given.
 */
static void complete_spawn(const struct completion *completion, const struct answer *answer)
{
    struct spawned *spawned = NULL;
    if (answer->status == PMIX_SUCCESS) {
        spawned = calloc(1, sizeof(*spawned));
    }
    if (spawned == NULL) {
        completion->call.spawn(answer->status == PMIX_SUCCESS ? PMIX_ERR_NOMEM : answer->status, NULL,
                               completion->cbdata);
        return;
    }
    spawned->completion = *completion;
    memcpy(spawned->nspace, answer->data, answer->data_len);
    pmix_proc_t nobody;
    memset(&nobody, 0, sizeof(nobody));
    strcpy(nobody.nspace, "wireup-spawned");
    PMIx_server_deregister_client(&nobody, on_libpmix_thread, spawned);
}

void complete(const struct completion *completion, struct answer *answer)
{
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
    case COMPLETE_INFO: {
        wireup_infos_t *list = answer->infos;
        answer->infos = NULL;
        completion->call.info(answer->status, list == NULL ? NULL : list->items,
                              list == NULL ? 0 : list->count, completion->cbdata, release_infos,
                              list);
        break;
    }
    case COMPLETE_GROUP: {
        wireup_infos_t *list = answer->infos;
        answer->infos = NULL;
        if (list != NULL && !lend_endpoint_data(list)) {
            answer->status = PMIX_ERR_NOMEM;
        }
        completion->call.info(answer->status, list == NULL ? NULL : list->items,
                              list == NULL ? 0 : list->count, completion->cbdata, release_group,
                              list);
        break;
    }
    case COMPLETE_CREDENTIAL: {
        /* libpmix packs both before it returns; there is no release function. */
        pmix_byte_object_t credential = {.bytes = (char *)answer->data, .size = answer->data_len};
        const wireup_infos_t *list = answer->infos;
        completion->call.credential(answer->status, &credential, list == NULL ? NULL : list->items,
                                    list == NULL ? 0 : list->count, completion->cbdata);
        break;
    }
    case COMPLETE_VALIDATION: {
        const wireup_infos_t *list = answer->infos;
        completion->call.validation(answer->status, list == NULL ? NULL : list->items,
                                    list == NULL ? 0 : list->count, completion->cbdata);
        break;
    }
    case COMPLETE_LOOKUP:
        /* libpmix packs or copies the values before it returns; there is no release function. */
        completion->call.lookup(answer->status, answer->found, answer->found_count,
                                completion->cbdata);
        break;
    case COMPLETE_SPAWN:
        complete_spawn(completion, answer);
        break;
    }
    free(answer->frame);
    wireup_infos_free(answer->infos);
}
