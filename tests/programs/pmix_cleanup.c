/*
 * pmix_cleanup HOW DIRECTORY
 *
 * Each rank makes DIRECTORY/R.d with a file, a directory with a file, and links to a directory
 * and to a file in DIRECTORY/R.out, and has PMIx clean it up at its end. HOW that is: finalize or kill.
 * With file instead, it is one file, DIRECTORY/R.d/file, that is to go; with named the same, in a
 * request with a name. With empty nothing is to go but what is empty, with top all but DIRECTORY/R.d
 * itself.
 */
#include "client.h"
#include <fcntl.h>
#include <pmix.h>
#include <signal.h>
#include <sys/stat.h>

static char path[1024], target[1024];

static const char *in(const char *directory, const char *kind, const char *name)
{
    snprintf(path, sizeof path, "%s/%u.%s%s", directory, me.rank, kind, name);
    return path;
}

static void made(int result)
{
    if (result < 0)
        fail(1, "pmix_cleanup: %s: %s", path, strerror(errno));
}

int main(int argc, char **argv)
{
    const bool yes = true;
    pmix_info_t infos[3], *results = NULL;
    size_t count = 0, directives = 0;
    if (argc != 3)
        fail(2, "pmix_cleanup HOW DIRECTORY");
    const bool named = strcmp(argv[1], "named") == 0;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    made(mkdir(in(argv[2], "out", ""), 0700));
    made(open(in(argv[2], "out", "/precious"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    made(mkdir(in(argv[2], "d", ""), 0700));
    made(mkdir(in(argv[2], "d", "/below"), 0700));
    made(mkdir(in(argv[2], "d", "/empty"), 0700));
    made(open(in(argv[2], "d", "/file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    made(open(in(argv[2], "d", "/below/file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    snprintf(target, sizeof target, "%s", in(argv[2], "out", ""));
    made(symlink(target, in(argv[2], "d", "/link")));
    if (named || strcmp(argv[1], "file") == 0) {
        PMIX_INFO_LOAD(&infos[directives++], PMIX_REGISTER_CLEANUP, in(argv[2], "d", "/file"), PMIX_STRING);
    } else {
        PMIX_INFO_LOAD(&infos[directives++], PMIX_REGISTER_CLEANUP_DIR, in(argv[2], "d", ""), PMIX_STRING);
        PMIX_INFO_LOAD(&infos[directives++], PMIX_CLEANUP_RECURSIVE, &yes, PMIX_BOOL);
    }
    if (named)
        PMIX_INFO_LOAD(&infos[directives++], PMIX_JOB_CTRL_ID, "cleanup", PMIX_STRING);
    if (strcmp(argv[1], "empty") == 0)
        PMIX_INFO_LOAD(&infos[directives++], PMIX_CLEANUP_EMPTY, &yes, PMIX_BOOL);
    if (strcmp(argv[1], "top") == 0)
        PMIX_INFO_LOAD(&infos[directives++], PMIX_CLEANUP_LEAVE_TOPDIR, &yes, PMIX_BOOL);
    must(PMIx_Job_control(NULL, 0, infos, directives, &results, &count), "PMIx_Job_control");
    report("pmix_cleanup rank=%u how=%s", me.rank, argv[1]);
    if (strcmp(argv[1], "kill") == 0)
        raise(SIGKILL);
    PMIx_Finalize(NULL, 0);
    return 0;
}
