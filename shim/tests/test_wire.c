/* Infos to bytes and back, against what Rust wrote, and against hostile bytes. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static uint8_t *encoded(const pmix_info_t *infos, size_t count, size_t *len)
{
    struct out o;
    out_init(&o);
    put_infos(&o, infos, count);
    size_t frame_len;
    uint8_t *frame = out_finish(&o, 1, 2, &frame_len);
    CHECK(frame != NULL);
    *len = frame_len - WIREUP_HEADER_LEN;
    memmove(frame, frame + WIREUP_HEADER_LEN, *len);
    return frame;
}

static void rust_and_c_write_the_same_bytes(void)
{
    size_t count, len;
    pmix_info_t *infos = all_kinds(&count);
    uint8_t *bytes = encoded(infos, count, &len);
    match_golden("rust/infos.bin", bytes, len);
    free(bytes);
}

static void what_rust_wrote_survives_decoding(void)
{
    size_t len, again_len;
    uint8_t *bytes = read_golden("rust/infos.bin", &len);
    wireup_infos_t *list;
    CHECK(wireup_infos_decode(bytes, len, &list) == PMIX_SUCCESS);
    uint8_t *again = encoded(wireup_infos_items(list), wireup_infos_count(list), &again_len);
    CHECK(len == again_len && memcmp(bytes, again, len) == 0);
    wireup_infos_free(list);
    free(again);
    free(bytes);
}

/* Made by Rust: a node list, a ppn list, an info of a foreign type, and a bool. */
static void maps_are_generated_and_foreign_types_left_out(void)
{
    size_t len;
    uint8_t *bytes = read_golden("rust/special.bin", &len);
    wireup_infos_t *list;
    CHECK(wireup_infos_decode(bytes, len, &list) == PMIX_SUCCESS);
    const pmix_info_t *items = wireup_infos_items(list);
    CHECK(wireup_infos_count(list) == 3);
    CHECK(items[0].value.type == PMIX_REGEX && items[1].value.type == PMIX_REGEX);
    CHECK(strcmp(items[0].value.data.bo.bytes, "N[a,b]") == 0);
    CHECK(items[0].value.data.bo.size == 7);
    CHECK(strcmp(items[1].value.data.bo.bytes, "P[0,1;2,3]") == 0);
    CHECK(strcmp(items[2].key, "last") == 0 && items[2].value.data.flag);
    wireup_infos_free(list);
    free(bytes);

    bytes = read_golden("rust/foreign_required.bin", &len);
    CHECK(wireup_infos_decode(bytes, len, &list) == PMIX_ERR_NOT_SUPPORTED && list == NULL);
    free(bytes);
    bytes = read_golden("rust/bad_map.bin", &len);
    CHECK(wireup_infos_decode(bytes, len, &list) == PMIX_ERR_BAD_PARAM && list == NULL);
    free(bytes);
}

/* The map that the shim makes of host names. */
static void check_node_map(const char *names, const char *map)
{
    struct out o;
    out_init(&o);
    put_count(&o, 1);
    put_text(&o, PMIX_NODE_MAP);
    put_u32(&o, 0);
    put_u8(&o, WIREUP_TAG_NODE_LIST);
    put_text(&o, names);
    size_t len;
    uint8_t *frame = out_finish(&o, 1, 1, &len);
    wireup_infos_t *list;
    CHECK(wireup_infos_decode(frame + WIREUP_HEADER_LEN, len - WIREUP_HEADER_LEN, &list) == PMIX_SUCCESS);
    const pmix_value_t *value = &wireup_infos_items(list)[0].value;
    CHECK(value->type == PMIX_REGEX && strcmp(value->data.bo.bytes, map) == 0);
    wireup_infos_free(list);
    free(frame);
}

#define LETTERS_49 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvw"

static void host_names_that_libpmix_cannot_compress_stay_plain(void)
{
    check_node_map("n1," LETTERS_49 "1,a123456789b", "N[n1," LETTERS_49 "1,a123456789b]");
    check_node_map("a-" LETTERS_49 "x", "N[a-" LETTERS_49 "x]");
    check_node_map("n1," LETTERS_49 "x", "raw:n1," LETTERS_49 "x");
    check_node_map(LETTERS_49 "x1,n1", "raw:" LETTERS_49 "x1,n1");
    check_node_map("a1234567890,n1", "raw:a1234567890,n1");
    check_node_map("n1,222222222222", "raw:n1,222222222222");
}

