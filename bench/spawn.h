/*
 * Starting N processes as fast as this system lets anybody: posix_spawn with a session for each,
 * from one thread per processor. Both floors use it; it is no model of a launcher, which also has
 * to survive things.
 */
#ifndef WIREUP_BENCH_SPAWN_H
#define WIREUP_BENCH_SPAWN_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct job {
    int size;
    char **argv;
    char ***environments;     /* one for each rank */
    const int *descriptors;   /* one for each rank, becomes descriptor 3; or NULL */
    pid_t *pids;              /* filled by spawn_all */
    int next;                 /* the rank that the next free thread starts */
};

static inline void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(70);
}

static void *spawn_some(void *argument)
{
    struct job *job = argument;
    posix_spawnattr_t attributes;

    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    for (int rank; (rank = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < job->size;) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        if (job->descriptors != NULL)
            posix_spawn_file_actions_adddup2(&actions, job->descriptors[rank], 3);
        errno = posix_spawnp(&job->pids[rank], job->argv[0], &actions, &attributes, job->argv,
                             job->environments[rank]);
        if (errno != 0)
            die(job->argv[0]);
        if (job->descriptors != NULL)
            close(job->descriptors[rank]);
        posix_spawn_file_actions_destroy(&actions);
    }
    posix_spawnattr_destroy(&attributes);
    return NULL;
}

/* Starts every rank of the job; returns when all have been started. */
static inline void spawn_all(struct job *job)
{
    pthread_t threads[64];
    cpu_set_t cpus;
    int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;

    if (count > job->size)
        count = job->size;
    if (count > 64)
        count = 64;
    for (int i = 1; i < count; i++)
        if ((errno = pthread_create(&threads[i], NULL, spawn_some, job)) != 0)
            die("pthread_create");
    spawn_some(job);
    for (int i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* Waits for every rank; returns the first one's code that is not 0, in rank order. */
static inline int wait_all(const struct job *job)
{
    int result = 0;
    for (int rank = 0; rank < job->size; rank++) {
        int status;
        while (waitpid(job->pids[rank], &status, 0) < 0)
            if (errno != EINTR)
                die("waitpid");
        if (status != 0 && result == 0)
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return result;
}

/* The environment of this process with room for `extra` more entries before the final NULL. */
static inline char **environment_with_room(int extra)
{
    extern char **environ;
    int count = 0;
    while (environ[count] != NULL)
        count++;
    char **copy = calloc((size_t)(count + extra + 1), sizeof *copy);
    if (copy == NULL)
        die("calloc");
    memcpy(copy, environ, (size_t)count * sizeof *copy);
    return copy;
}

static inline char *entry(const char *format, int number)
{
    char *text;
    if (asprintf(&text, format, number) < 0)
        die("asprintf");
    return text;
}

#endif
