/*
 * pmix_locality
 *
 * What a rank knows of where it and the other ranks of its job run: its CPUs and its locality string, whether the
 * topology of the node can be had, how far its devices are, and what it shares with each of the others. Prints
 *     pmix_locality rank=R cpuset=CPUS locality=TEXT shares=RANK:BITS,... topology=SOURCE distances=STATUS told=NAME:LEAST-MOST,...
 * with - for what it was not told.
 */
#include "client.h"
#include <pmix.h>

/* What a process was told; - if nothing, which libpmix may also say with a value without a text. */
static void told(pmix_rank_t rank, const char *key, char *text, size_t size)
{
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    snprintf(text, size, "-");
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    if (PMIx_Get(&proc, key, NULL, 0, &value) != PMIX_SUCCESS)
        return;
    if (value->type == PMIX_STRING && value->data.string != NULL)
        snprintf(text, size, "%s", value->data.string);
    PMIX_VALUE_RELEASE(value);
}

/*
 * What two strings have in common. Libraries from 4.2 to 6.1 want the name of their source in front, which the strings of
 * their own servers lack, and return PMIX_ERR_TAKE_NEXT_OPTION with the right answer.
 */
static pmix_locality_t common(const char *one, const char *other)
{
    char first[512], second[512];
    pmix_locality_t bits = PMIX_LOCALITY_UNKNOWN;
    snprintf(first, sizeof first, "hwloc:%s", one);
    snprintf(second, sizeof second, "hwloc:%s", other);
    pmix_status_t status = PMIx_Get_relative_locality(first, second, &bits);
    if (bits == PMIX_LOCALITY_UNKNOWN)
        must(status, "PMIx_Get_relative_locality");
    return bits;
}

/* The distances that it was told of; - if none. */
static void devices(char *text, size_t size)
{
    pmix_value_t *value = NULL;
    size_t used = 0;
    snprintf(text, size, "-");
    if (PMIx_Get(&me, PMIX_DEVICE_DISTANCES, NULL, 0, &value) != PMIX_SUCCESS)
        return;
    hold(value->type == PMIX_DATA_ARRAY && value->data.darray->type == PMIX_DEVICE_DIST, "an array of distances");
    const pmix_device_distance_t *found = value->data.darray->array;
    for (size_t i = 0; i < value->data.darray->size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s/%s:%u-%u", i == 0 ? "" : ",", found[i].uuid, found[i].osname,
                                 found[i].mindist, found[i].maxdist);
        hold(used < size, "a node with few devices");
    }
    PMIX_VALUE_RELEASE(value);
}

int main(void)
{
    char cpuset[256], own[256], other[256], shares[1024] = "", told_devices[4096];
    size_t used = 0, count = 0;
    pmix_topology_t topology = PMIX_TOPOLOGY_STATIC_INIT;
    pmix_cpuset_t cpus = PMIX_CPUSET_STATIC_INIT;
    pmix_device_distance_t *distances = NULL;

    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    told(me.rank, PMIX_CPUSET, cpuset, sizeof cpuset);
    told(me.rank, PMIX_LOCALITY_STRING, own, sizeof own);
    const uint32_t size = size_of(me.nspace);
    for (pmix_rank_t rank = 0; rank < size; rank++) {
        pmix_locality_t bits = PMIX_LOCALITY_UNKNOWN;
        told(rank, PMIX_LOCALITY_STRING, other, sizeof other);
        if (strcmp(own, "-") != 0 && strcmp(other, "-") != 0)
            bits = common(own, other);
        used += (size_t)snprintf(shares + used, sizeof shares - used, "%s%u:%04x", rank == 0 ? "" : ",", rank, bits);
        hold(used < sizeof shares, "a job that is small enough");
    }
    must(PMIx_Load_topology(&topology), "PMIx_Load_topology");
    must(PMIx_Get_cpuset(&cpus, PMIX_CPUBIND_PROCESS), "PMIx_Get_cpuset");
    pmix_status_t computed = PMIx_Compute_distances(&topology, &cpus, NULL, 0, &distances, &count);
    devices(told_devices, sizeof told_devices);
    report("pmix_locality rank=%u cpuset=%s locality=%s shares=%s topology=%s distances=%s/%zu told=%s", me.rank, cpuset, own, shares,
           topology.source == NULL ? "-" : strncmp(topology.source, "hwloc", 5) == 0 ? "hwloc" : topology.source,
           PMIx_Error_string(computed), count, told_devices);
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
