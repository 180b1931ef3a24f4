/*
 * spawn [KEY=VALUE]...
 *
 * Starts children, merges with them, adds something up with all, and disconnects. Children are this
 * program too, know what they are from MPI_Comm_get_parent, and do the same one level deeper.
 *
 *   children=N      ranks of each program that is spawned (2)
 *   apps=N          programs of each spawn; with more than one it is MPI_Comm_spawn_multiple, and
 *                   program number I has I ranks more than the first (1)
 *   levels=N        how deep children spawn (1)
 *   times=N         spawns after one another (1)
 *   from=world|self all ranks together, or every rank by itself at the same time (world)
 *   program=PATH    what the children are (this program, by the name it was started with)
 *   bad=PATH        first asks for this program, as the last one of each spawn, which must fail
 *   info.KEY=VALUE  for the MPI_Info of each spawn; the first 16. A `%` in the value is the next level
 *   top.KEY=VALUE   the same for spawns of the initial job alone
 *   fewer=1         fewer children than asked for will do, of one program
 *   quiet=1         nothing from the children
 *   linger=1        parents say that they linger when they are done, and wait for the end
 *   child=HOW       what children do, rank 0 alone where it says so:
 *     merge         what is said above (the default)
 *     exit          the same, then rank 0 exits with code=N
 *     quit          rank 0 exits with code=N before MPI_Init
 *     abort         rank 0 calls MPI_Abort with code=N in place of merging
 *     die           rank 0 is killed by signal 9 in place of merging
 *     hang          merge, say so, and wait for the end in place of disconnecting
 *     outlive       disconnect, say so, wait until the file until=PATH is there, say that too
 *   code=N          see there (3)
 *
 * Each rank that was not spawned ends with
 *     spawn rank=R size=N universe=U times=T children=C merged=M refused=CLASS:CODES us=MICROSECONDS
 * where U is MPI_UNIVERSE_SIZE, "none" without one; M the size of the merged communicator; CLASS is
 * "spawn" (MPI_ERR_SPAWN) or "other", CODES what the array of error codes held, by commas, "-"
 * without bad=; and the time is the median of a spawn and merge. Each child says, while it merges,
 *     spawned rank=R size=N level=L app=A parents=P host=H dir=D word=W
 * with the levels above it, MPI_APPNUM, the number of parents, its working directory and the
 * variable SPAWN_WORD.
 */
#define _GNU_SOURCE
#include "common.h"
#include <mpi.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

enum { APPS_MAX = 8, INFOS_MAX = 16, WORDS_MAX = 64, CHILDREN_MAX = 1024 };

/* An argument that any quoting on the way would change. */
static const char awkward[] = "text=two words; a=\"b\", $HOME 'c'";

static int rank, size;
static int children = 2, apps = 1, levels = 1, times = 1, fewer, quiet, linger, code = 3, level, app;
static const char *from = "world", *program, *bad, *child = "merge", *until;
static const char *infos[INFOS_MAX];
static bool top_infos[INFOS_MAX];
static int info_count;
static bool text_seen;
static char refused[256] = "-";

static void must(int status, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "?";
    int length;
    if (status == MPI_SUCCESS)
        return;
    MPI_Error_string(status, text, &length);
    fail(1, "spawn level=%d rank=%d: %s: %s", level, rank, what, text);
}

static void hold(bool good, const char *what)
{
    if (!good)
        fail(1, "spawn level=%d rank=%d: not so: %s", level, rank, what);
}

