/*
 * What the programs share whose ranks keep meeting until the standard input of rank 0 ends: a test has them run beside
 * something that must not disturb them.
 */
#ifndef WIREUP_TEST_STEADY_H
#define WIREUP_TEST_STEADY_H

#include "common.h"
#include <poll.h>

enum {
    STEADY_BYTES = 64,
    ROUND_MS = 50, /* rank 0's pause between rounds */
};

/* What a rank puts in a round; rank 0 says with it whether the round is the last. */
static inline void steady_card(char *card, int owner, int round, int last)
{
    snprintf(card, STEADY_BYTES, "%d:%d:%s", owner, round, last ? "end" : "on");
}

/* Whether rank 0 said so. */
static inline int steady_ends(const char *card)
{
    return strstr(card, ":end") != NULL;
}

/* Waits a moment for standard input to end; what is typed is ignored. */
static inline int input_ended(void)
{
    char ignored[256];
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, ROUND_MS) > 0 && read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
}

#endif
