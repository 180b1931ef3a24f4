/*
 * pmi2_api [WHAT RANK [ARGUMENT]]
 *
 * Uses all of Slurm's PMI-2 library but spawn. Without WHAT it goes through everything, checks what
 * it gets and prints for each part
 *     pmi2_init rank=R size=N appnum=A spawned=S universe=U
 *     pmi2_job rank=R jobid=J connect=RC disconnect=RC
 *     pmi2_kvs rank=R gets=N miss=RC foreign=RC
 *     pmi2_attributes rank=R mapping=M miss=FOUND
 *     pmi2_node rank=R leader=L ranks=N other=R found=FOUND
 *     pmi2_names rank=R missing=RC twice=RC after=RC
 *     pmi2_ring rank=R position=P size=N left=V right=V
 *     pmi2_api rank=R size=N finalized=RC
 * With WHAT, RANK does something and all others wait for it in a fence:
 *     abort RANK TEXT    PMI2_Abort
 *     exit RANK CODE     exits between init and finalize
 *     kill RANK SIGNAL   dies between init and finalize
 *     finalize RANK CODE finalizes and exits
 *     nothing RANK CODE  exits before init
 */
#include "common.h"
#include <signal.h>
#include <slurm/pmi2.h>

enum { LONGEST = 1024 };

static int rank, size;

/* Fails with the library's code unless it is that of success. */
static void good(int rc, const char *what)
{
    if (rc != PMI2_SUCCESS)
        fail(1, "pmi2_api rank=%d: %s: code %d", rank, what, rc);
}

static void same(const char *what, const char *got, const char *expected)
{
    if (strcmp(got, expected) != 0)
        fail(1, "pmi2_api rank=%d: %s is \"%s\" and not \"%s\"", rank, what, got, expected);
}

/* The first rank of this rank's node, from a mapping of whole blocks. */
static int leader_of(const char *mapping)
{
    int first = 0, skipped;
    const char *block = strchr(mapping, ',');
    if (strncmp(mapping, "(vector,(", 9) != 0)
        fail(1, "pmi2_api rank=%d: mapping %s", rank, mapping);
    while ((block = strchr(block, '(')) != NULL) {
        int node, nodes, each;
        if (sscanf(block, "(%d,%d,%d)%n", &node, &nodes, &each, &skipped) != 3)
            break;
        if (rank < first + nodes * each)
            return first + (rank - first) / each * each;
        first += nodes * each;
        block += skipped;
    }
    fail(1, "pmi2_api rank=%d: it is not in the mapping %s", rank, mapping);
}

static void job(char *jobid, size_t room)
{
    PMI2_Connect_comm_t none;
    int told;

    good(PMI2_Job_GetId(jobid, (int)room), "PMI2_Job_GetId");
    good(PMI2_Job_GetRank(&told), "PMI2_Job_GetRank");
    if (told != rank)
        fail(1, "pmi2_api rank=%d: PMI2_Job_GetRank says %d", rank, told);
    good(PMI2_Info_GetSize(&told), "PMI2_Info_GetSize");
    if (told < 1 || told > size)
        fail(1, "pmi2_api rank=%d: PMI2_Info_GetSize says %d", rank, told);
    /* Answered somehow: no program connects, but none may hang that does. */
    memset(&none, 0, sizeof none);
    int connect = PMI2_Job_Connect(jobid, &none), disconnect = PMI2_Job_Disconnect(jobid);
    report("pmi2_job rank=%d jobid=%s connect=%d disconnect=%d", rank, jobid, connect, disconnect);
}

