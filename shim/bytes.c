/* Growing output, bounded input, arena. Knows nothing of PMIx but the status numbers. */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { FIRST_ROOM = 512, BLOCK_SIZE = 64 * 1024, ALIGNMENT = 16 };

void out_init(struct out *o)
{
    memset(o, 0, sizeof(*o));
    static const uint8_t header[WIREUP_HEADER_LEN];
    o->room = FIRST_ROOM;
    o->data = malloc(o->room);
    if (o->data == NULL) {
        o->failed = true;
        return;
    }
    memcpy(o->data, header, sizeof(header));
    o->len = sizeof(header);
}

void out_free(struct out *o)
{
    free(o->data);
    memset(o, 0, sizeof(*o));
    o->failed = true;
}

/* Makes room for len more bytes and returns it; NULL when there is none. */
static uint8_t *grow(struct out *o, size_t len)
{
    const size_t most = (size_t)WIREUP_HEADER_LEN + WIREUP_MAX_PAYLOAD;
    if (o->failed) {
        return NULL;
    }
    if (len > most - o->len) {
        o->failed = true;
        return NULL;
    }
    if (len > o->room - o->len) {
        size_t room = o->room;
        while (len > room - o->len) {
            room *= 2;
        }
        uint8_t *data = realloc(o->data, room);
        if (data == NULL) {
            o->failed = true;
            return NULL;
        }
        o->data = data;
        o->room = room;
    }
    uint8_t *at = o->data + o->len;
    o->len += len;
    return at;
}

static void store(uint8_t *at, uint64_t v, size_t width)
{
    for (size_t i = 0; i < width; i++) {
        at[i] = (uint8_t)(v >> (8 * i));
    }
}

static void put_number(struct out *o, uint64_t v, size_t width)
{
    uint8_t *at = grow(o, width);
    if (at != NULL) {
        store(at, v, width);
    }
}

void put_u8(struct out *o, uint8_t v)
{
    put_number(o, v, 1);
}

void put_u16(struct out *o, uint16_t v)
{
    put_number(o, v, 2);
}

void put_u32(struct out *o, uint32_t v)
{
    put_number(o, v, 4);
}

void put_u64(struct out *o, uint64_t v)
{
    put_number(o, v, 8);
}

void put_bytes(struct out *o, const void *bytes, size_t len)
{
    if (len > WIREUP_MAX_PAYLOAD) {
        o->failed = true;
        return;
    }
    put_u32(o, (uint32_t)len);
    uint8_t *at = grow(o, len);
    if (at != NULL && len > 0) {
        memcpy(at, bytes, len);
    }
}

void put_text(struct out *o, const char *text)
{
    put_bytes(o, text, text == NULL ? 0 : strlen(text));
}

void put_text_upto(struct out *o, const char *text, size_t limit)
{
    put_bytes(o, text, strnlen(text, limit));
}

void put_count(struct out *o, size_t count)
{
    if (count > WIREUP_MAX_ITEMS - o->items) {
        o->failed = true;
        return;
    }
    o->items += (uint32_t)count;
    put_u32(o, (uint32_t)count);
}

uint8_t *out_finish(struct out *o, uint16_t op, uint64_t id, size_t *len)
{
    uint8_t *frame = NULL;
    if (o->failed) {
        free(o->data);
    } else {
        frame = o->data;
        *len = o->len;
        store(frame, o->len - WIREUP_HEADER_LEN, 4);
        store(frame + 4, op, 2);
        store(frame + 6, 0, 2);
        store(frame + 8, id, 8);
    }
    o->data = NULL;
    out_free(o);
    return frame;
}

struct block {
    struct block *before;
    void *adopted; /* memory from another malloc, or NULL */
};

void *arena_alloc(struct arena *a, size_t size)
{
    if (size > SIZE_MAX - ALIGNMENT - BLOCK_SIZE) {
        return NULL;
    }
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size > a->left) {
        const size_t head = (sizeof(struct block) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        /* The rest of the block is abandoned: blocks are large compared with most requests. */
        const size_t room = size > BLOCK_SIZE ? size : BLOCK_SIZE;
        struct block *block = calloc(1, head + room);
        if (block == NULL) {
            return NULL;
        }
        block->before = a->blocks;
        a->blocks = block;
        a->next = (uint8_t *)block + head;
        a->left = room;
    }
    void *memory = a->next;
    a->next += size;
    a->left -= size;
    return memory;
}

bool arena_adopt(struct arena *a, void *memory)
{
    struct block *block = calloc(1, sizeof(*block));
    if (block == NULL) {
        free(memory);
        return false;
    }
    block->before = a->blocks;
    block->adopted = memory;
    a->blocks = block;
    return true;
}

void arena_free(struct arena *a)
{
    while (a->blocks != NULL) {
        struct block *block = a->blocks;
        a->blocks = block->before;
        free(block->adopted);
        free(block);
    }
    memset(a, 0, sizeof(*a));
}

void in_init(struct in *in, const uint8_t *bytes, size_t len, struct arena *arena)
{
    in->next = bytes;
    in->end = bytes + len;
    in->arena = arena;
    in->items = WIREUP_MAX_ITEMS;
    in->status = PMIX_SUCCESS;
}

bool in_fail(struct in *in, pmix_status_t status)
{
    if (in->status == PMIX_SUCCESS) {
        in->status = status;
    }
    return false;
}

bool in_ok(const struct in *in)
{
    return in->status == PMIX_SUCCESS;
}

static const uint8_t *take(struct in *in, size_t len)
{
    if (!in_ok(in)) {
        return NULL;
    }
    if (len > (size_t)(in->end - in->next)) {
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
        return NULL;
    }
    const uint8_t *at = in->next;
    in->next += len;
    return at;
}

static uint64_t take_number(struct in *in, size_t width)
{
    const uint8_t *at = take(in, width);
    uint64_t v = 0;
    for (size_t i = 0; at != NULL && i < width; i++) {
        v |= (uint64_t)at[i] << (8 * i);
    }
    return v;
}

uint8_t take_u8(struct in *in)
{
    return (uint8_t)take_number(in, 1);
}

uint16_t take_u16(struct in *in)
{
    return (uint16_t)take_number(in, 2);
}

uint32_t take_u32(struct in *in)
{
    return (uint32_t)take_number(in, 4);
}

uint64_t take_u64(struct in *in)
{
    return take_number(in, 8);
}

const uint8_t *take_bytes(struct in *in, size_t *len)
{
    *len = take_u32(in);
    const uint8_t *at = take(in, *len);
    if (at == NULL) {
        *len = 0;
    }
    return at;
}

char *take_text(struct in *in, size_t *len)
{
    size_t n;
    const uint8_t *at = take_bytes(in, &n);
    if (at == NULL) {
        return NULL;
    }
    if (memchr(at, 0, n) != NULL) {
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
        return NULL;
    }
    char *text = arena_alloc(in->arena, n + 1);
    if (text == NULL) {
        in_fail(in, PMIX_ERR_NOMEM);
        return NULL;
    }
    memcpy(text, at, n);
    if (len != NULL) {
        *len = n;
    }
    return text;
}

size_t take_count(struct in *in)
{
    const uint32_t count = take_u32(in);
    if (!in_ok(in)) {
        return 0;
    }
    if (count > in->items || count > (size_t)(in->end - in->next)) {
        in_fail(in, PMIX_ERR_UNPACK_FAILURE);
        return 0;
    }
    in->items -= count;
    return count;
}
