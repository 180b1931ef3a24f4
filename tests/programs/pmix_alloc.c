/*
 * pmix_alloc STEP...
 *
 * Rank 0 takes the steps, the others wait for it. A step is
 *     DIRECTIVE[:KEY=VALUE[;KEY=VALUE]...]   a request: new, extend, release, reacquire, cancel
 *     &DIRECTIVE...                          the same, and goes on before it is answered
 *     join                                   waits for the answers to all of these
 *     spawn:COUNT[;id=VALUE]                 spawns processes of itself, which print where they are
 * with the keys nodes, slots, each, list, id, req, time, queue and timeout; with a `!` in front of a key it
 * is required. It prints, for each request when it is answered and each spawn,
 *     pmix_alloc step=N status=STATUS [id=I] [req=R] [nodes=N] [list=L] [slots=N] [each=L] [time=N]
 * and each child `pmix_alloc host=NAME`.
 */
#include "client.h"
#include <inttypes.h>
#include <pmix.h>

enum { INFOS_MAX = 8, DIRECTIVES = 5 };

static unsigned asked, answered;

static const struct {
    const char *name;
    const char *key;
    pmix_data_type_t type;
} keys[] = {
    {"nodes", PMIX_ALLOC_NUM_NODES, PMIX_UINT64}, {"slots", PMIX_ALLOC_NUM_CPUS, PMIX_UINT64},
    {"each", PMIX_ALLOC_NUM_CPU_LIST, PMIX_STRING}, {"list", PMIX_ALLOC_NODE_LIST, PMIX_STRING},
    {"id", PMIX_ALLOC_ID, PMIX_STRING}, {"req", PMIX_ALLOC_REQ_ID, PMIX_STRING},
    {"time", PMIX_ALLOC_TIME, PMIX_UINT32}, {"queue", PMIX_ALLOC_QUEUE, PMIX_STRING},
    {"timeout", PMIX_TIMEOUT, PMIX_INT},
};

enum { KEYS = sizeof keys / sizeof keys[0] };

/* Fills one info from KEY=VALUE. */
static void load(pmix_info_t *info, char *pair)
{
    const bool required = pair[0] == '!';
    char *name = pair + required;
    char *value = strchr(name, '=');

    if (value == NULL)
        fail(2, "pmix_alloc: %s has no value", name);
    *value++ = '\0';
    for (size_t i = 0; i < KEYS; i++) {
        if (strcmp(name, keys[i].name) != 0)
            continue;
        uint64_t number = 0;
        uint32_t small = 0;
        int plain = 0;
        const void *data = value;
        if (keys[i].type != PMIX_STRING) {
            number = (uint64_t)number_argument(value);
            small = (uint32_t)number;
            plain = (int)number;
            data = keys[i].type == PMIX_UINT64   ? (void *)&number
                   : keys[i].type == PMIX_UINT32 ? (void *)&small
                                                 : (void *)&plain;
        }
        PMIX_INFO_LOAD(info, keys[i].key, data, keys[i].type);
        if (required)
            PMIX_INFO_REQUIRED(info);
        return;
    }
    fail(2, "pmix_alloc: there is no key %s", name);
}

/* Fills infos from what stands behind the colon of a step, and ends the step there. */
static size_t load_all(pmix_info_t infos[INFOS_MAX], char *step)
{
    size_t count = 0;
    char *rest = strchr(step, ':');

    if (rest == NULL)
        return 0;
    *rest++ = '\0';
    for (char *save = NULL, *pair = strtok_r(rest, ";", &save); pair != NULL;
         pair = strtok_r(NULL, ";", &save)) {
        if (count == INFOS_MAX)
            fail(2, "pmix_alloc: too many keys");
        load(&infos[count++], pair);
    }
    return count;
}