static void every_truncation_is_refused(void)
{
    size_t len;
    uint8_t *bytes = read_golden("rust/infos.bin", &len);
    for (size_t cut = 0; cut < len; cut++) {
        /* Exactly as much memory as payload, so that a read beyond is seen. */
        uint8_t *copy = malloc(cut > 0 ? cut : 1);
        memcpy(copy, bytes, cut);
        wireup_infos_t *list;
        CHECK(wireup_infos_decode(copy, cut, &list) != PMIX_SUCCESS && list == NULL);
        free(copy);
    }
    uint8_t *longer = malloc(len + 1);
    memcpy(longer, bytes, len);
    longer[len] = 0;
    wireup_infos_t *list;
    CHECK(wireup_infos_decode(longer, len + 1, &list) == PMIX_ERR_UNPACK_FAILURE);
    free(longer);
    free(bytes);
}

/* One info whose key and nspace have these lengths. */
static pmix_status_t decode_names(size_t key_len, size_t nspace_len)
{
    char text[1024];
    memset(text, 'x', sizeof(text));
    struct out o;
    out_init(&o);
    put_count(&o, 1);
    put_bytes(&o, text, key_len);
    put_u32(&o, 0);
    put_u8(&o, WIREUP_TAG_PROC);
    put_bytes(&o, text, nspace_len);
    put_u32(&o, 0);
    size_t len;
    uint8_t *frame = out_finish(&o, 1, 1, &len);
    wireup_infos_t *list;
    const pmix_status_t rc =
        wireup_infos_decode(frame + WIREUP_HEADER_LEN, len - WIREUP_HEADER_LEN, &list);
    wireup_infos_free(list);
    free(frame);
    return rc;
}

static void names_over_their_limits_are_refused(void)
{
    CHECK(decode_names(PMIX_MAX_KEYLEN, PMIX_MAX_NSLEN) == PMIX_SUCCESS);
    CHECK(decode_names(PMIX_MAX_KEYLEN + 1, 1) == PMIX_ERR_UNPACK_FAILURE);
    CHECK(decode_names(1, PMIX_MAX_NSLEN + 1) == PMIX_ERR_UNPACK_FAILURE);
}

/* xorshift: the same bytes on every machine. */
static uint64_t seed = 88172645463325252;

