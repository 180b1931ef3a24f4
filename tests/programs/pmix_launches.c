/*
 * pmix_launches WHAT...
 *
 * One rank of a launch among others that know nothing of each other but keys. Does what it gets in
 * order:
 *   offer KEY PERSISTENCE   publishes its own key as a text; first, proc, app, session or indef
 *   brief KEY SECONDS       publishes it for so many seconds (NAMEPUB_EXPIRE)
 *   few KEY COUNT           publishes it for so many lookups (NAMEPUB_REFCOUNT)
 *   lose KEY SECONDS        looks it up until it is not there any more, for so long at most
 *   want KEY SECONDS        looks it up and waits so long for it; 0 for as long as it takes
 *   look KEY                looks it up
 *   withdraw KEY            withdraws it
 *   tell KEY                publishes the name of its job
 *   join KEY SECONDS        connects with the job whose name it gets, and waits this long for it
 *   part KEY                disconnects from it
 *   miss KEY SECONDS        gets what its rank 0 never puts, and waits so long for it
 * and prints for each, once it is answered
 *     pmix_launches did=WHAT key=KEY status=STATUS
 * and once a want has got as far as the rendezvous
 *     pmix_launches waits=KEY
 */
#include "client.h"
#include <pmix.h>
#include <time.h>

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

/* With a key of MPICH's interface for publishing names, which is text. */
static pmix_status_t limited(const char *key, const char *limit, const char *number)
{
    pmix_info_t infos[2];
    PMIX_INFO_LOAD(&infos[0], key, key, PMIX_STRING);
    PMIX_INFO_LOAD(&infos[1], limit, number, PMIX_STRING);
    return PMIx_Publish(infos, 2);
}

static pmix_status_t look(const char *key)
{
    pmix_pdata_t data;
    pmix_status_t status = look_up_one(&data, key, -1);
    if (status == PMIX_SUCCESS && strcmp(data.value.data.string, key) != 0)
        fail(1, "pmix_launches: found %s under %s", data.value.data.string, key);
    return status;
}

static pmix_status_t lose(const char *key, int seconds)
{
    const struct timespec moment = {0, 10 * 1000 * 1000};
    pmix_status_t status;
    for (int left = seconds * 100; (status = look(key)) == PMIX_SUCCESS && left > 0; left--)
        nanosleep(&moment, NULL);
    return status;
}

struct found {
    const char *key;
    bool answered;
    pmix_status_t status;
};

static void on_found(pmix_status_t status, pmix_pdata_t *data, size_t ndata, void *argument)
{
    struct found *found = argument;
    if (status == PMIX_SUCCESS && (ndata != 1 || strcmp(data->value.data.string, found->key) != 0))
        fail(1, "pmix_launches: found something else under %s", found->key);
    CHANGE(found->status = status; found->answered = true);
}

static pmix_status_t want(const char *key, int seconds)
{
    struct found found = {.key = key};
    int all = 0;
    pmix_info_t infos[2];
    char *keys[] = {(char *)key, NULL};
    PMIX_INFO_LOAD(&infos[0], PMIX_WAIT, &all, PMIX_INT);
    PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    must(PMIx_Lookup_nb(keys, infos, 2, on_found, &found), "PMIx_Lookup_nb");
    /* Requests of one rank arrive in order: what comes after has an answer, so this one is there. */
    look("never offered");
    report("pmix_launches waits=%s", key);
    WAIT_UNTIL(found.answered);
    return found.status;
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
        } else if (strcmp(what, "brief") == 0 && i + 1 < argc) {
            status = limited(key, "NAMEPUB_EXPIRE", argv[++i]);
        } else if (strcmp(what, "few") == 0 && i + 1 < argc) {
            status = limited(key, "NAMEPUB_REFCOUNT", argv[++i]);
        } else if (strcmp(what, "lose") == 0 && i + 1 < argc) {
            status = lose(key, atoi(argv[++i]));
        } else if (strcmp(what, "want") == 0 && i + 1 < argc) {
            status = want(key, atoi(argv[++i]));
        } else if (strcmp(what, "join") == 0 && i + 1 < argc) {
            status = join(key, atoi(argv[++i]));
        } else if (strcmp(what, "miss") == 0 && i + 1 < argc) {
            status = miss(key, atoi(argv[++i]));
        } else if (strcmp(what, "tell") == 0) {
            status = tell(key);
        } else if (strcmp(what, "part") == 0) {
            status = part(key);
        } else if (strcmp(what, "look") == 0) {
            status = look(key);
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
