/* Leaves behind what a node keeps after its processes: a segment of System V, a file in shared memory as MPICH names it,
 * and a file in the rank's directory. `resources die`: rank 0 is killed by SIGKILL when all have them; the others wait.
 * `resources end`: all end, and only the file was made. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *rank = getenv("WIREUP_RANK"), *directory = getenv("WIREUP_TMPDIR");
    char name[128] = "", path[4096] = "none", host[64] = "";
    struct stat found = {0};

    int ends = argc > 1 && strcmp(argv[1], "end") == 0, segment = -1;
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "/mpich_left_%s_%d", rank, (int)getpid());
    if (!ends) {
        segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
        int file = shm_open(name, O_CREAT | O_RDWR, 0600);
        if (segment < 0 || file < 0)
            return 9;
        close(file);
    }
    if (directory) {
        if (stat(directory, &found) != 0)
            return 8;
        snprintf(path, sizeof path, "%s/scratch", directory);
        FILE *scratch = fopen(path, "w");
        if (!scratch || fputs("scratch", scratch) < 0 || fclose(scratch) != 0)
            return 7;
    }
    printf("host=%s rank=%s pid=%d segment=%d memory=/dev/shm%s scratch=%s mode=%o\n", host, rank, (int)getpid(), segment, name,
           path, found.st_mode & 0777);
    fflush(stdout);
    if (ends)
        return 0;
    if (argc > 1 && strcmp(argv[1], "die") == 0 && strcmp(rank, "0") == 0) {
        /* Until the test says that it has seen all. */
        char line[16];
        if (!fgets(line, sizeof line, stdin))
            return 6;
        raise(SIGKILL);
    }
    for (;;)
        pause();
}