static void print(int step, pmix_status_t status, const pmix_info_t *infos, size_t count)
{
    char line[1024];
    int length = snprintf(line, sizeof line, "pmix_alloc step=%d status=%d", step, status);

    for (size_t i = 0; i < count; i++) {
        const pmix_value_t *value = &infos[i].value;
        char *end = line + length;
        const size_t room = sizeof line - (size_t)length;
        for (size_t k = 0; k < KEYS; k++) {
            if (strcmp(infos[i].key, keys[k].key) != 0)
                continue;
            if (value->type != keys[k].type)
                fail(1, "pmix_alloc: %s has type %d", keys[k].name, value->type);
            if (value->type == PMIX_STRING)
                length += snprintf(end, room, " %s=%s", keys[k].name, value->data.string);
            else if (value->type == PMIX_UINT64)
                length += snprintf(end, room, " %s=%" PRIu64, keys[k].name, value->data.uint64);
            else
                length += snprintf(end, room, " %s=%" PRIu32, keys[k].name, value->data.uint32);
            if ((size_t)length >= sizeof line)
                fail(1, "pmix_alloc: a line is too long");
        }
    }
    report("%s", line);
}

static void on_results(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                       pmix_release_cbfunc_t release, void *release_data)
{
    print((int)(intptr_t)data, status, infos, count);
    if (release != NULL)
        release(release_data);
    CHANGE(answered++);
}

static void request(int number, char *step)
{
    static const char *const directives[DIRECTIVES] = {"new", "extend", "release", "reacquire", "cancel"};
    const bool goes_on = step[0] == '&';
    pmix_info_t infos[INFOS_MAX];
    pmix_info_t *results = NULL;
    size_t found = 0;
    pmix_alloc_directive_t directive = 0;

    step += goes_on;
    const size_t count = load_all(infos, step);
    for (int i = 0; i < DIRECTIVES; i++)
        if (strcmp(step, directives[i]) == 0)
            directive = (pmix_alloc_directive_t)(i + 1);
    if (directive == 0)
        fail(2, "pmix_alloc: there is no step %s", step);
    if (goes_on) {
        asked++;
        must(PMIx_Allocation_request_nb(directive, infos, count, on_results, (void *)(intptr_t)number),
             "PMIx_Allocation_request_nb");
        return; /* The infos are libpmix's until it has sent them; they are few. */
    }
    const pmix_status_t status = PMIx_Allocation_request(directive, infos, count, &results, &found);
    print(number, status, results, found);
    if (results != NULL)
        PMIX_INFO_FREE(results, found);
    for (size_t i = 0; i < count; i++)
        PMIX_INFO_DESTRUCT(&infos[i]);
}

static void spawn(int number, char *self, char *step)
{
    char nspace[PMIX_MAX_NSLEN + 1];
    pmix_info_t infos[INFOS_MAX];
    char *words[] = {self, "child", NULL}, *rest = strchr(step, ';');

    if (rest != NULL)
        *rest = ':';
    const size_t count = rest == NULL ? 0 : load_all(infos, rest);
    if (rest != NULL)
        *rest = '\0';
    const int processes = (int)number_argument(step + strlen("spawn:"));
    print(number, spawn_program(words, processes, infos, count, nspace), NULL, 0);
    for (size_t i = 0; i < count; i++)
        PMIX_INFO_DESTRUCT(&infos[i]);
}

int main(int argc, char **argv)
{
    char host[256];

    if (argc < 2)
        fail(2, "pmix_alloc: STEP...");
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (strcmp(argv[1], "child") == 0) {
        if (gethostname(host, sizeof host) != 0)
            fail(1, "pmix_alloc: gethostname: %s", strerror(errno));
        report("pmix_alloc host=%s", host);
    } else if (me.rank == 0) {
        for (int i = 1; i < argc; i++) {
            if (strcmp(argv[i], "join") == 0)
                WAIT_UNTIL(answered >= asked);
            else if (strncmp(argv[i], "spawn:", strlen("spawn:")) == 0)
                spawn(i, argv[0], argv[i]);
            else
                request(i, argv[i]);
        }
    }
    barrier();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