static long microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static const char *value_of(const char *word, const char *key)
{
    size_t length = strlen(key);
    return strncmp(word, key, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static void understand(const char *word)
{
    static const struct {
        const char *key;
        int *number;
        const char **text;
    } known[] = {
        {"children", &children, NULL}, {"apps", &apps, NULL},   {"levels", &levels, NULL},
        {"times", &times, NULL},       {"quiet", &quiet, NULL}, {"code", &code, NULL},
        {"level", &level, NULL},       {"app", &app, NULL},     {"from", NULL, &from},
        {"program", NULL, &program},   {"bad", NULL, &bad},     {"child", NULL, &child},
        {"until", NULL, &until},       {"linger", &linger, NULL}, {"fewer", &fewer, NULL},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *value = value_of(word, known[i].key);
        if (value == NULL)
            continue;
        if (known[i].number != NULL)
            *known[i].number = (int)number_argument(value);
        else
            *known[i].text = value;
        return;
    }
    if (strncmp(word, "info.", 5) == 0 && info_count < INFOS_MAX)
        infos[info_count++] = word + 5;
    else if (strncmp(word, "top.", 4) == 0 && info_count < INFOS_MAX)
        top_infos[info_count] = true, infos[info_count++] = word + 4;
    else if (strcmp(word, awkward) == 0)
        text_seen = true;
    else
        fail(2, "spawn: what is \"%s\"?", word);
}

static MPI_Info make_info(void)
{
    MPI_Info info = MPI_INFO_NULL;
    if (info_count > 0)
        MPI_Info_create(&info);
    for (int i = 0; i < info_count; i++) {
        char key[MPI_MAX_INFO_KEY];
        const char *equals = strchr(infos[i], '=');
        if (top_infos[i] && level > 0)
            continue;
        if (equals == NULL || (size_t)(equals - infos[i]) >= sizeof key)
            fail(2, "spawn: info.KEY=VALUE, not info.%s", infos[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - infos[i]), infos[i]);
        char value[256], *here;
        snprintf(value, sizeof value, "%s", equals + 1);
        while ((here = strchr(value, '%')) != NULL)
            *here = (char)('1' + level);
        must(MPI_Info_set(info, key, value), "MPI_Info_set");
    }
    return info;
}

/* Ranks of one spawn. */
static int spawned_by_one(void)
{
    return apps * children + apps * (apps - 1) / 2;
}

/* One spawn; `last` is what the last program is. `codes` has room for all ranks. */
static int spawn(char **argv, const char *last, MPI_Comm comm, MPI_Comm *inter, int *codes)
{
    static char numbers[APPS_MAX][32], deeper[32];
    static char *words[APPS_MAX][WORDS_MAX];
    char *commands[APPS_MAX];
    int counts[APPS_MAX], result;
    MPI_Info wishes[APPS_MAX], info = make_info();

    snprintf(deeper, sizeof deeper, "level=%d", level + 1);
    for (int i = 0; i < apps; i++) {
        int used = 0;
        for (char **word = argv + 1; *word != NULL && used < WORDS_MAX - 4; word++)
            if (strcmp(*word, awkward) != 0)
                words[i][used++] = *word;
        snprintf(numbers[i], sizeof *numbers, "app=%d", i);
        words[i][used++] = (char *)awkward;
        words[i][used++] = deeper;
        words[i][used++] = numbers[i];
        words[i][used] = NULL;
        commands[i] = (char *)(i == apps - 1 ? last : program);
        counts[i] = children + i;
        wishes[i] = info;
    }
    if (apps == 1) {
        result = MPI_Comm_spawn(commands[0], words[0], counts[0], info, 0, comm, inter, codes);
    } else {
        char **argvs[APPS_MAX];
        for (int i = 0; i < apps; i++)
            argvs[i] = words[i];
        result = MPI_Comm_spawn_multiple(apps, commands, argvs, counts, wishes, 0, comm, inter, codes);
    }
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    return result;
}

/* Merges, parents first, and adds up all that are there. Returns their number. */
static int meet(MPI_Comm inter, bool is_child)
{
    MPI_Comm merged;
    int all, mine, local, sum = 0, first = 0;

    must(MPI_Intercomm_merge(inter, is_child, &merged), "MPI_Intercomm_merge");
    MPI_Comm_size(merged, &all);
    MPI_Comm_rank(merged, &mine);
    MPI_Comm_rank(inter, &local);
    if (!is_child)
        hold(mine == local, "parents come first");
    int summand = mine + 1;
    must(MPI_Allreduce(&summand, &sum, 1, MPI_INT, MPI_SUM, merged), "MPI_Allreduce");
    hold(sum == all * (all + 1) / 2, "the sum over all that merged");
    /* The first child tells its level to everybody. */
    MPI_Comm_remote_size(inter, &local);
    int teller = is_child ? local : all - local;
    first = level;
    must(MPI_Bcast(&first, 1, MPI_INT, teller, merged), "MPI_Bcast");
    hold(first == (is_child ? level : level + 1), "what the first child tells");
    must(MPI_Comm_free(&merged), "MPI_Comm_free");
    return all;
}

static const char *class_of(int answer)
{
    int class;

    if (answer == MPI_SUCCESS)
        return "ok";
    /* Open MPI 5.0 hands out codes of its own, which are none of MPI's. */
    if (answer < 0)
        return "odd";
    MPI_Error_class(answer, &class);
    return class == MPI_ERR_SPAWN ? "spawn" : "other";
}

static void ask_for_the_bad(char **argv, MPI_Comm comm)
{
    static int codes[CHILDREN_MAX];
    MPI_Comm inter = MPI_COMM_NULL;
    int count = spawned_by_one();

    for (int i = 0; i < count; i++)
        codes[i] = MPI_SUCCESS;
    int status = spawn(argv, bad, comm, &inter, codes);
    if (status == MPI_SUCCESS)
        fail(1, "spawn rank=%d: %s could be spawned", rank, bad);
    size_t used = (size_t)snprintf(refused, sizeof refused, "%s:", class_of(status));
    for (int i = 0; i < count && used < sizeof refused - 16; i++)
        used += (size_t)snprintf(refused + used, sizeof refused - used, "%s%s", i == 0 ? "" : ",", class_of(codes[i]));
}

static int ascending(const void *a, const void *b)
{
    long left = *(const long *)a, right = *(const long *)b;
    return (left > right) - (left < right);
}

/* All spawns of this process. Returns the number that merged last, and the median of their time. */
static int spawn_all(char **argv, long *median)
{
    static int codes[CHILDREN_MAX];
    MPI_Comm comm = strcmp(from, "self") == 0 ? MPI_COMM_SELF : MPI_COMM_WORLD;
    long *took = calloc((size_t)times, sizeof *took);
    int all = 0, parents, remote;

    hold(took != NULL, "memory");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_size(comm, &parents);
    if (bad != NULL)
        ask_for_the_bad(argv, comm);
    for (int i = 0; i < times; i++) {
        MPI_Comm inter = MPI_COMM_NULL;
        for (int n = 0; n < spawned_by_one(); n++)
            codes[n] = -1;
        long before = microseconds();
        must(spawn(argv, program, comm, &inter, codes), "MPI_Comm_spawn");
        MPI_Comm_remote_size(inter, &remote);
        hold(remote == spawned_by_one() || (fewer && remote < spawned_by_one()), "the number of children");
        for (int n = 0; n < remote; n++)
            hold(codes[n] == MPI_SUCCESS, "no error code of a child that was started");
        all = meet(inter, false);
        took[i] = microseconds() - before;
        hold(all == parents + remote, "the number of all that merged");
        must(MPI_Comm_disconnect(&inter), "MPI_Comm_disconnect");
    }
    qsort(took, (size_t)times, sizeof *took, ascending);
    *median = took[times / 2];
    free(took);
    return all;
}

/* What a child says and does between MPI_Init and its own spawns. */
static void be_a_child(MPI_Comm parent)
{
    char host[256] = "?", dir[1024] = "?";
    int *number, flag = 0, parents;

    hold(text_seen, "the awkward argument has come as it was sent");
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &flag);
    hold(flag && *number == app, "MPI_APPNUM is the program's place");
    hold(fewer || size == spawned_by_one(), "the size of the children's world");
    MPI_Comm_remote_size(parent, &parents);
    if (rank == 0 && strcmp(child, "abort") == 0)
        MPI_Abort(MPI_COMM_WORLD, code);
    if (rank == 0 && strcmp(child, "die") == 0)
        raise(SIGKILL);
    gethostname(host, sizeof host - 1);
    if (getcwd(dir, sizeof dir) == NULL)
        fail(1, "spawn: getcwd: %s", strerror(errno));
    const char *word = getenv("SPAWN_WORD");
    if (!quiet)
        report("spawned rank=%d size=%d level=%d app=%d parents=%d host=%s dir=%s word=%s", rank, size,
               level, app, parents, host, dir, word == NULL ? "-" : word);
    meet(parent, true);
    if (strcmp(child, "hang") == 0) {
        report("hangs rank=%d level=%d", rank, level);
        wait_for_the_end();
    }
}

/* Until it is killed. Processes that it was connected with may need its progress to end: a child of
   Intel MPI hangs in MPI_Finalize without it, now and then. */
static void wait_with_an_ear(void)
{
    int flag;

    report("lingers rank=%d", rank);
    alarm(LAST_RESORT_SECONDS);
    for (;;) {
        must(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE), "MPI_Iprobe");
        usleep(5000);
    }
}

