/*
 * SPANK plugin: serves the tasks of a step of Slurm by `wireup serve` (docs/slurm.md).
 *
 * In srun, when the step exists and before its tasks start, the plugin starts `wireup serve` with the layout of the step and
 * waits until a proxy has started for each rank. A thread waits for its end: if it fails while tasks run, the step is killed. When
 * srun exits, it is ended.
 * In slurmstepd, each task connects with the proxy of its rank before it executes the program, and gets its variables. The end of
 * the last task of a node is reported when the agents' step has ended there too, if srun has made the allocation.
 * Everything else is done by `wireup serve`.
 *
 * Rule: srun runs all of this before it has tasks, on one thread, except watch(). It passes its environment on to the tasks as
 * it is after slurm_spank_local_user_init. Source: Slurm 22.05, src/srun/libsrun/srun_job.c, pre_launch_srun_job.
 *
 * Ownership: a function frees what it allocates, except the results of step_layout(), allocation_variables() and
 * environment_of_serve(), which are the caller's. Strings that Slurm passes are Slurm's. The globals `server`, of srun, and `own_node`, of slurmstepd, have no memory of
 * their own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SPANK_PLUGIN(wireup, 1)

/* Variable of tasks with the name of the step's sockets. */
#define TASK_SOCKET "WIREUP_TASK_SOCKET"

/* Variable of tasks whose srun has made the allocation. */
#define OWN_ALLOCATION "WIREUP_OWN_ALLOCATION"

#define STATUS_TEXT "fd:3"

enum {
    /* Descriptor of the status stream in `wireup serve`. */
    STATUS = 3,
    /* Seconds between two lines of it until all proxies have started. The credential of a step lasts for 120. */
    START_LIMIT = 100,
    /* Seconds that a task waits for the proxy of its rank. */
    TASK_LIMIT = 10,
    /* Seconds that slurmstepd waits for the end of the agents' step on its node. */
    AGENTS_END_LIMIT = 2,
    TRIES_PER_SECOND = 100,
    /* Seconds in which `wireup serve` ends by itself after the last task, and after SIGTERM. */
    END_LIMIT = 5,
    TERM_LIMIT = 20,
    /* Bytes of a rank's variables. */
    VARIABLES_MAX = 1 << 20,
};

/* Value of --wireup, if it was given. */
static bool is_given, is_wanted;

/* `wireup serve` of this srun. */
static struct {
    /* An argument of the plugin, or a literal. */
    const char *program;
    pid_t pid;
    int status;
    uint32_t job, step;
    pthread_t watcher;
    pthread_mutex_t lock;
    pthread_cond_t end;
    /* Both are changed with the lock held. */
    bool is_stopping, has_ended;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER, .end = PTHREAD_COND_INITIALIZER};

/* The node of this slurmstepd: a pidfd of the slurmstepd of the agents' step, or -1, and the number of tasks that have ended. */
static struct {
    int agents;
    uint32_t ended;
    /* Whether the first task has been started. */
    bool has_started;
} own_node = {.agents = -1};

/* Whether srun makes the allocation. */
static bool is_own_allocation;

static int take_option(int value, const char *argument, int is_remote)
{
    (void)value;
    (void)is_remote;
    if (argument && *argument && strcmp(argument, "on") != 0 && strcmp(argument, "off") != 0) {
        slurm_error("wireup: --wireup=%s: the values are on and off", argument);
        return -1;
    }
    is_given = true;
    is_wanted = !argument || strcmp(argument, "off") != 0;
    return 0;
}

static struct spank_option option = {
    .name = "wireup",
    .arginfo = "on|off",
    .usage = "serve PMI-1, PMI-2 and PMIx to the tasks by wireup",
    .has_arg = 2,
    .val = 0,
    .cb = take_option,
};

int slurm_spank_init(spank_t spank, int count, char *arguments[])
{
    (void)count;
    (void)arguments;
    spank_context_t context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_REMOTE)
        return 0;
    is_own_allocation = !getenv("SLURM_JOB_ID");
    return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

