/* Procs, values, infos, keys and queries of libpmix to bytes. */
#include <string.h>

#include "types.h"

void put_proc(struct out *o, const pmix_proc_t *proc)
{
    if (proc == NULL) {
        put_text(o, NULL);
        put_u32(o, PMIX_RANK_UNDEF);
        return;
    }
    put_text_upto(o, proc->nspace, PMIX_MAX_NSLEN);
    put_u32(o, proc->rank);
}

void put_procs(struct out *o, const pmix_proc_t *procs, size_t count)
{
    count = procs == NULL ? 0 : count;
    put_count(o, count);
    for (size_t i = 0; i < count; i++) {
        put_proc(o, &procs[i]);
    }
}

void put_codes(struct out *o, const pmix_status_t *codes, size_t count)
{
    count = codes == NULL ? 0 : count;
    put_count(o, count);
    for (size_t i = 0; i < count; i++) {
        put_u32(o, (uint32_t)codes[i]);
    }
}

void put_byte_object(struct out *o, const pmix_byte_object_t *object)
{
    const bool is_empty = object == NULL || object->bytes == NULL;
    put_bytes(o, is_empty ? NULL : object->bytes, is_empty ? 0 : object->size);
}

/* at: memory as in an array of this type. */
static void put_body(struct out *o, const struct type *type, const void *at)
{
    switch (type->shape) {
    case NUMBER: {
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        switch (type->size) {
        case 1:
            memcpy(&u8, at, 1);
            put_u8(o, type->tag == WIREUP_TAG_BOOL ? u8 != 0 : u8);
            break;
        case 2:
            memcpy(&u16, at, 2);
            put_u16(o, u16);
            break;
        case 4:
            memcpy(&u32, at, 4);
            put_u32(o, u32);
            break;
        default:
            memcpy(&u64, at, 8);
            put_u64(o, u64);
        }
        break;
    }
    case TEXT:
        put_text(o, *(char *const *)at);
        break;
    case TIMEVAL: {
        const struct timeval *tv = at;
        put_u64(o, (uint64_t)tv->tv_sec);
        put_u64(o, (uint64_t)tv->tv_usec);
        break;
    }
    case PROC:
        put_proc(o, at);
        break;
    case BYTES:
        put_byte_object(o, at);
        break;
    case ENVAR: {
        const pmix_envar_t *envar = at;
        put_text(o, envar->envar);
        put_text(o, envar->value);
        put_u8(o, (uint8_t)envar->separator);
        break;
    }
    case PROC_INFO: {
        const pmix_proc_info_t *info = at;
        put_proc(o, &info->proc);
        put_text(o, info->hostname);
        put_text(o, info->executable_name);
        put_u32(o, (uint32_t)info->pid);
        put_u32(o, (uint32_t)info->exit_code);
        put_u8(o, info->state);
        break;
    }
    case DEVICE_DISTANCE: {
        const pmix_device_distance_t *distance = at;
        put_text(o, distance->uuid);
        put_text(o, distance->osname);
        put_u64(o, distance->type);
        put_u16(o, distance->mindist);
        put_u16(o, distance->maxdist);
        break;
    }
    }
}

static void put_info_list(struct out *o, const pmix_info_t *infos, size_t count, unsigned depth);

static void put_foreign(struct out *o, pmix_data_type_t pmix)
{
    put_u8(o, WIREUP_TAG_FOREIGN);
    put_u16(o, pmix);
}

static void put_array(struct out *o, const pmix_data_array_t *array, unsigned depth)
{
    if (array == NULL) {
        put_u8(o, WIREUP_TAG_UNDEF);
        return;
    }
    const size_t count = array->array == NULL ? 0 : array->size;
    const struct type *type = type_of_pmix(array->type);
    if (depth >= WIREUP_MAX_DEPTH || (type == NULL && array->type != PMIX_INFO)) {
        put_foreign(o, PMIX_DATA_ARRAY);
    } else if (type == NULL) {
        put_u8(o, WIREUP_TAG_ARRAY);
        put_u8(o, WIREUP_TAG_INFO);
        put_info_list(o, array->array, count, depth + 1);
    } else {
        put_u8(o, WIREUP_TAG_ARRAY);
        put_u8(o, type->tag);
        put_count(o, count);
        const char *at = array->array;
        for (size_t i = 0; i < count; i++, at += type->size) {
            put_body(o, type, at);
        }
    }
}

static void put_value(struct out *o, const pmix_value_t *value, unsigned depth)
{
    const struct type *type = type_of_pmix(value->type);
    if (type != NULL) {
        const void *at = is_boxed(type) ? value->data.ptr : (const void *)&value->data;
        if (at == NULL) {
            put_u8(o, WIREUP_TAG_UNDEF);
            return;
        }
        put_u8(o, type->tag);
        put_body(o, type, at);
        return;
    }
    switch (value->type) {
    case PMIX_UNDEF:
        put_u8(o, WIREUP_TAG_UNDEF);
        break;
    case PMIX_DATA_ARRAY:
        put_array(o, value->data.darray, depth);
        break;
    case PMIX_REGEX:
        put_u8(o, WIREUP_TAG_REGEX);
        put_byte_object(o, &value->data.bo);
        break;
    default:
        put_foreign(o, value->type);
    }
}

static void put_info_list(struct out *o, const pmix_info_t *infos, size_t count, unsigned depth)
{
    count = infos == NULL ? 0 : count;
    put_count(o, count);
    for (size_t i = 0; i < count && !o->failed; i++) {
        put_text_upto(o, infos[i].key, PMIX_MAX_KEYLEN);
        put_u32(o, (infos[i].flags & PMIX_INFO_REQD) != 0 ? WIREUP_INFO_REQUIRED : 0);
        put_value(o, &infos[i].value, depth);
    }
}

void put_infos(struct out *o, const pmix_info_t *infos, size_t count)
{
    put_info_list(o, infos, count, 0);
}

void put_texts(struct out *o, char *const *texts)
{
    size_t count = 0;
    while (texts != NULL && texts[count] != NULL) {
        count++;
    }
    put_count(o, count);
    for (size_t i = 0; i < count; i++) {
        put_text(o, texts[i]);
    }
}

void put_queries(struct out *o, const pmix_query_t *queries, size_t count)
{
    count = queries == NULL ? 0 : count;
    put_count(o, count);
    for (size_t i = 0; i < count; i++) {
        put_texts(o, queries[i].keys);
        put_infos(o, queries[i].qualifiers, queries[i].nqual);
    }
}

void put_apps(struct out *o, const pmix_app_t *apps, size_t count)
{
    count = apps == NULL ? 0 : count;
    put_count(o, count);
    for (size_t i = 0; i < count; i++) {
        put_text(o, apps[i].cmd);
        put_texts(o, apps[i].argv);
        put_texts(o, apps[i].env);
        put_text(o, apps[i].cwd);
        put_u32(o, (uint32_t)apps[i].maxprocs);
        put_infos(o, apps[i].info, apps[i].ninfo);
    }
}
