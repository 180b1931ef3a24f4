/* The upcalls for credentials: munge makes and checks its own kind, the agent wireup's kind. */
#include <string.h>

#include "shim.h"

/*
 * The kinds of credentials in the order of the caller's preference: its list PMIX_CRED_TYPE; without a
 * list munge's, then wireup's.
 */
struct kinds {
    bool munge;
    bool own;
    bool own_first;
};

static struct kinds kinds_of(const pmix_info_t infos[], size_t count)
{
    const char *list = "munge,wireup";
    for (size_t i = 0; infos != NULL && i < count; i++) {
        if (strncmp(infos[i].key, PMIX_CRED_TYPE, PMIX_MAX_KEYLEN) == 0
            && infos[i].value.type == PMIX_STRING && infos[i].value.data.string != NULL) {
            list = infos[i].value.data.string;
        }
    }
    struct kinds kinds = {0};
    for (const char *at = list; *at != '\0'; at += strspn(at, ",")) {
        const size_t len = strcspn(at, ",");
        if (len == 5 && strncmp(at, "munge", len) == 0) {
            kinds.munge = true;
        } else if (len == 6 && strncmp(at, "wireup", len) == 0) {
            kinds.own = true;
            kinds.own_first |= !kinds.munge;
        }
        at += len;
    }
    return kinds;
}

pmix_status_t credential_get(const pmix_proc_t *proc, const pmix_info_t directives[], size_t ndirs,
                             pmix_credential_cbfunc_t cbfunc, void *cbdata)
{
    const struct kinds kinds = kinds_of(directives, ndirs);
    if (!kinds.munge && !kinds.own) {
        return PMIX_ERR_NOT_SUPPORTED;
    }
    struct completion completion = {COMPLETE_CREDENTIAL, {.credential = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_infos(&o, directives, ndirs);
    if (kinds.own_first) {
        return link_request(&o, WIREUP_OP_GET_CREDENTIAL, &completion);
    }
    return munge_make(&o, WIREUP_OP_GET_CREDENTIAL, kinds.own, &completion);
}

pmix_status_t credential_validate(const pmix_proc_t *proc, const pmix_byte_object_t *cred,
                                  const pmix_info_t directives[], size_t ndirs,
                                  pmix_validation_cbfunc_t cbfunc, void *cbdata)
{
    const struct kinds kinds = kinds_of(directives, ndirs);
    const bool munge = munge_made(cred);
    if (munge ? !kinds.munge : !kinds.own) {
        return PMIX_ERR_NOT_SUPPORTED;
    }
    struct completion completion = {COMPLETE_VALIDATION, {.validation = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_byte_object(&o, cred);
    put_infos(&o, directives, ndirs);
    if (munge) {
        return munge_check(&o, WIREUP_OP_VALIDATE_CREDENTIAL, cred, &completion);
    }
    return link_request(&o, WIREUP_OP_VALIDATE_CREDENTIAL, &completion);
}
