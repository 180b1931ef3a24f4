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
    case COMPLETE_LOOKUP:
        /* libpmix packs or copies the values before it returns; there is no release function. */
        completion->call.lookup(answer->status, answer->found, answer->found_count,
                                completion->cbdata);
        break;
    }
    free(answer->frame);
    wireup_infos_free(answer->infos);
}
