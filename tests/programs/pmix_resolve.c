/*
 * pmix_resolve [NSPACE]
 *
 * Asks where processes are, of the own job and of others. Rank 0 spawns three processes of the same
 * program, which are given the name of the job that spawned them. Every process of both jobs prints
 *     pmix_resolve job=parent|child rank=R host=H own=MAP other=MAP all=MAP local=RANKS
 * A MAP is what PMIx_Resolve_nodes and PMIx_Resolve_peers say of a job, of the other one, and of all
 * jobs: NODE:RANKS,...; RANKS has a p before ranks of the first job and a c before those of the other.
 * `local` has the processes that PMIX_LOCAL_PROCS names, with the wildcard rank and, but in libpmix 4.2,
 * which has nothing of a node with the own one, the same with that; in the first job it is read before the
 * other one is there.
 */
#include "client.h"
#include <pmix.h>

static char parent[PMIX_MAX_NSLEN + 1];
static char child[PMIX_MAX_NSLEN + 1];

/* Appends processes, in the order given. */
static void append(char *text, size_t room, const pmix_proc_t *procs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(text);
        hold(PMIX_CHECK_NSPACE(procs[i].nspace, parent) || PMIX_CHECK_NSPACE(procs[i].nspace, child),
             "a process of one of the two jobs");
        snprintf(text + used, room - used, "%c%u", PMIX_CHECK_NSPACE(procs[i].nspace, parent) ? 'p' : 'c',
                 procs[i].rank);
    }
}

/* The map of a job, or of all if its name is empty. */
static void map(const char *name, char *text, size_t room)
{
    pmix_nspace_t nspace;
    char *nodes = NULL;
    PMIX_LOAD_NSPACE(nspace, name);
    must(PMIx_Resolve_nodes(nspace, &nodes), "PMIx_Resolve_nodes");
    hold(nodes != NULL, "a list of nodes");
    text[0] = '\0';
    char *rest = NULL;
    for (char *node = strtok_r(nodes, ",", &rest); node != NULL; node = strtok_r(NULL, ",", &rest)) {
        pmix_proc_t *procs = NULL;
        size_t count = 0;
        must(PMIx_Resolve_peers(node, nspace, &procs, &count), "PMIx_Resolve_peers");
        hold(count > 0, "processes on a node of the job");
        const size_t used = strlen(text);
        snprintf(text + used, room - used, "%s%s:", used == 0 ? "" : ",", node);
        append(text, room, procs, count);
        PMIX_PROC_FREE(procs, count);
    }
    free(nodes);
}

/* The processes of this node. */
static void local(char *text, size_t room)
{
    pmix_proc_t all;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    const pmix_proc_t *names[] = {&all, &me};
    char both[2][256] = {"", ""};
    const size_t count = libpmix() < 5 ? 1 : 2;
    for (size_t i = 0; i < count; i++) {
        pmix_value_t *value = NULL;
        must(PMIx_Get(names[i], PMIX_LOCAL_PROCS, NULL, 0, &value), "PMIX_LOCAL_PROCS");
        hold(value->type == PMIX_DATA_ARRAY && value->data.darray->type == PMIX_PROC, "an array of procs");
        append(both[i], sizeof both[i], value->data.darray->array, value->data.darray->size);
        PMIX_VALUE_RELEASE(value);
    }
    hold(strcmp(both[0], both[count - 1]) == 0, "the same of the job and of this process");
    snprintf(text, room, "%s", both[0]);
}

/* Of a job that does not exist nothing must be said. */
static void ask_of_none(void)
{
    pmix_proc_t *procs = NULL;
    size_t count = 0;
    char *nodes = NULL;
    char host[256];
    pmix_nspace_t nobodys;
    gethostname(host, sizeof host);
    PMIX_LOAD_NSPACE(nobodys, "nobodys-job");
    const pmix_status_t of_peers = PMIx_Resolve_peers(host, nobodys, &procs, &count);
    const pmix_status_t of_nodes = PMIx_Resolve_nodes(nobodys, &nodes);
    hold(procs == NULL && count == 0 && nodes == NULL, "nothing");
    hold(of_peers != PMIX_SUCCESS && of_nodes != PMIX_SUCCESS, "no success");
}

/* Tells all ranks of this job the name of the other one. */
static void share_child(void)
{
    pmix_proc_t first;
    pmix_value_t value, *found = NULL;
    PMIX_LOAD_PROCID(&first, me.nspace, 0);
    if (me.rank == 0) {
        PMIX_VALUE_LOAD(&value, child, PMIX_STRING);
        must(PMIx_Put(PMIX_GLOBAL, "child", &value), "PMIx_Put");
        must(PMIx_Commit(), "PMIx_Commit");
    }
    fence(true);
    must(PMIx_Get(&first, "child", NULL, 0, &found), "the children's job");
    snprintf(child, sizeof child, "%s", found->data.string);
    PMIX_VALUE_RELEASE(found);
}

/* Something that all processes of both jobs do. */
static void together(pmix_status_t act(const pmix_proc_t[], size_t, const pmix_info_t[], size_t))
{
    pmix_proc_t both[2];
    PMIX_LOAD_PROCID(&both[0], parent, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&both[1], child, PMIX_RANK_WILDCARD);
    must(act(both, 2, NULL, 0), "what both jobs do");
}

int main(int argc, char **argv)
{
    static char own[4096], other[4096], all[8192], here[256];
    pmix_value_t *value = NULL;
    names_job = true;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const bool spawned = argc == 2;
    snprintf(parent, sizeof parent, "%s", spawned ? argv[1] : me.nspace);
    snprintf(child, sizeof child, "%s", spawned ? me.nspace : "");
    local(here, sizeof here);
    if (!spawned) {
        barrier(); /* the children come when all have read who is here */
        if (me.rank == 0) {
            char *words[] = {argv[0], parent, NULL};
            must(spawn_program(words, 3, NULL, 0, child), "PMIx_Spawn");
        }
        share_child();
    }
    /* 4.2 does not find the other nodes of a job of which no process here is known to its server yet. */
    if (libpmix() < 5)
        together(PMIx_Connect);
    map(me.nspace, own, sizeof own);
    map(spawned ? parent : child, other, sizeof other);
    map("", all, sizeof all);
    ask_of_none();
    must(PMIx_Get(&me, PMIX_HOSTNAME, NULL, 0, &value), "the own host");
    report("pmix_resolve job=%s rank=%u host=%s own=%.900s other=%.900s all=%.1800s local=%.200s",
           spawned ? "child" : "parent", me.rank, value->data.string, own, other, all, here);
    PMIX_VALUE_RELEASE(value);
    /* Neither job ends before the other one has asked. */
    together(libpmix() < 5 ? PMIx_Disconnect : PMIx_Connect);
    PMIx_Finalize(NULL, 0);
    return 0;
}
