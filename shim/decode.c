/* Bytes to infos and published values for libpmix, in an arena. */
#include <stdlib.h>
#include <string.h>

#include "types.h"

static void *take_memory(struct in *in, size_t size)
{
    void *memory = in_ok(in) ? arena_alloc(in->arena, size) : NULL;
    if (memory == NULL) {
        in_fail(in, PMIX_ERR_NOMEM);
    }
    return memory;
}

/* Copies bytes into the arena, terminated for readers that take them for a text. */
static void take_object(struct in *in, pmix_byte_object_t *bo)
{
    size_t len;
    const uint8_t *at = take_bytes(in, &len);
    if (at == NULL || len == 0) {
        return;
    }
    bo->bytes = take_memory(in, len + 1);
    if (bo->bytes != NULL) {
        memcpy(bo->bytes, at, len);
        bo->size = len;
    }
}

static void take_proc(struct in *in, pmix_proc_t *proc)
{
    size_t len;
    const uint8_t *at = take_bytes(in, &len);
    if (len > PMIX_MAX_NSLEN || (at != NULL && memchr(at, 0, len) != NULL)) {
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
        return;
    }
    if (at != NULL) {
        memcpy(proc->nspace, at, len);
    }
    proc->rank = take_u32(in);
}

/* at: zeroed memory as in an array of this type. */
static void take_body(struct in *in, const struct type *type, void *at)
{
    switch (type->shape) {
    case NUMBER: {
        const uint8_t u8 = type->size == 1 ? take_u8(in) : 0;
        const uint16_t u16 = type->size == 2 ? take_u16(in) : 0;
        const uint32_t u32 = type->size == 4 ? take_u32(in) : 0;
        const uint64_t u64 = type->size == 8 ? take_u64(in) : 0;
        switch (type->size) {
        case 1:
            if (type->tag == WIREUP_TAG_BOOL && u8 > 1) {
                in_fail(in, PMIX_ERR_UNPACK_FAILURE);
                return;
            }
            memcpy(at, &u8, 1);
            break;
        case 2:
            memcpy(at, &u16, 2);
            break;
        case 4:
            memcpy(at, &u32, 4);
            break;
        default:
            memcpy(at, &u64, 8);
        }
        break;
    }
    case TEXT:
        *(char **)at = take_text(in, NULL);
        break;
    case TIMEVAL: {
        struct timeval *tv = at;
        tv->tv_sec = (time_t)take_u64(in);
        tv->tv_usec = (suseconds_t)take_u64(in);
        break;
    }
    case PROC:
        take_proc(in, at);
        break;
    case BYTES:
        take_object(in, at);
        break;
    case ENVAR: {
        pmix_envar_t *envar = at;
        envar->envar = take_text(in, NULL);
        envar->value = take_text(in, NULL);
        envar->separator = (char)take_u8(in);
        break;
    }
    case PROC_INFO: {
        pmix_proc_info_t *info = at;
        take_proc(in, &info->proc);
        info->hostname = take_text(in, NULL);
        info->executable_name = take_text(in, NULL);
        info->pid = (pid_t)take_u32(in);
        info->exit_code = (int)take_u32(in);
        info->state = take_u8(in);
        break;
    }
    case DEVICE_DISTANCE: {
        pmix_device_distance_t *distance = at;
        distance->uuid = take_text(in, NULL);
        distance->osname = take_text(in, NULL);
        distance->type = take_u64(in);
        distance->mindist = take_u16(in);
        distance->maxdist = take_u16(in);
        break;
    }
    }
}

/* Leading letters and following digits of a host name that the form `pmix[…]` of libpmix 4 can hold: 50 bytes with the
 * end, and an int. */
#define PREFIX_MAX 49
#define DIGITS_MAX 9

/* Whether libpmix 4 can compress a list of host names. It overflows its stack with a longer prefix, and writes another
 * name for a larger number. */
static bool is_compressible(const char *list)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for (;;) {
        const size_t prefix = strspn(list, letters);
        if (prefix > PREFIX_MAX || strspn(list + prefix, "0123456789") > DIGITS_MAX) {
            return false;
        }
        list = strchr(list, ',');
        if (list == NULL) {
            return true;
        }
        list++;
    }
}

/* Generates the map of nodes: by libpmix if it can, else in the form that every release since 4.2 reads. */
static pmix_status_t generate_node_map(const char *list, char **regex)
{
    if (is_compressible(list)) {
        return PMIx_generate_regex(list, regex);
    }
    return asprintf(regex, "raw:%s", list) < 0 ? PMIX_ERR_NOMEM : PMIX_SUCCESS;
}

/* Generates a map from a plain list. libpmix's form may contain NUL bytes and knows its own
 * length, so the value is made by libpmix too. */
