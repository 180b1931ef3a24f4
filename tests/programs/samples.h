/*
 * Times of many rounds of one thing, and how they are told: microseconds that half, 90 and 99 of a
 * hundred rounds did not exceed, and the longest.
 */
#ifndef WIREUP_TEST_SAMPLES_H
#define WIREUP_TEST_SAMPLES_H

#include "common.h"
#include <time.h>

struct samples {
    double *us;
    size_t count, room;
};

static inline double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static inline void samples_begin(struct samples *samples, size_t room)
{
    *samples = (struct samples){calloc(room, sizeof(double)), 0, room};
    if (samples->us == NULL)
        fail(1, "no memory for %zu times", room);
}

static inline void samples_add(struct samples *samples, double us)
{
    if (samples->count < samples->room)
        samples->us[samples->count++] = us;
}

static inline int samples_order(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* `NAME_p50=… NAME_p90=… NAME_p99=… NAME_max=…` into `text`; frees the samples. */
static inline const char *samples_end(struct samples *samples, const char *name, char *text, size_t room)
{
    size_t n = samples->count;
    double *us = samples->us;
    if (n == 0)
        fail(1, "no times of %s", name);
    qsort(us, n, sizeof *us, samples_order);
    snprintf(text, room, "%s_p50=%.1f %s_p90=%.1f %s_p99=%.1f %s_max=%.1f", name, us[(n - 1) * 50 / 100],
             name, us[(n - 1) * 90 / 100], name, us[(n - 1) * 99 / 100], name, us[n - 1]);
    free(us);
    return text;
}

#endif