static void kvs(const char *jobid)
{
    char key[64], value[LONGEST + 1], expected[LONGEST + 1];
    int length, gets = 0;

    snprintf(key, sizeof key, "card;%d", rank);
    fill_card(rank, value, LONGEST - 1);
    good(PMI2_KVS_Put(key, value), "PMI2_KVS_Put of the longest value");
    snprintf(key, sizeof key, "odd-%d", rank);
    snprintf(value, sizeof value, "%d;;=\\ #$%%;x y;", rank);
    good(PMI2_KVS_Put(key, value), "PMI2_KVS_Put of special characters");
    good(PMI2_KVS_Put("same", "same for all"), "PMI2_KVS_Put of the same pair by all");
    good(PMI2_KVS_Fence(), "PMI2_KVS_Fence");
    for (int peer = 0; peer < size; peer++, gets++) {
        /* With a job, without, with a hint and without. */
        const char *of = peer % 2 == 0 ? jobid : NULL;
        snprintf(key, sizeof key, "card;%d", peer);
        good(PMI2_KVS_Get(of, peer, key, value, sizeof value, &length), key);
        fill_card(peer, expected, LONGEST - 1);
        same(key, value, expected);
        if (length != LONGEST - 1)
            fail(1, "pmi2_api rank=%d: length %d of %s", rank, length, key);
        snprintf(key, sizeof key, "odd-%d", peer);
        good(PMI2_KVS_Get(of, PMI2_ID_NULL, key, value, sizeof value, &length), key);
        snprintf(expected, sizeof expected, "%d;;=\\ #$%%;x y;", peer);
        same(key, value, expected);
    }
    good(PMI2_KVS_Get(jobid, PMI2_ID_NULL, "same", value, sizeof value, &length), "same");
    same("same", value, "same for all");
    int miss = PMI2_KVS_Get(jobid, PMI2_ID_NULL, "no-such-key", value, sizeof value, &length);
    int foreign = PMI2_KVS_Get("no-such-job", 0, "same", value, sizeof value, &length);
    /* A second put replaces the first, once all have seen that and met again. */
    good(PMI2_KVS_Fence(), "a PMI2_KVS_Fence without puts");
    snprintf(key, sizeof key, "odd-%d", rank);
    good(PMI2_KVS_Put(key, "new"), "the second PMI2_KVS_Put");
    good(PMI2_KVS_Fence(), "the PMI2_KVS_Fence after it");
    snprintf(key, sizeof key, "odd-%d", (rank + 1) % size);
    good(PMI2_KVS_Get(jobid, PMI2_ID_NULL, key, value, sizeof value, &length), key);
    same(key, value, "new");
    report("pmi2_kvs rank=%d gets=%d miss=%d foreign=%d", rank, gets, miss, foreign);
}

static void attributes(char *mapping, size_t room, int universe)
{
    char value[LONGEST + 1];
    int found, absent, array[4] = {0}, length = 0;

    good(PMI2_Info_GetJobAttr("PMI_process_mapping", mapping, (int)room, &found), "the mapping");
    if (!found)
        fail(1, "pmi2_api rank=%d: no PMI_process_mapping", rank);
    good(PMI2_Info_GetJobAttr("no-such-attribute", value, sizeof value, &absent), "an absent one");
    good(PMI2_Info_GetJobAttrIntArray("universeSize", array, 4, &length, &found), "an array");
    if (!found || length != 1 || array[0] != universe)
        fail(1, "pmi2_api rank=%d: universeSize as array of %d: %d", rank, length, array[0]);
    report("pmi2_attributes rank=%d mapping=%s miss=%d", rank, mapping, absent);
}

static void node(int leader)
{
    char key[64], value[LONGEST + 1];
    int found, array[64], length;

    /* The leader answers those who asked for what they need before it is there. */
    good(PMI2_Info_GetNodeAttr("never-put", value, sizeof value, &found, 0), "an absent one");
    if (found)
        fail(1, "pmi2_api rank=%d: an attribute nobody put: %s", rank, value);
    if (rank == leader) {
        snprintf(value, sizeof value, "of;%d", rank);
        good(PMI2_Info_PutNodeAttr("from-leader", value), "PMI2_Info_PutNodeAttr");
        good(PMI2_Info_PutNodeAttr("array", "3,1,2"), "PMI2_Info_PutNodeAttr of an array");
    }
    good(PMI2_Info_GetNodeAttr("from-leader", value, sizeof value, &found, 1), "a wait");
    char expected[64];
    snprintf(expected, sizeof expected, "of;%d", leader);
    same("from-leader", value, expected);
    good(PMI2_Info_GetNodeAttr("array", value, sizeof value, &found, 1), "a wait for the array");
    good(PMI2_Info_GetNodeAttrIntArray("array", array, 64, &length, &found), "an array");
    if (!found || length != 3 || array[0] != 3 || array[1] != 1 || array[2] != 2)
        fail(1, "pmi2_api rank=%d: array of %d: %d, ...", rank, length, array[0]);
    good(PMI2_Info_GetNodeAttrIntArray("localRanks", array, 64, &length, &found), "localRanks");
    if (!found || array[0] != leader)
        fail(1, "pmi2_api rank=%d: %d localRanks from %d on", rank, length, array[0]);
    /* Everybody puts something, and asks for what was put on another node. */
    snprintf(key, sizeof key, "from-%d", rank);
    good(PMI2_Info_PutNodeAttr(key, "here"), "PMI2_Info_PutNodeAttr");
    good(PMI2_KVS_Fence(), "PMI2_KVS_Fence");
    int other = leader == 0 ? size - 1 : 0;
    snprintf(key, sizeof key, "from-%d", other);
    good(PMI2_Info_GetNodeAttr(key, value, sizeof value, &found, 0), key);
    report("pmi2_node rank=%d leader=%d ranks=%d other=%d found=%d", rank, leader, length, other,
           found);
}

