/*
 * pmix_families MODE
 *
 * Groups of two jobs: rank 0 of two parents spawns two children, which are this program too, and all
 * four make groups. Each that comes to the end prints
 *     pmix_families rank=R who=parent|child contexts=ID,ID,... heard=TEXT
 * with the context ids of its groups, and of whom it heard that they died ("-").
 *
 *   make     a group of all, three times; and groups of one parent and one child at once
 *   notify   child 1 is killed in a group whose members want to hear of that
 */
#include "client.h"
#include <pmix.h>
#include <signal.h>

static pmix_proc_t family[4]; /* two parents, two children */
static size_t own;            /* which of them this is */
static char contexts[256] = "-", heard[256] = "-";

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                     size_t count, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id, (void)status, (void)infos, (void)count, (void)results, (void)nresults;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < 4; i++)
        if (PMIX_CHECK_PROCID(source, &family[i]))
            snprintf(heard, sizeof heard, "%s%zu", i < 2 ? "parent" : "child", i % 2);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    handled(done, done_data);
}

/* The child job's name, from the parent that spawned it to the other. */
static void learn_children(const char *mode, char **argv)
{
    char *words[] = {argv[0], (char *)mode, NULL};
    pmix_nspace_t child;
    pmix_info_t info;
    if (me.rank == 0) {
        must(spawn_program(words, 2, NULL, 0, child), "PMIx_Spawn");
        PMIX_INFO_LOAD(&info, "org.example.children", child, PMIX_STRING);
        must(PMIx_Publish(&info, 1), "PMIx_Publish");
    } else {
        pmix_pdata_t found;
        must(look_up_one(&found, "org.example.children", 60), "PMIx_Lookup");
        PMIX_LOAD_NSPACE(child, found.value.data.string);
    }
    for (pmix_rank_t rank = 0; rank < 2; rank++) {
        PMIX_LOAD_PROCID(&family[rank], me.nspace, rank);
        PMIX_LOAD_PROCID(&family[2 + rank], child, rank);
    }
    own = me.rank;
}

static void learn_parents(const pmix_value_t *parent)
{
    for (pmix_rank_t rank = 0; rank < 2; rank++) {
        PMIX_LOAD_PROCID(&family[rank], parent->data.proc->nspace, rank);
        PMIX_LOAD_PROCID(&family[2 + rank], me.nspace, rank);
    }
    own = 2 + me.rank;
}

/* Makes a group of some of the family with a context id, which it notes. */
static void construct(const char *name, const size_t *which, size_t count, const char *directive)
{
    pmix_proc_t procs[4];
    pmix_info_t infos[2], *results = NULL;
    size_t ninfo = 0, nresults = 0, context = 0;
    for (size_t i = 0; i < count; i++)
        procs[i] = family[which[i]];
    PMIX_INFO_LOAD(&infos[ninfo++], PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    if (directive != NULL)
        PMIX_INFO_LOAD(&infos[ninfo++], directive, NULL, PMIX_BOOL);
    must(PMIx_Group_construct(name, procs, count, infos, ninfo, &results, &nresults), name);
    for (size_t i = 0; i < nresults; i++) {
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID))
            context = results[i].value.data.size;
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_MEMBERSHIP))
            hold(results[i].value.data.darray->size == count, "all are members");
    }
    hold(context != 0 && context != SIZE_MAX, "there is a context id");
    size_t used = contexts[0] == '-' ? 0 : strlen(contexts);
    snprintf(contexts + used, sizeof contexts - used, "%s%zu", used == 0 ? "" : ",", context);
}

static void destruct(const char *name)
{
    must(PMIx_Group_destruct(name, NULL, 0), "PMIx_Group_destruct");
}

static const size_t ALL[] = {0, 1, 2, 3};

static void make(void)
{
    static const size_t pairs[][2] = {{0, 2}, {1, 3}};
    const size_t mine = own % 2;
    for (int round = 0; round < 3; round++) {
        construct("all", ALL, 4, NULL);
        destruct("all");
    }
    construct(mine == 0 ? "even" : "odd", pairs[mine], 2, NULL);
    destruct(mine == 0 ? "even" : "odd");
}

static void notify(void)
{
    pmix_status_t code = PMIX_GROUP_MEMBER_FAILED;
    PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, NULL, NULL);
    construct("all", ALL, 4, NULL);
    destruct("all");
    construct("watched", ALL, 4, PMIX_GROUP_NOTIFY_TERMINATION);
    if (own == 3)
        raise(SIGKILL);
    WAIT_UNTIL(heard[0] != '-');
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    pmix_value_t *parent = NULL;
    names_job = true;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const bool spawned = PMIx_Get(&me, PMIX_PARENT_ID, NULL, 0, &parent) == PMIX_SUCCESS;
    if (spawned)
        learn_parents(parent);
    else
        learn_children(mode, argv);
    if (strcmp(mode, "make") == 0)
        make();
    else if (strcmp(mode, "notify") == 0)
        notify();
    else
        fail(2, "pmix_families MODE");
    report("pmix_families rank=%u who=%s contexts=%s heard=%s", me.rank, spawned ? "child" : "parent",
           contexts, heard);
    PMIx_Finalize(NULL, 0);
    return 0;
}
