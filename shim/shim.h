/* Internal functions of the shim: bytes, values, link. */
#ifndef WIREUP_SHIM_H
#define WIREUP_SHIM_H

#include <stdbool.h>

#include "host.h"

/* ---- bytes.c: growing output, bounded input, arena ---- */

/* A frame under construction: room for the header, then the payload. Errors stick: when failed is
 * set, everything appended since is void. */
struct out {
    uint8_t *data;
    size_t len;
    size_t room;
    uint32_t items; /* list elements so far */
    bool failed;    /* no memory, or over a limit */
};

void out_init(struct out *o);
void out_free(struct out *o);
void put_u8(struct out *o, uint8_t v);
void put_u16(struct out *o, uint16_t v);
void put_u32(struct out *o, uint32_t v);
void put_u64(struct out *o, uint64_t v);
void put_bytes(struct out *o, const void *bytes, size_t len);
void put_text(struct out *o, const char *text);                    /* NULL counts as "" */
void put_text_upto(struct out *o, const char *text, size_t limit); /* limit: size of the array */
void put_count(struct out *o, size_t count);
/* Writes the header and returns the frame, which the caller frees; NULL if failed. Either way
 * o is empty afterwards. */
uint8_t *out_finish(struct out *o, uint16_t op, uint64_t id, size_t *len);

/* Memory that is freed all at once; zeroed. */
struct arena {
    struct block *blocks;
    uint8_t *next;
    size_t left;
};

void *arena_alloc(struct arena *a, size_t size); /* NULL without memory */
bool arena_adopt(struct arena *a, void *memory); /* frees memory with the arena, or now if false */
void arena_free(struct arena *a);

/* A payload being read. The first error sticks in status; all reads then yield zero. */
struct in {
    const uint8_t *next;
    const uint8_t *end;
    struct arena *arena;
    uint32_t items; /* list elements still allowed */
    pmix_status_t status;
};

void in_init(struct in *in, const uint8_t *bytes, size_t len, struct arena *arena);
bool in_fail(struct in *in, pmix_status_t status); /* returns false */
bool in_ok(const struct in *in);
uint8_t take_u8(struct in *in);
uint16_t take_u16(struct in *in);
uint32_t take_u32(struct in *in);
uint64_t take_u64(struct in *in);
const uint8_t *take_bytes(struct in *in, size_t *len); /* inside the payload */
char *take_text(struct in *in, size_t *len);           /* terminated, in the arena; len may be NULL */
size_t take_count(struct in *in);

/* ---- encode.c, decode.c: PMIx structures ---- */

void put_proc(struct out *o, const pmix_proc_t *proc); /* NULL counts as "", PMIX_RANK_UNDEF */
void put_byte_object(struct out *o, const pmix_byte_object_t *object); /* NULL counts as no bytes */
void put_procs(struct out *o, const pmix_proc_t *procs, size_t count);
void put_infos(struct out *o, const pmix_info_t *infos, size_t count);
void put_codes(struct out *o, const pmix_status_t *codes, size_t count);
void put_texts(struct out *o, char *const *texts); /* up to the NULL behind the last; NULL counts as none */
void put_queries(struct out *o, const pmix_query_t *queries, size_t count);
void put_apps(struct out *o, const pmix_app_t *apps, size_t count);
/* Takes an info list whose memory is in the arena. Infos of types that cannot be rebuilt are left out,
 * or make the list fail with PMIX_ERR_NOT_SUPPORTED if they are required. */
pmix_info_t *take_infos(struct in *in, size_t *count);
/* Takes a list of published values whose memory is in the arena. Those of types that cannot be rebuilt
 * are left out. */
pmix_pdata_t *take_pdata(struct in *in, size_t *count);

struct wireup_infos {
    struct arena arena;
    pmix_info_t *items;
    size_t count;
};

/* ---- pending.c: upcalls that wait for their answer ---- */