static void names(void)
{
    char port[LONGEST + 1];
    char *service = "a service;";

    if (rank == 0)
        good(PMI2_Nameserv_publish(service, NULL, "port#1;$here$"), "PMI2_Nameserv_publish");
    good(PMI2_KVS_Fence(), "PMI2_KVS_Fence");
    good(PMI2_Nameserv_lookup(service, NULL, port, sizeof port), "PMI2_Nameserv_lookup");
    same("the port", port, "port#1;$here$");
    int missing = PMI2_Nameserv_lookup("no such service", NULL, port, sizeof port), twice = -1;
    good(PMI2_KVS_Fence(), "PMI2_KVS_Fence");
    if (rank == 0) {
        twice = PMI2_Nameserv_publish(service, NULL, "port#2");
        good(PMI2_Nameserv_unpublish(service, NULL), "PMI2_Nameserv_unpublish");
    }
    good(PMI2_KVS_Fence(), "PMI2_KVS_Fence");
    int after = PMI2_Nameserv_lookup(service, NULL, port, sizeof port);
    report("pmi2_names rank=%d missing=%d twice=%d after=%d", rank, missing, twice, after);
}

static void ring(void)
{
    char mine[64], left[64], right[64];
    int position, count;

    for (int round = 0; round < 3; round++) {
        snprintf(mine, sizeof mine, "%d;%d", rank, round);
        good(PMIX_Ring(mine, &position, &count, left, right, sizeof left), "PMIX_Ring");
        if (count != size)
            fail(1, "pmi2_api rank=%d: a ring of %d", rank, count);
        if (atoi(strchr(left, ';') + 1) != round || atoi(strchr(right, ';') + 1) != round)
            fail(1, "pmi2_api rank=%d: round %d has %s and %s", rank, round, left, right);
    }
    report("pmi2_ring rank=%d position=%d left=%d right=%d", rank, position, atoi(left), atoi(right));
}

/* One rank executes its arguments, the others wait for it. */
static void one_acts(char **argv)
{
    const char *what = argv[1], *argument = argv[3] == NULL ? "0" : argv[3];
    int chosen = rank == (int)number_argument(argv[2]);

    if (!chosen) {
        int rc = PMI2_KVS_Fence();
        report("pmi2_api rank=%d fence=%d", rank, rc);
        PMI2_Finalize();
        exit(0);
    }
    report("pmi2_api rank=%d does=%s", rank, what);
    if (strcmp(what, "abort") == 0)
        PMI2_Abort(1, argument);
    else if (strcmp(what, "exit") == 0)
        exit((int)number_argument(argument));
    else if (strcmp(what, "kill") == 0)
        raise((int)number_argument(argument));
    else if (strcmp(what, "finalize") != 0 || PMI2_Finalize() != PMI2_SUCCESS)
        fail(2, "pmi2_api: %s failed", what);
    exit((int)number_argument(argument));
}

int main(int argc, char **argv)
{
    char jobid[256], mapping[LONGEST + 1], universe[64] = "-";
    int spawned, appnum, found;

    if (argc == 2 || argc > 4)
        fail(2, "usage: pmi2_api [WHAT RANK [ARGUMENT]]");
    alarm(LAST_RESORT_SECONDS);
    if (argc > 3 && strcmp(argv[1], "nothing") == 0 &&
        rank_from_environment() == (int)number_argument(argv[2]))
        return (int)number_argument(argv[3]);
    if (PMI2_Initialized())
        fail(1, "pmi2_api: initialized before PMI2_Init");
    good(PMI2_Init(&spawned, &size, &rank, &appnum), "PMI2_Init");
    if (!PMI2_Initialized() || rank != rank_from_environment())
        fail(1, "pmi2_api rank=%d: not initialized, or another rank", rank);
    if (argc > 1)
        one_acts(argv);
    good(PMI2_Info_GetJobAttr("universeSize", universe, sizeof universe, &found), "universeSize");
    report("pmi2_init rank=%d size=%d appnum=%d spawned=%d universe=%s", rank, size, appnum, spawned,
           found ? universe : "-");
    job(jobid, sizeof jobid);
    attributes(mapping, sizeof mapping, atoi(universe));
    kvs(jobid);
    node(leader_of(mapping));
    names();
    ring();
    report("pmi2_api rank=%d size=%d finalized=%d", rank, size, PMI2_Finalize());
    return 0;
}
