/*
 * Directories of which only empty subdirectories may be removed. libpmix does not know
 * PMIX_CLEANUP_EMPTY (4.2.2, 5.0.11): it passes the request on to its host, and removes everything.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

struct kept {
    struct kept *next;
    size_t len;
    char path[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *first;

static bool is_true(const pmix_value_t *value)
{
    return value->type == PMIX_UNDEF || (value->type == PMIX_BOOL && value->data.flag);
}

static bool keep(const char *path, size_t len)
{
    while (len > 0 && path[len - 1] == '/') {
        len--;
    }
    struct kept *kept = calloc(1, sizeof(*kept) + len + 1);
    if (kept == NULL) {
        return false;
    }
    kept->len = len;
    memcpy(kept->path, path, len);
    pthread_mutex_lock(&lock);
    kept->next = first;
    first = kept;
    pthread_mutex_unlock(&lock);
    return true;
}

bool keep_files(const pmix_info_t directives[], size_t count)
{
    bool empty = false, kept = true;
    for (size_t i = 0; directives != NULL && i < count; i++) {
        empty |= strncmp(directives[i].key, PMIX_CLEANUP_EMPTY, PMIX_MAX_KEYLEN) == 0
                 && is_true(&directives[i].value);
    }
    for (size_t i = 0; empty && i < count; i++) {
        const pmix_value_t *value = &directives[i].value;
        if (strncmp(directives[i].key, PMIX_REGISTER_CLEANUP_DIR, PMIX_MAX_KEYLEN) == 0
            && value->type == PMIX_STRING && value->data.string != NULL) {
            /* Several paths, separated by commas. */
            for (const char *at = value->data.string; *at != '\0'; at += strspn(at, ",")) {
                const size_t len = strcspn(at, ",");
                kept &= keep(at, len);
                at += len;
            }
        }
    }
    return kept;
}

int wireup_keeps(const char *path)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const struct kept *kept = first; kept != NULL && !found; kept = kept->next) {
        found = strncmp(path, kept->path, kept->len) == 0 && path[kept->len] == '/';
    }
    pthread_mutex_unlock(&lock);
    return found;
}