/* The kind of libpmix's callback. */
struct completion {
    enum {
        COMPLETE_OP,
        COMPLETE_MODEX,
        COMPLETE_INFO,
        COMPLETE_GROUP,
        COMPLETE_LOOKUP,
        COMPLETE_SPAWN,
        COMPLETE_CREDENTIAL,
        COMPLETE_VALIDATION,
        COMPLETE_TOOL
    } kind;
    union {
        pmix_op_cbfunc_t op;
        pmix_modex_cbfunc_t modex;
        pmix_info_cbfunc_t info;
        pmix_lookup_cbfunc_t lookup;
        pmix_spawn_cbfunc_t spawn;
        pmix_credential_cbfunc_t credential;
        pmix_validation_cbfunc_t validation;
        pmix_tool_connection_cbfunc_t tool;
    } call;
    void *cbdata;
};

/* The answer of the agent. */
struct answer {
    pmix_status_t status;
    uint8_t *frame; /* payload that data points into; taken over by complete() */
    const uint8_t *data;
    size_t data_len;
    wireup_infos_t *infos; /* taken over by complete(); may be NULL */
    pmix_pdata_t *found;   /* of a lookup, in the arena of infos */
    size_t found_count;
};

/* Adds an entry; returns its id, or 0 if the table is closed or out of memory. */
uint64_t pending_add(uint16_t op, const struct completion *completion);
/* Removes an entry; returns true exactly once per id, and only for the operation it was added with. */
bool pending_take(uint64_t id, uint16_t op, struct completion *completion);
/* Removes any entry, for teardown; from now on the table refuses new ones. */
bool pending_drain(struct completion *completion);
/* Calls libpmix back. Never call on a thread that is inside an upcall. */
void complete(const struct completion *completion, struct answer *answer);

/* ---- link.c: the upcall socket ---- */

/* Sends the frame as a notice and frees o. PMIX_SUCCESS, or an error: nothing was sent. */
pmix_status_t link_notice(struct out *o, uint16_t op);
/* Reports that the answer to a spawn has been passed on: libpmix forwards the output that its caller wants. */
void notice_of_spawn(const char *nspace, size_t len);
/* Sends the frame as a request and frees o. With PMIX_SUCCESS the completion is called exactly once, otherwise
 * nothing was sent and it is never called. */
pmix_status_t link_request(struct out *o, uint16_t op, const struct completion *completion);
/* Sends a request whose completion was added to the table before, and empties o. If that fails the
 * completion is called. Not from an upcall. */
void link_forward(uint64_t id, uint16_t op, struct out *o);
/* Has the reader thread complete a request with status; for upcalls that cannot refuse. */
void link_refuse_later(const struct completion *completion, pmix_status_t status);

/* ---- kept.c: files that libpmix must not remove ---- */

/* Remembers the directories of which a client asked to remove only empty ones. Returns false without
 * memory. */
bool keep_files(const pmix_info_t directives[], size_t count);

/* ---- munge.c: credentials of munge ---- */

/* Makes a credential; if munge cannot and may_forward is set, the agent gets the request instead. */
pmix_status_t munge_make(struct out *request, uint16_t op, bool may_forward,
                         const struct completion *completion);
/* Whether a credential is munge's; NULL is no credential. */
bool munge_made(const pmix_byte_object_t *credential);
/* Checks a credential of munge. */
pmix_status_t munge_check(struct out *request, uint16_t op, const pmix_byte_object_t *credential,
                          const struct completion *completion);
/* Ends callbacks to libpmix from munge's thread. Pending requests are left to the table. */
void munge_stop(void);

/* ---- credentials.c: upcalls; see pmix_server.h ---- */

pmix_status_t credential_get(const pmix_proc_t *proc, const pmix_info_t directives[], size_t ndirs,
                             pmix_credential_cbfunc_t cbfunc, void *cbdata);
pmix_status_t credential_validate(const pmix_proc_t *proc, const pmix_byte_object_t *cred,
                                  const pmix_info_t directives[], size_t ndirs,
                                  pmix_validation_cbfunc_t cbfunc, void *cbdata);

#endif