/* Value of NAME=VALUE in the plugin's line of plugstack.conf. */
static const char *argument_of(const char *name, int count, char *arguments[])
{
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (strncmp(arguments[i], name, length) == 0 && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    return NULL;
}

/* Whether the step has agents of a launch of wireup, which are not ranks. */
static bool has_agents(spank_t spank)
{
    int count = 0;
    char **words = NULL;
    if (spank_get_item(spank, S_JOB_ARGV, &count, &words) != ESPANK_SUCCESS || count < 1)
        return false;
    return strcmp(basename(words[0]), "wireup-agent") == 0;
}

/* The nodes of the ranks as --layout takes them: NODE*COUNT, in the order of ranks. NULL without memory. */
static char *step_layout(const slurm_step_layout_t *step)
{
    char *text = NULL;
    size_t length = 0;
    uint32_t *node_of = calloc(step->task_cnt, sizeof *node_of);
    FILE *out = open_memstream(&text, &length);
    if (node_of && out) {
        for (uint32_t node = 0; node < step->node_cnt; node++)
            for (uint16_t i = 0; i < step->tasks[node]; i++)
                if (step->tids[node][i] < step->task_cnt)
                    node_of[step->tids[node][i]] = node;
        for (uint32_t first = 0, next; first < step->task_cnt; first = next) {
            for (next = first + 1; next < step->task_cnt && node_of[next] == node_of[first];)
                next++;
            fprintf(out, "%s%u*%u", first ? "," : "", node_of[first], next - first);
        }
    }
    bool is_written = out && fclose(out) == 0 && node_of;
    free(node_of);
    if (is_written)
        return text;
    free(text);
    return NULL;
}

/*
 * The nodes and CPUs of the job in the form that scripts have: `SLURM_JOB_CPUS_PER_NODE=4(x2),2`, and the list of nodes. An srun
 * that has made the allocation itself lacks them.
 */
static int allocation_variables(char **nodes, char **cpus)
{
    resource_allocation_response_msg_t *job = NULL;
    if (slurm_allocation_lookup(server.job, &job) != SLURM_SUCCESS) {
        slurm_error("wireup: Slurm does not return the allocation of job %u: %m", server.job);
        return -1;
    }
    size_t length = 0;
    FILE *out = open_memstream(cpus, &length);
    if (out) {
        fprintf(out, "SLURM_JOB_CPUS_PER_NODE=");
        for (uint32_t i = 0; i < job->num_cpu_groups; i++)
            fprintf(out, "%s%u(x%u)", i ? "," : "", job->cpus_per_node[i], job->cpu_count_reps[i]);
    }
    bool is_complete = out && fclose(out) == 0 && asprintf(nodes, "SLURM_JOB_NODELIST=%s", job->node_list) >= 0;
    slurm_free_resource_allocation_response_msg(job);
    return is_complete ? 0 : -1;
}

/* Whether a variable describes the step or the allocation. */
static bool is_of_step(const char *variable)
{
    static const char *const prefixes[] = {"SLURM_STEP", "SLURM_TASKS_PER_NODE=", "SLURM_JOB_NODELIST=", "SLURM_JOB_CPUS_PER_NODE="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/*
 * This process's environment for `wireup serve`, which is not a task of the step and finds its nodes and slots as in a script. The
 * strings are the environment's, and the caller's two.
 */
static char **environment_of_serve(char *nodes, char *cpus)
{
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **variables = calloc(count + 3, sizeof *variables);
    for (size_t i = 0; variables && i < count; i++)
        if (!is_of_step(environ[i]))
            variables[kept++] = environ[i];
    if (variables) {
        variables[kept++] = nodes;
        variables[kept] = cpus;
    }
    return variables;
}

/* Starts the program, which writes to STATUS. Only async-signal-safe functions run in the child, since srun has threads. */
static pid_t start(char *words[], char *variables[], int status)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    /* Its end is srun's, also when srun is killed; the terminal's signals are for srun. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    setsid();
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(status, STATUS);
    close_range(STATUS + 1, ~0U, 0);
    execvpe(words[0], words, variables);
    _exit(127);
}

/* Whether the status stream of `wireup serve` reports that all proxies have started; it ends before if that fails. */
static bool has_started(int status)
{
    static const char running[] = "\"state\":\"running\"";
    char text[4096];
    size_t kept = 0;
    struct pollfd ready = {.fd = status, .events = POLLIN};
    while (poll(&ready, 1, START_LIMIT * 1000) > 0) {
        ssize_t got = read(status, text + kept, sizeof text - kept);
        if (got <= 0)
            return false;
        kept += (size_t)got;
        if (memmem(text, kept, running, strlen(running)))
            return true;
        /* The text may continue in the next bytes. */
        size_t rest = kept < sizeof running ? kept : sizeof running;
        memmove(text, text + kept - rest, rest);
        kept = rest;
    }
    return false;
}

/* Ends `wireup serve`, which has not started all proxies. */
static void give_up(void)
{
    int status = 0;
    kill(server.pid, SIGTERM);
    while (waitpid(server.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        slurm_error("wireup: cannot execute %s", server.program);
    slurm_error("wireup: `wireup serve` does not serve step %u.%u", server.job, server.step);
    server.pid = 0;
}

/* Waits for the end of `wireup serve`. If it fails while srun has tasks, kills the step. */
static void *watch(void *unused)
{
    char text[4096];
    (void)unused;
    ssize_t got;
    do
        got = read(server.status, text, sizeof text);
    while (got > 0 || (got < 0 && errno == EINTR));
    close(server.status);
    siginfo_t end = {0};
    while (waitid(P_PID, (id_t)server.pid, &end, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    pthread_mutex_lock(&server.lock);
    bool has_failed = !server.is_stopping && (end.si_code != CLD_EXITED || end.si_status != 0);
    server.has_ended = true;
    while (waitpid(server.pid, NULL, 0) < 0 && errno == EINTR) {
    }
    pthread_cond_signal(&server.end);
    pthread_mutex_unlock(&server.lock);
    if (has_failed)
        slurm_kill_job_step(server.job, server.step, SIGKILL);
    return NULL;
}

/* Starts `wireup serve` for a step whose tasks are these. */
static int serve(const slurm_step_layout_t *step)
{
    char socket[64], ranks[16];
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return -1;
    snprintf(socket, sizeof socket, "wireup-%u.%u-%016llx", server.job, server.step, (unsigned long long)random);
    snprintf(ranks, sizeof ranks, "%u", step->task_cnt);
    char *layout = step_layout(step), *nodes = NULL, *cpus = NULL, **variables = NULL;
    if (allocation_variables(&nodes, &cpus) == 0)
        variables = environment_of_serve(nodes, cpus);
    int result = -1;
    int status[2] = {-1, -1};
    if (layout && variables && pipe2(status, O_CLOEXEC) == 0) {
        char *words[] = {(char *)server.program, "serve", "-n", ranks, "--task-socket", socket, "--hosts", step->node_list, "--layout", layout,
                         "--", "--json", STATUS_TEXT, getenv("SLURM_OVERCOMMIT") ? "--oversubscribe" : NULL, NULL};
        server.status = status[0];
        server.pid = start(words, variables, status[1]);
        close(status[1]);
        if (server.pid > 0 && has_started(server.status) && setenv(TASK_SOCKET, socket, 1) == 0 &&
            (!is_own_allocation || setenv(OWN_ALLOCATION, "1", 1) == 0) &&
            pthread_create(&server.watcher, NULL, watch, NULL) == 0) {
            result = 0;
        } else {
            close(server.status);
            if (server.pid > 0)
                give_up();
        }
    }
    free(variables);
    free(nodes);
    free(cpus);
    free(layout);
    return result;
}

int slurm_spank_local_user_init(spank_t spank, int count, char *arguments[])
{
    unsetenv(TASK_SOCKET);
    unsetenv(OWN_ALLOCATION);
    const char *by_default = argument_of("default", count, arguments);
    if (!is_given)
        is_wanted = by_default && strcmp(by_default, "on") == 0;
    if (!is_wanted || has_agents(spank))
        return 0;
    if (getenv("SLURM_HET_SIZE")) {
        slurm_error("wireup: the plugin does not support heterogeneous jobs; use wireup run");
        return -1;
    }
    if (spank_get_item(spank, S_JOB_ID, &server.job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &server.step) != ESPANK_SUCCESS) {
        slurm_error("wireup: the step has no id");
        return -1;
    }
    slurm_step_id_t id = {.job_id = server.job, .step_id = server.step, .step_het_comp = NO_VAL};
    slurm_step_layout_t *step = slurm_job_step_layout_get(&id);
    if (!step) {
        slurm_error("wireup: Slurm does not return the layout of step %u.%u: %m", server.job, server.step);
        return -1;
    }
    const char *wireup = argument_of("wireup", count, arguments);
    server.program = wireup ? wireup : "wireup";
    int result = serve(step);
    slurm_job_step_layout_free(step);
    return result;
}

/* Waits for the end of `wireup serve`, at most so many seconds, with the lock held. */
static bool has_ended_within(int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    while (!server.has_ended && pthread_cond_timedwait(&server.end, &server.lock, &until) == 0) {
    }
    return server.has_ended;
}

int slurm_spank_exit(spank_t spank, int count, char *arguments[])
{
    (void)spank;
    (void)count;
    (void)arguments;
    if (spank_context() != S_CTX_LOCAL || server.pid <= 0)
        return 0;
    pthread_mutex_lock(&server.lock);
    server.is_stopping = true;
    if (!has_ended_within(END_LIMIT)) {
        kill(server.pid, SIGTERM);
        if (!has_ended_within(TERM_LIMIT))
            kill(server.pid, SIGKILL);
    }
    pthread_mutex_unlock(&server.lock);
    pthread_join(server.watcher, NULL);
    server.pid = 0;
    return 0;
}

/* Connects once with the proxy of a rank. The socket, or -1. */
static int connect_once(const char *name, uint32_t rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s-%u", name, rank);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    int proxy = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (proxy >= 0 && connect(proxy, (struct sockaddr *)&address, size) == 0)
        return proxy;
    int error = errno;
    if (proxy >= 0)
        close(proxy);
    errno = error;
    return -1;
}

/* Connects with the proxy of a rank as soon as it listens, and checks that it is of the user. The socket, or -1. */
static int connect_to_proxy(const char *name, uint32_t rank, uid_t user)
{
    int proxy = connect_once(name, rank);
    for (int tries = 1; proxy < 0 && errno == ECONNREFUSED && tries < TASK_LIMIT * TRIES_PER_SECOND; tries++) {
        usleep(1000000 / TRIES_PER_SECOND);
        proxy = connect_once(name, rank);
    }
    if (proxy < 0)
        return -1;
    const struct timeval limit = {.tv_sec = TASK_LIMIT};
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (setsockopt(proxy, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
        getsockopt(proxy, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        if (peer.uid == user)
            return proxy;
        errno = EPERM;
    }
    int error = errno;
    close(proxy);
    errno = error;
    return -1;
}

/* Sets the variables of NAME=VALUE lines that end with the connection. The number of variables, or -1. */
static int take_variables(spank_t spank, int proxy)
{
    char *text = malloc(VARIABLES_MAX);
    size_t length = 0;
    ssize_t got = text ? 1 : -1;
    while (got != 0 && text && length < VARIABLES_MAX - 1) {
        got = read(proxy, text + length, VARIABLES_MAX - 1 - length);
        if (got < 0 && errno != EINTR)
            break;
        length += got > 0 ? (size_t)got : 0;
    }
    int count = got == 0 ? 0 : -1;
    if (count == 0) {
        text[length] = '\0';
        char *rest = text;
        for (char *line; count >= 0 && (line = strsep(&rest, "\n"));) {
            char *value = strchr(line, '=');
            if (!value)
                continue;
            *value++ = '\0';
            count = spank_setenv(spank, line, value, 1) == ESPANK_SUCCESS ? count + 1 : -1;
        }
    }
    free(text);
    return count;
}

/* Runs in the process of a task. */
int slurm_spank_task_init(spank_t spank, int count, char *arguments[])
{
    /* Of Slurm's own plugins (--mpi): a client would use these instead of ours. */
    static const char *const others[] = {TASK_SOCKET, OWN_ALLOCATION, "PMI_FD", "PMI_RANK", "PMI_SIZE"};
    char name[64];
    uint32_t rank;
    (void)count;
    (void)arguments;
    if (spank_getenv(spank, TASK_SOCKET, name, sizeof name) != ESPANK_SUCCESS)
        return 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        spank_unsetenv(spank, others[i]);
    if (spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS)
        return -1;
    int proxy = connect_to_proxy(name, rank, getuid());
    if (proxy < 0) {
        slurm_error("wireup: task %u cannot connect with `wireup serve`: %m", rank);
        return -1;
    }
    int variables = take_variables(spank, proxy);
    close(proxy);
    if (variables <= 0)
        slurm_error("wireup: task %u gets no variables from `wireup serve`", rank);
    return variables > 0 ? 0 : -1;
}

/* The slurmstepd that a process descends from, or 0. */
static pid_t slurmstepd_of(pid_t pid)
{
    char path[32], name[32] = "";
    while (pid > 1 && strcmp(name, "slurmstepd") != 0) {
        int own = 0, parent = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        FILE *file = fopen(path, "r");
        if (!file)
            return 0;
        if (fscanf(file, "%d (%31[^)]) %*c %d", &own, name, &parent) != 3)
            parent = 0;
        fclose(file);
        pid = strcmp(name, "slurmstepd") == 0 ? own : parent;
    }
    return pid > 1 ? pid : 0;
}

/* Runs in slurmstepd for each task: finds the slurmstepd of the agents' step on this node, which the proxies descend from. */
int slurm_spank_task_post_fork(spank_t spank, int count, char *arguments[])
{
    char name[64];
    uint32_t rank;
    uid_t user;
    (void)count;
    (void)arguments;
    if (own_node.has_started || spank_getenv(spank, OWN_ALLOCATION, name, sizeof name) != ESPANK_SUCCESS ||
        spank_getenv(spank, TASK_SOCKET, name, sizeof name) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS)
        return 0;
    own_node.has_started = true;
    int proxy = connect_to_proxy(name, rank, user);
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    if (proxy >= 0 && getsockopt(proxy, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        pid_t agents = slurmstepd_of(peer.pid);
        if (agents > 0)
            own_node.agents = (int)syscall(SYS_pidfd_open, agents, 0);
    }
    if (proxy >= 0)
        close(proxy);
    return 0;
}

/*
 * Runs in slurmstepd. When the last task of the node has ended, waits for the end of the agents' step on this node: an srun that has
 * made its own allocation reports the end of the job as soon as the tasks have ended, and Slurm then cancels the other steps.
 */
int slurm_spank_task_exit(spank_t spank, int count, char *arguments[])
{
    uint32_t tasks = 0;
    (void)count;
    (void)arguments;
    if (own_node.agents < 0 || spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS || ++own_node.ended < tasks)
        return 0;
    struct pollfd end = {.fd = own_node.agents, .events = POLLIN};
    poll(&end, 1, AGENTS_END_LIMIT * 1000);
    close(own_node.agents);
    own_node.agents = -1;
    return 0;
}