static void take_map(struct in *in, uint8_t tag, pmix_value_t *value)
{
    char *list = take_text(in, NULL);
    char *regex = NULL;
    if (list == NULL) {
        return;
    }
    pmix_status_t rc =
        tag == WIREUP_TAG_NODE_LIST ? generate_node_map(list, &regex) : PMIx_generate_ppn(list, &regex);
    if (rc == PMIX_SUCCESS) {
        rc = PMIx_Value_load(value, regex, PMIX_REGEX);
    }
    free(regex);
    if (rc != PMIX_SUCCESS) {
        in_fail(in, rc);
    } else if (!arena_adopt(in->arena, value->data.bo.bytes)) {
        in_fail(in, PMIX_ERR_NOMEM);
    }
}

static pmix_info_t *take_info_list(struct in *in, size_t *count, unsigned depth);

static void take_array(struct in *in, pmix_value_t *value, unsigned depth)
{
    const uint8_t tag = take_u8(in);
    const struct type *type = type_of_tag(tag);
    pmix_data_array_t *array = take_memory(in, sizeof(*array));
    if (depth >= WIREUP_MAX_DEPTH || (type == NULL && tag != WIREUP_TAG_INFO)) {
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
    }
    if (!in_ok(in)) {
        return;
    }
    value->type = PMIX_DATA_ARRAY;
    value->data.darray = array;
    if (type == NULL) {
        array->type = PMIX_INFO;
        array->array = take_info_list(in, &array->size, depth + 1);
        return;
    }
    array->type = type->pmix;
    array->size = take_count(in);
    if (array->size == 0) {
        return;
    }
    char *at = take_memory(in, array->size * type->size);
    array->array = at;
    for (size_t i = 0; i < array->size && in_ok(in); i++, at += type->size) {
        take_body(in, type, at);
    }
}

/* Takes a value; returns false if its type cannot be rebuilt. */
static bool take_value(struct in *in, pmix_value_t *value, unsigned depth)
{
    const uint8_t tag = take_u8(in);
    const struct type *type = type_of_tag(tag);
    if (type != NULL) {
        void *at = &value->data;
        if (is_boxed(type)) {
            at = take_memory(in, type->size);
            if (at == NULL) {
                return true;
            }
            value->data.ptr = at;
        }
        value->type = type->pmix;
        take_body(in, type, at);
        return true;
    }
    switch (tag) {
    case WIREUP_TAG_UNDEF:
        break;
    case WIREUP_TAG_ARRAY:
        take_array(in, value, depth);
        break;
    case WIREUP_TAG_REGEX:
        value->type = PMIX_REGEX;
        take_object(in, &value->data.bo);
        break;
    case WIREUP_TAG_NODE_LIST:
    case WIREUP_TAG_PPN_LIST:
        take_map(in, tag, value);
        break;
    case WIREUP_TAG_FOREIGN:
        take_u16(in);
        return false;
    default:
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
    }
    return true;
}

/* Takes a key into an array of PMIX_MAX_KEYLEN + 1 zeroed bytes. */
static void take_key(struct in *in, char *key)
{
    size_t len;
    const uint8_t *at = take_bytes(in, &len);
    if (len > PMIX_MAX_KEYLEN || (at != NULL && memchr(at, 0, len) != NULL)) {
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
    } else if (at != NULL) {
        memcpy(key, at, len);
    }
}

static pmix_info_t *take_info_list(struct in *in, size_t *count, unsigned depth)
{
    const size_t listed = take_count(in);
    *count = 0;
    if (listed == 0) {
        return NULL;
    }
    /* The payload has at least as many bytes as the claimed count. */
    pmix_info_t *infos = take_memory(in, listed * sizeof(*infos));
    for (size_t i = 0; i < listed && in_ok(in); i++) {
        pmix_info_t *info = &infos[*count];
        take_key(in, info->key);
        const uint32_t flags = take_u32(in);
        if ((flags & ~(uint32_t)WIREUP_INFO_REQUIRED) != 0) {
            in_fail(in, PMIX_ERR_UNPACK_FAILURE);
        }
        if (!in_ok(in)) {
            break;
        }
        if (!take_value(in, &info->value, depth)) {
            if (flags != 0) {
                in_fail(in, PMIX_ERR_NOT_SUPPORTED);
            }
            memset(info, 0, sizeof(*info)); /* the next one takes its place */
            continue;
        }
        if (flags != 0) {
            info->flags = PMIX_INFO_REQD;
        }
        *count += 1;
    }
    return infos;
}

pmix_info_t *take_infos(struct in *in, size_t *count)
{
    return take_info_list(in, count, 0);
}

pmix_pdata_t *take_pdata(struct in *in, size_t *count)
{
    const size_t listed = take_count(in);
    *count = 0;
    if (listed == 0) {
        return NULL;
    }
    pmix_pdata_t *found = take_memory(in, listed * sizeof(*found));
    for (size_t i = 0; i < listed && in_ok(in); i++) {
        pmix_pdata_t *pdata = &found[*count];
        take_proc(in, &pdata->proc);
        take_key(in, pdata->key);
        if (!in_ok(in)) {
            break;
        }
        if (take_value(in, &pdata->value, 0)) {
            *count += 1;
        } else {
            memset(pdata, 0, sizeof(*pdata));
        }
    }
    return found;
}
