/*
 * pmix_credential MODE [FILE]
 *
 * Credentials through PMIx. Each rank makes one, gets everybody's, and validates them; those that come
 * to the end print
 *     pmix_credential rank=R kind=KIND
 * with the kind that PMIx says the rank's own is of.
 *
 *   own      those of the launch; of everybody, also twice; changed ones are refused
 *   any      whichever comes first; that of the next rank
 *   munge    munge's; that of the next rank, which is refused the second time
 *   none     kinds that there are not here: munge's, and an unknown one
 *   write    writes one of the launch to FILE
 *   read     the one in FILE is refused
 */
#include "client.h"
#include <pmix.h>

static pmix_status_t get(const char *kinds, pmix_byte_object_t *credential)
{
    pmix_info_t info;
    PMIX_BYTE_OBJECT_CONSTRUCT(credential);
    if (kinds == NULL)
        return PMIx_Get_credential(NULL, 0, credential);
    PMIX_INFO_LOAD(&info, PMIX_CRED_TYPE, kinds, PMIX_STRING);
    PMIX_INFO_REQUIRED(&info);
    return PMIx_Get_credential(&info, 1, credential);
}

/* Whose a credential is: the caller's user and group, and that rank if it tells one. */
static pmix_status_t check(const pmix_byte_object_t *credential, pmix_rank_t rank, char kind[32])
{
    pmix_info_t *infos = NULL;
    size_t count = 0, ids = 0;
    pmix_status_t status = PMIx_Validate_credential(credential, NULL, 0, &infos, &count);
    for (size_t i = 0; i < count; i++) {
        const pmix_value_t *value = &infos[i].value;
        if (PMIX_CHECK_KEY(&infos[i], PMIX_USERID) && value->data.uint32 == (uint32_t)geteuid())
            ids++;
        else if (PMIX_CHECK_KEY(&infos[i], PMIX_GRPID) && value->data.uint32 == (uint32_t)getegid())
            ids++;
        else if (PMIX_CHECK_KEY(&infos[i], PMIX_CRED_TYPE))
            snprintf(kind, 32, "%s", value->data.string);
        else if (PMIX_CHECK_KEY(&infos[i], PMIX_PROCID)) {
            if (value->data.proc->rank != rank || strcmp(value->data.proc->nspace, me.nspace) != 0)
                fail(1, "pmix_credential rank=%u: it is of rank %u of %s", me.rank,
                     value->data.proc->rank, value->data.proc->nspace);
        } else
            fail(1, "pmix_credential rank=%u: %s in the answer", me.rank, infos[i].key);
    }
    if (status == PMIX_SUCCESS && ids != 2)
        fail(1, "pmix_credential rank=%u: user or group is missing or wrong", me.rank);
    return status;
}

static uint32_t share(const pmix_byte_object_t *credential)
{
    pmix_value_t value;
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo = *credential;
    must(PMIx_Put(PMIX_GLOBAL, "credential", &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");
    fence(true);
    return size_of(me.nspace);
}

static pmix_value_t *of(pmix_rank_t rank)
{
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    must(PMIx_Get(&proc, "credential", NULL, 0, &value), "PMIx_Get");
    return value;
}

static void own(char kind[32])
{
    pmix_byte_object_t mine;
    must(get("kerberos,wireup", &mine), "getting one");
    const uint32_t size = share(&mine);
    for (pmix_rank_t rank = 0; rank < size; rank++)
        for (int i = 0; i < 2; i++)
            must(check(&of(rank)->data.bo, rank, kind), "validating one");
    for (size_t at = 0; at < mine.size; at += 7) {
        char *byte = &mine.bytes[at];
        const char was = *byte;
        *byte = was == '0' ? '1' : '0';
        expect(PMIX_ERR_INVALID_CRED, check(&mine, me.rank, kind), "a changed one");
        *byte = was;
    }
    mine.size /= 2;
    expect(PMIX_ERR_INVALID_CRED, check(&mine, me.rank, kind), "half of one");
}

static void of_next(const char *kinds, bool twice, char kind[32])
{
    pmix_byte_object_t mine;
    must(get(kinds, &mine), "getting one");
    const pmix_rank_t next = (me.rank + 1) % share(&mine);
    const pmix_byte_object_t *theirs = &of(next)->data.bo;
    must(check(theirs, next, kind), "validating one");
    if (twice)
        expect(PMIX_ERR_INVALID_CRED, check(theirs, next, kind), "validating it again");
}

static void none(void)
{
    pmix_byte_object_t credential;
    char kind[32], forged[] = "MUNGE:AwQFAADzd0:";
    expect(PMIX_ERR_NOT_SUPPORTED, get("munge", &credential), "munge's");
    expect(PMIX_ERR_NOT_SUPPORTED, get("kerberos", &credential), "an unknown kind");
    credential.bytes = forged;
    credential.size = sizeof forged;
    expect(PMIX_ERR_NOT_SUPPORTED, check(&credential, 0, kind), "validating munge's");
    credential.size = 3;
    expect(PMIX_ERR_INVALID_CRED, check(&credential, 0, kind), "validating nonsense");
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    char kind[32] = "none", text[4096];
    pmix_byte_object_t credential;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (strcmp(mode, "own") == 0)
        own(kind);
    else if (strcmp(mode, "any") == 0)
        of_next(NULL, false, kind);
    else if (strcmp(mode, "munge") == 0)
        of_next("munge", true, kind);
    else if (strcmp(mode, "none") == 0)
        none();
    else if (strcmp(mode, "write") == 0 && argc == 3) {
        must(get("wireup", &credential), "getting one");
        FILE *file = fopen(argv[2], "w");
        if (file == NULL || fputs(credential.bytes, file) < 0 || fclose(file) != 0)
            fail(1, "pmix_credential: %s: %s", argv[2], strerror(errno));
        must(check(&credential, me.rank, kind), "validating it");
    } else if (strcmp(mode, "read") == 0 && argc == 3) {
        FILE *file = fopen(argv[2], "r");
        if (file == NULL || fgets(text, sizeof text, file) == NULL)
            fail(1, "pmix_credential: %s: %s", argv[2], strerror(errno));
        fclose(file);
        credential.bytes = text;
        credential.size = strlen(text);
        expect(PMIX_ERR_INVALID_CRED, check(&credential, me.rank, kind), "another launch's");
    } else
        fail(2, "pmix_credential MODE [FILE]");
    report("pmix_credential rank=%u kind=%s", me.rank, kind);
    PMIx_Finalize(NULL, 0);
    return 0;
}