static uint64_t random_number(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void mutated_lists_do_no_harm(void)
{
    size_t len;
    uint8_t *bytes = read_golden("rust/infos.bin", &len);
    for (int round = 0; round < 20000; round++) {
        uint8_t *copy = malloc(len);
        memcpy(copy, bytes, len);
        for (uint64_t n = 1 + random_number() % 4; n > 0; n--) {
            copy[random_number() % len] = (uint8_t)(random_number() % 3 ? random_number() % 48 : 255);
        }
        wireup_infos_t *list;
        if (wireup_infos_decode(copy, len, &list) == PMIX_SUCCESS) {
            /* Whatever was accepted must be readable in full. */
            size_t again_len;
            free(encoded(wireup_infos_items(list), wireup_infos_count(list), &again_len));
            wireup_infos_free(list);
        }
        free(copy);
    }
    free(bytes);
}

/* The values of a lookup, behind the status; -1 if they are refused. */
static int decode_found(const uint8_t *bytes, size_t len)
{
    struct arena arena = {0};
    struct in in;
    in_init(&in, bytes, len, &arena);
    size_t count;
    pmix_pdata_t *found = take_pdata(&in, &count);
    const bool good = in_ok(&in) && in.next == in.end;
    struct out o;
    out_init(&o);
    for (size_t i = 0; good && i < count; i++) {
        CHECK(memchr(found[i].key, 0, sizeof(found[i].key)) != NULL);
        pmix_info_t info;
        memset(&info, 0, sizeof(info));
        info.value = found[i].value;
        put_infos(&o, &info, 1);
    }
    out_free(&o);
    arena_free(&arena);
    return good ? (int)count : -1;
}

static void mutated_and_cut_lookups_do_no_harm(void)
{
    const size_t before = WIREUP_HEADER_LEN + 4;
    size_t len;
    uint8_t *frame = read_golden("rust/answer_lookup.bin", &len);
    len -= before;
    CHECK(decode_found(frame + before, len) == 2);
    for (int round = 0; round < 20000; round++) {
        const size_t cut = random_number() % 4 ? len : random_number() % len;
        uint8_t *copy = malloc(cut > 0 ? cut : 1);
        memcpy(copy, frame + before, cut);
        for (uint64_t n = random_number() % 4; cut > 0 && n > 0; n--) {
            copy[random_number() % cut] = (uint8_t)(random_number() % 3 ? random_number() % 48 : 255);
        }
        decode_found(copy, cut);
        free(copy);
    }
    for (size_t cut = 0; cut < len; cut++) {
        CHECK(decode_found(frame + before, cut) == -1);
    }
    free(frame);
}

static void nesting_beyond_the_limit_is_cut(void)
{
    enum { LEVELS = WIREUP_MAX_DEPTH + 2 };
    static pmix_info_t infos[LEVELS];
    static pmix_data_array_t arrays[LEVELS];
    for (int i = 0; i < LEVELS; i++) {
        strcpy(infos[i].key, "level");
        if (i + 1 < LEVELS) {
            arrays[i] = (pmix_data_array_t){.type = PMIX_INFO, .size = 1, .array = &infos[i + 1]};
            infos[i].value.type = PMIX_DATA_ARRAY;
            infos[i].value.data.darray = &arrays[i];
        }
    }
    size_t len;
    uint8_t *bytes = encoded(&infos[0], 1, &len);
    wireup_infos_t *list;
    CHECK(wireup_infos_decode(bytes, len, &list) == PMIX_SUCCESS);
    const pmix_info_t *at = wireup_infos_items(list);
    int levels = 0;
    while (at != NULL && at->value.type == PMIX_DATA_ARRAY) {
        CHECK(at->value.data.darray->size <= 1);
        at = at->value.data.darray->size == 1 ? at->value.data.darray->array : NULL;
        levels++;
    }
    CHECK(levels == WIREUP_MAX_DEPTH);
    wireup_infos_free(list);
    free(bytes);
}

static void null_pointers_in_values_are_read_as_nothing(void)
{
    pmix_info_t infos[4];
    memset(infos, 0, sizeof(infos));
    infos[0].value.type = PMIX_STRING;
    infos[1].value.type = PMIX_PROC;
    infos[2].value.type = PMIX_DATA_ARRAY;
    infos[3].value.type = PMIX_POINTER;
    size_t len;
    uint8_t *bytes = encoded(infos, 4, &len);
    wireup_infos_t *list;
    CHECK(wireup_infos_decode(bytes, len, &list) == PMIX_SUCCESS);
    CHECK(wireup_infos_count(list) == 3);
    CHECK(wireup_infos_items(list)[0].value.data.string[0] == '\0');
    CHECK(wireup_infos_items(list)[1].value.type == PMIX_UNDEF);
    CHECK(wireup_infos_items(list)[2].value.type == PMIX_UNDEF);
    wireup_infos_free(list);
    free(bytes);
    bytes = encoded(NULL, 3, &len);
    CHECK(len == 4);
    free(bytes);
}

static void output_over_the_limit_fails(void)
{
    struct out o;
    out_init(&o);
    char *big = calloc(1, WIREUP_MAX_PAYLOAD);
    put_bytes(&o, big, WIREUP_MAX_PAYLOAD - 4);
    CHECK(!o.failed);
    put_u8(&o, 0);
    CHECK(o.failed);
    size_t len;
    CHECK(out_finish(&o, 1, 1, &len) == NULL);
    free(big);
    out_init(&o);
    put_count(&o, WIREUP_MAX_ITEMS);
    CHECK(!o.failed);
    put_count(&o, 1);
    CHECK(o.failed);
    out_free(&o);
}

void test_wire(void)
{
    rust_and_c_write_the_same_bytes();
    what_rust_wrote_survives_decoding();
    maps_are_generated_and_foreign_types_left_out();
    host_names_that_libpmix_cannot_compress_stay_plain();
    every_truncation_is_refused();
    names_over_their_limits_are_refused();
    mutated_lists_do_no_harm();
    mutated_and_cut_lookups_do_no_harm();
    nesting_beyond_the_limit_is_cut();
    null_pointers_in_values_are_read_as_nothing();
    output_over_the_limit_fails();
    pmix_proc_t *proc = wireup_proc_new("job", 3, 9);
    CHECK(strcmp(proc->nspace, "job") == 0 && proc->rank == 9);
    wireup_proc_free(proc);
    wireup_proc_free(NULL);
    wireup_infos_free(NULL);
    pmix_byte_object_t *bytes = wireup_bytes_new((const uint8_t *)"a\0b", 3);
    CHECK(bytes->size == 3 && memcmp(bytes->bytes, "a\0b", 3) == 0);
    wireup_bytes_free(bytes);
    bytes = wireup_bytes_new(NULL, 0);
    CHECK(bytes != NULL && bytes->size == 0 && bytes->bytes == NULL);
    wireup_bytes_free(bytes);
    wireup_bytes_free(NULL);
}
