/*
 * Says who this rank is and which libraries it really runs on.
 *     hello rank=R size=N pid=P host=H processor=NAME libpmix=PATH|none pmix="VERSION" library="VERSION"
 * The PMIx library is read from the process's own mappings, not from where it should be.
 */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>

static void first_line(char *text)
{
    text[strcspn(text, "\r\n\"")] = '\0';
}

/* Finds the mapped libpmix, if any; true when `path` was filled. */
static int mapped_libpmix(char path[PATH_MAX])
{
    char line[PATH_MAX + 128];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (maps == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        const char *file = strchr(line, '/');
        if (file == NULL || strstr(file, "/libpmix.so") == NULL)
            continue;
        snprintf(path, PATH_MAX, "%s", file);
        path[strcspn(path, "\n")] = '\0';
        found = 1;
    }
    fclose(maps);
    return found;
}

int main(int argc, char **argv)
{
    char host[256] = "", processor[MPI_MAX_PROCESSOR_NAME] = "", libpmix[PATH_MAX] = "none";
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "", pmix[256] = "";
    int rank, size, length;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "hello: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(processor, &length);
    MPI_Get_library_version(library, &length);
    first_line(library);
    for (char *c = library; *c != '\0'; c++)
        if (*c == '\t')
            *c = ' ';
    gethostname(host, sizeof host - 1);
    if (mapped_libpmix(libpmix)) {
        void *handle = dlopen(libpmix, RTLD_LAZY | RTLD_NOLOAD);
        const char *(*version)(void) = NULL;
        if (handle != NULL)
            *(void **)&version = dlsym(handle, "PMIx_Get_version");
        if (version != NULL)
            snprintf(pmix, sizeof pmix, "%s", version());
        first_line(pmix);
    }
    report("hello rank=%d size=%d pid=%d host=%s processor=%s libpmix=%s pmix=\"%s\" library=\"%s\"",
           rank, size, (int)getpid(), host, processor, libpmix, pmix, library);
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION < 5
    /* Open MPI 4 handles an event of MPI_Init in a thread; if MPI_Finalize unloads the plugin before
     * that, the process dies of SIGSEGV, under every launcher (docs/mpis.md). */
    usleep(50 * 1000);
#endif
    MPI_Finalize();
    return 0;
}
