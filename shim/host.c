/* The functions that the host process calls besides the link: version, decoded arguments. */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#if PMIX_NUMERIC_VERSION < 0x00040202
#error "PMIx headers of version 4.2.2 or later are needed"
#endif

_Static_assert(WIREUP_MAX_KEY == PMIX_MAX_KEYLEN && WIREUP_MAX_NSPACE == PMIX_MAX_NSLEN,
               "limits of wire.h are PMIx's");

/* The build takes the version from Cargo.toml. */
#if !defined(WIREUP_VERSION)
#define WIREUP_VERSION "unknown"
#endif

const char wireup_shim_version[] = "wireup-shim-version=" WIREUP_VERSION;

uint32_t wireup_shim_abi(void)
{
    return WIREUP_SHIM_ABI;
}

pmix_status_t wireup_infos_decode(const uint8_t *bytes, size_t len, wireup_infos_t **list)
{
    *list = NULL;
    struct wireup_infos *infos = calloc(1, sizeof(*infos));
    if (infos == NULL) {
        return PMIX_ERR_NOMEM;
    }
    struct in in;
    in_init(&in, bytes, len, &infos->arena);
    infos->items = take_infos(&in, &infos->count);
    if (in_ok(&in) && in.next != in.end) {
        in_fail(&in, PMIX_ERR_UNPACK_FAILURE);
    }
    if (!in_ok(&in)) {
        wireup_infos_free(infos);
        return in.status;
    }
    *list = infos;
    return PMIX_SUCCESS;
}

pmix_info_t *wireup_infos_items(const wireup_infos_t *list)
{
    return list->count > 0 ? list->items : NULL;
}

size_t wireup_infos_count(const wireup_infos_t *list)
{
    return list->count;
}

void wireup_infos_free(wireup_infos_t *list)
{
    if (list != NULL) {
        arena_free(&list->arena);
        free(list);
    }
}

pmix_proc_t *wireup_proc_new(const char *nspace, size_t len, uint32_t rank)
{
    pmix_proc_t *proc = calloc(1, sizeof(*proc));
    if (proc != NULL) {
        memcpy(proc->nspace, nspace, len < PMIX_MAX_NSLEN ? len : PMIX_MAX_NSLEN);
        proc->rank = rank;
    }
    return proc;
}

void wireup_proc_free(pmix_proc_t *proc)
{
    free(proc);
}

pmix_byte_object_t *wireup_bytes_new(const uint8_t *bytes, size_t len)
{
    pmix_byte_object_t *object = calloc(1, sizeof(*object));
    if (object == NULL || len == 0) {
        return object;
    }
    object->bytes = malloc(len);
    if (object->bytes == NULL) {
        free(object);
        return NULL;
    }
    memcpy(object->bytes, bytes, len);
    object->size = len;
    return object;
}

void wireup_bytes_free(pmix_byte_object_t *bytes)
{
    if (bytes != NULL) {
        free(bytes->bytes);
        free(bytes);
    }
}