static void outlive(void)
{
    if (until == NULL)
        fail(2, "spawn: child=outlive needs until=PATH");
    report("lives rank=%d level=%d", rank, level);
    alarm(LAST_RESORT_SECONDS);
    while (access(until, F_OK) != 0)
        usleep(5000);
    report("outlived rank=%d level=%d", rank, level);
}

int main(int argc, char **argv)
{
    MPI_Comm parent;
    char universe[32] = "none";
    int *number, flag = 0, all = 0;
    long median = 0;

    program = argv[0];
    for (int i = 1; i < argc; i++)
        understand(argv[i]);
    if (children < 0 || apps < 1 || apps > APPS_MAX || times < 1 || spawned_by_one() > CHILDREN_MAX)
        fail(2, "spawn: too many or too few");
    /* Ranks of MPI are not known yet; those of launchers are, to all that are served. */
    if (level > 0 && strcmp(child, "quit") == 0 && rank_from_environment() == 0)
        return code;
    must(MPI_Init(&argc, &argv), "MPI_Init");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    hold((parent != MPI_COMM_NULL) == (level > 0), "who was spawned has a parent, others have none");
    if (parent != MPI_COMM_NULL)
        be_a_child(parent);
    if (level < levels)
        all = spawn_all(argv, &median);
    if (parent != MPI_COMM_NULL)
        must(MPI_Comm_disconnect(&parent), "MPI_Comm_disconnect");
    if (level == 0) {
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &number, &flag);
        if (flag)
            snprintf(universe, sizeof universe, "%d", *number);
        report("spawn rank=%d size=%d universe=%s times=%d children=%d merged=%d refused=%s us=%ld", rank,
               size, universe, times, spawned_by_one(), all, refused, median);
        if (linger)
            wait_with_an_ear();
    } else if (strcmp(child, "outlive") == 0) {
        outlive();
    }
    must(MPI_Finalize(), "MPI_Finalize");
    return level > 0 && rank == 0 && strcmp(child, "exit") == 0 ? code : 0;
}
