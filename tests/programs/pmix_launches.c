/*
 * pmix_launches WHAT...
 *
 * One rank of a launch among others that know nothing of each other but keys. Does what it is told in
 * order:
 *   offer KEY PERSISTENCE   publishes its own key as a text; first, proc, app, session or indef
 *   want KEY SECONDS        looks it up and waits so long for it; 0 for as long as it takes
 *   look KEY                looks it up
 *   withdraw KEY            withdraws it
 *   tell KEY                publishes the name of its job
 *   join KEY SECONDS        connects with the job whose name is told, and waits so long for it
 *   part KEY                disconnects from it
 *   miss KEY SECONDS        gets what its rank 0 never puts, and waits so long for it
 * and prints for each, once it is answered
 *     pmix_launches did=WHAT key=KEY status=STATUS
 * and before a want
 *     pmix_launches waits=KEY
 */
#include "client.h"
#include <pmix.h>

static int number_of(const char *persistence)
{
    static const char *const names[] = {"indef", "first", "proc", "app", "session"};
    for (int i = 0; i < 5; i++)
        if (strcmp(names[i], persistence) == 0)
            return i;
    fail(2, "pmix_launches: no persistence is called %s", persistence);
}

static pmix_status_t offer(const char *key, const char *persistence)
{
    pmix_info_t infos[2];
    pmix_persistence_t number = (pmix_persistence_t)number_of(persistence);
    PMIX_INFO_LOAD(&infos[0], key, key, PMIX_STRING);
    PMIX_INFO_LOAD(&infos[1], PMIX_PERSISTENCE, &number, PMIX_PERSIST);
    return PMIx_Publish(infos, 2);
}

static pmix_status_t look(const char *key, int seconds)
{
    pmix_pdata_t data;
    pmix_status_t status = look_up_one(&data, key, seconds);
    if (status == PMIX_SUCCESS && strcmp(data.value.data.string, key) != 0)
        fail(1, "pmix_launches: found %s under %s", data.value.data.string, key);
    return status;
}

static pmix_status_t tell(const char *key)
{
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, key, me.nspace, PMIX_STRING);
    return PMIx_Publish(&info, 1);
}

/* All ranks of both jobs. */
static void both(const char *key, pmix_proc_t procs[2])
{
    pmix_pdata_t data;
    pmix_info_t info;
    int all = 0;
    PMIX_PDATA_CONSTRUCT(&data);
    snprintf(data.key, sizeof(data.key), "%s", key);
    PMIX_INFO_LOAD(&info, PMIX_WAIT, &all, PMIX_INT);
    if (PMIx_Lookup(&data, 1, &info, 1) != PMIX_SUCCESS)
        fail(1, "pmix_launches: nobody has told %s", key);
    const char *other = data.value.data.string;
    bool first = strcmp(me.nspace, other) < 0;
    PMIX_LOAD_PROCID(&procs[0], first ? me.nspace : other, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&procs[1], first ? other : me.nspace, PMIX_RANK_WILDCARD);
}

static pmix_status_t join(const char *key, int seconds)
{
    pmix_proc_t procs[2];
    pmix_info_t info;
    both(key, procs);
    report("pmix_launches joins=%s", key);
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
    return PMIx_Connect(procs, 2, &info, 1);
}

static pmix_status_t part(const char *key)
{
    pmix_proc_t procs[2];
    both(key, procs);
    return PMIx_Disconnect(procs, 2, NULL, 0);
}

static pmix_status_t miss(const char *key, int seconds)
{
    pmix_proc_t procs[2];
    pmix_value_t *value = NULL;
    pmix_info_t info;
    both(key, procs);
    pmix_proc_t other = procs[strcmp(procs[0].nspace, me.nspace) == 0];
    other.rank = 0;
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Get(&other, "never put", &info, 1, &value);
    if (status == PMIX_SUCCESS)
        fail(1, "pmix_launches: %s has put something", other.nspace);
    return status;
}

int main(int argc, char **argv)
{
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    for (int i = 1; i + 1 < argc; i++) {
        const char *what = argv[i], *key = argv[++i];
        pmix_status_t status;
        if (strcmp(what, "offer") == 0 && i + 1 < argc) {
            status = offer(key, argv[++i]);
        } else if (strcmp(what, "want") == 0 && i + 1 < argc) {
            report("pmix_launches waits=%s", key);
            status = look(key, atoi(argv[++i]));
        } else if (strcmp(what, "join") == 0 && i + 1 < argc) {
            status = join(key, atoi(argv[++i]));
        } else if (strcmp(what, "miss") == 0 && i + 1 < argc) {
            status = miss(key, atoi(argv[++i]));
        } else if (strcmp(what, "tell") == 0) {
            status = tell(key);
        } else if (strcmp(what, "part") == 0) {
            status = part(key);
        } else if (strcmp(what, "look") == 0) {
            status = look(key, -1);
        } else if (strcmp(what, "withdraw") == 0) {
            char *keys[] = {(char *)key, NULL};
            status = PMIx_Unpublish(keys, NULL, 0);
        } else {
            fail(2, "pmix_launches: what is %s %s?", what, key);
        }
        report("pmix_launches did=%s key=%s status=%s", what, key, PMIx_Error_string(status));
    }
    PMIx_Finalize(NULL, 0);
    return 0;
}
