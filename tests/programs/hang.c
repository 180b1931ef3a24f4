/*
 * hang RANK
 *
 * Never ends by itself: the rank RANK sleeps in elsewhere(), all others wait in receive() for what does not
 * come. Each says first
 *     hang rank=R
 * A thread of its own sleeps beside that in each.
 */
#include "common.h"
#include <pthread.h>

__attribute__((noinline)) static void elsewhere(void)
{
    for (;;)
        sleep(1000);
}

__attribute__((noinline)) static void receive(int from)
{
    char byte;
    while (read(from, &byte, 1) != 0)
        ;
}

static void *beside(void *nothing)
{
    elsewhere();
    return nothing;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("WIREUP_RANK");
    int ends[2];
    pthread_t thread;

    if (argc != 2 || rank == NULL)
        fail(2, "usage: hang RANK");
    alarm(LAST_RESORT_SECONDS);
    if (pipe(ends) != 0 || pthread_create(&thread, NULL, beside, NULL) != 0)
        fail(1, "hang: %s", strerror(errno));
    report("hang rank=%s", rank);
    if (atoi(rank) == atoi(argv[1]))
        elsewhere();
    receive(ends[0]);
    return 0;
}
