/*
 * Says what a process inherits besides its arguments and environment:
 *     fdreport rank=R pid=P ppid=P sid=S pgid=G nofile=SOFT:HARD umask=OCTAL blocked=HEX ignored=HEX
 *              no_new_privs=N fds=0,1,2,...
 * on one line, and then one line for each descriptor:
 *     fd rank=R number=N target=TARGET
 * The masks are the kernel's: signal S is bit S-1.
 */
#include "common.h"
#include <dirent.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { MOST = 1024 };

/* Copies the value of a field of /proc/self/status, without leading blanks. */
static void status_field(const char *name, char *value, size_t room)
{
    char line[512];
    FILE *status = fopen("/proc/self/status", "r");
    snprintf(value, room, "?");
    if (status == NULL)
        return;
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':') {
            const char *text = line + strlen(name) + 1;
            text += strspn(text, " \t");
            snprintf(value, room, "%.*s", (int)strcspn(text, "\n"), text);
        }
    fclose(status);
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int main(void)
{
    char blocked[32], ignored[32], privs[8], list[MOST * 6] = "";
    int fds[MOST], count = 0, rank = rank_from_environment();
    struct rlimit files;

    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL)
        fail(1, "fdreport: cannot read /proc/self/fd");
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory) && count < MOST)
            fds[count++] = atoi(entry->d_name);
    closedir(directory);
    qsort(fds, (size_t)count, sizeof *fds, ascending);
    for (int i = 0; i < count; i++)
        sprintf(list + strlen(list), "%s%d", i == 0 ? "" : ",", fds[i]);

    status_field("SigBlk", blocked, sizeof blocked);
    status_field("SigIgn", ignored, sizeof ignored);
    status_field("NoNewPrivs", privs, sizeof privs);
    getrlimit(RLIMIT_NOFILE, &files);
    mode_t mask = umask(0);
    report("fdreport rank=%d pid=%d ppid=%d sid=%d pgid=%d nofile=%lu:%lu umask=%03o blocked=%s "
           "ignored=%s no_new_privs=%s fds=%s",
           rank, (int)getpid(), (int)getppid(), (int)getsid(0), (int)getpgrp(),
           (unsigned long)files.rlim_cur, (unsigned long)files.rlim_max, (unsigned)mask, blocked,
           ignored, privs, list);
    for (int i = 0; i < count; i++) {
        char path[64], target[PATH_MAX];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fds[i]);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = '\0';
        report("fd rank=%d number=%d target=%s", rank, fds[i], target);
    }
    return 0;
}
