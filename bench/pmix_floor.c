/*
 * pmix_floor [-v] N PROGRAM [ARGUMENT...]
 *
 * The floor for PMIx: one process that initialises the server library, registers a job of N ranks
 * on this node, starts them and waits. Nothing is asked of the host on one node but to say yes when
 * a client comes and goes. -v prints the library's version.
 */
#define _GNU_SOURCE
#include "spawn.h"
#include <pmix.h>
#include <pmix_server.h>
#include <sys/resource.h>
#include <ftw.h>

/* Later libraries copy a longer table than the headers know: the rest must be NULL. */
static union {
    pmix_server_module_t module;
    char room[2048];
} table;

static pmix_status_t came(const pmix_proc_t *proc, void *object, pmix_info_t info[], size_t count,
                          pmix_op_cbfunc_t done, void *data)
{
    (void)proc, (void)object, (void)info, (void)count, (void)done, (void)data;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t went(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t done, void *data)
{
    (void)proc, (void)object, (void)done, (void)data;
    return PMIX_OPERATION_SUCCEEDED;
}

static void must(pmix_status_t status, const char *what)
{
    if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED)
        return;
    fprintf(stderr, "pmix_floor: %s: %s\n", what, PMIx_Error_string(status));
    exit(70);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

int main(int argc, char **argv)
{
    int verbose = argc > 1 && strcmp(argv[1], "-v") == 0, at = 1 + verbose, size;

    if (argc < at + 2 || (size = atoi(argv[at])) < 1) {
        fprintf(stderr, "usage: pmix_floor [-v] N PROGRAM [ARGUMENT...]\n");
        return 64;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    /* The ranks' environment is this process's, before the library adds to it. */
    struct job job = {.size = size, .argv = argv + at + 1};
    job.pids = calloc((size_t)size, sizeof *job.pids);
    job.environments = calloc((size_t)size, sizeof *job.environments);
    for (int rank = 0; rank < size; rank++) {
        char **base = environment_with_room(0);
        for (char **variable = base; *variable != NULL; variable++)
            if ((*variable = strdup(*variable)) == NULL)
                die("strdup");
        job.environments[rank] = base;
    }

    char host[256] = "", directory[] = "/tmp/pmix-floor-XXXXXX";
    gethostname(host, sizeof host - 1);
    if (mkdtemp(directory) == NULL)
        die("mkdtemp");
    table.module.client_connected2 = came;
    table.module.client_finalized = went;
    pmix_info_t info[6];
    bool no = false;
    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TMPDIR, directory, PMIX_STRING);
    PMIX_INFO_LOAD(&info[1], PMIX_SYSTEM_TMPDIR, directory, PMIX_STRING);
    PMIX_INFO_LOAD(&info[2], PMIX_HOSTNAME, host, PMIX_STRING);
    PMIX_INFO_LOAD(&info[3], PMIX_IOF_LOCAL_OUTPUT, &no, PMIX_BOOL);
    must(PMIx_server_init(&table.module, info, 4), "PMIx_server_init");
    if (verbose)
        fprintf(stderr, "pmix_floor: %s\n", PMIx_Get_version());

    pmix_proc_t proc;
    pmix_nspace_t nspace;
    char *node_map, *proc_map, *peers = calloc((size_t)size, 12);
    snprintf(nspace, sizeof nspace, "floor-%d", (int)getpid());
    for (int rank = 0; rank < size; rank++)
        sprintf(peers + strlen(peers), rank == 0 ? "%d" : ",%d", rank);
    must(PMIx_generate_regex(host, &node_map), "PMIx_generate_regex");
    must(PMIx_generate_ppn(peers, &proc_map), "PMIx_generate_ppn");
    uint32_t count = (uint32_t)size;
    PMIX_INFO_LOAD(&info[0], PMIX_JOB_SIZE, &count, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[1], PMIX_UNIV_SIZE, &count, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[2], PMIX_NODE_MAP, node_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[3], PMIX_PROC_MAP, proc_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[4], PMIX_LOCAL_PEERS, peers, PMIX_STRING);
    PMIX_INFO_LOAD(&info[5], PMIX_LOCAL_SIZE, &count, PMIX_UINT32);
    must(PMIx_server_register_nspace(nspace, size, info, 6, NULL, NULL), "register_nspace");
    for (int rank = 0; rank < size; rank++) {
        PMIX_LOAD_PROCID(&proc, nspace, (pmix_rank_t)rank);
        must(PMIx_server_register_client(&proc, getuid(), getgid(), NULL, NULL, NULL),
             "register_client");
        must(PMIx_server_setup_fork(&proc, &job.environments[rank]), "setup_fork");
    }
    spawn_all(&job);
    int result = wait_all(&job);
    PMIx_server_deregister_nspace(nspace, NULL, NULL);
    PMIx_server_finalize();
    nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return result;
}
