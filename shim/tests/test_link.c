/* Upcalls as libpmix makes them, answers as the agent gives them, and what happens without it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "driver.h"

static pmix_server_module_t *m;
static int lost_calls;
static char lost_reason[128];

static void on_lost(const char *reason)
{
    strncpy(lost_reason, reason, sizeof(lost_reason) - 1);
    bump(&lost_calls);
}

/* What a callback got; one per upcall. */
struct result {
    int calls;
    pmix_status_t status;
    uint8_t data[64];
    size_t data_len;
    size_t infos;
    char text[32];
    pthread_t thread;
};

static void on_op(pmix_status_t status, void *data)
{
    struct result *result = data;
    result->status = status;
    result->thread = pthread_self();
    bump(&result->calls);
}

static void on_modex(pmix_status_t status, const char *blob, size_t len, void *data,
                     pmix_release_cbfunc_t release, void *release_data)
{
    struct result *result = data;
    CHECK(len <= sizeof(result->data));
    result->status = status;
    result->data_len = len;
    if (len > 0) {
        memcpy(result->data, blob, len);
    }
    release(release_data);
    bump(&result->calls);
}

static void on_infos(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                     pmix_release_cbfunc_t release, void *release_data)
{
    struct result *result = data;
    result->thread = pthread_self();
    result->status = status;
    result->infos = count;
    if (count > 0 && infos[0].value.type == PMIX_STRING) {
        strncpy(result->text, infos[0].value.data.string, sizeof(result->text) - 1);
    }
    release(release_data);
    bump(&result->calls);
}

/* Takes the endpoint data over, as libpmix does. */
static void on_group(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                     pmix_release_cbfunc_t release, void *release_data)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(infos[i].key, PMIX_GROUP_ENDPT_DATA) == 0) {
            pmix_byte_object_t *bo = &infos[i].value.data.bo;
            CHECK(bo->size == 3 && memcmp(bo->bytes, "\0\1\0", 3) == 0);
            free(bo->bytes);
            bo->bytes = NULL;
            bo->size = 0;
        }
    }
    on_infos(status, infos, count, data, release, release_data);
}

/* Writes over what it was given, as it may: nothing of it is read again. */
static void on_found(pmix_status_t status, pmix_pdata_t found[], size_t count, void *data)
{
    struct result *result = data;
    result->thread = pthread_self();
    result->status = status;
    result->infos = count;
    if (count > 0) {
        CHECK(strcmp(found[0].proc.nspace, "job-1") == 0 && found[0].proc.rank == 3);
        CHECK(strcmp(found[0].key, "name") == 0 && found[0].value.type == PMIX_STRING);
        strncpy(result->text, found[0].value.data.string, sizeof(result->text) - 1);
        CHECK(count == 2 && strcmp(found[1].key, "record") == 0);
        memset(found, 0xff, count * sizeof(*found));
    }
    bump(&result->calls);
}

static void on_spawned(pmix_status_t status, pmix_nspace_t nspace, void *data)
{
    struct result *result = data;
    result->status = status;
    result->thread = pthread_self();
    CHECK((nspace == NULL) == (status != PMIX_SUCCESS));
    if (nspace != NULL) {
        CHECK(memchr(nspace, 0, PMIX_MAX_NSLEN + 1) != NULL);
        result->data_len = strlen(nspace);
        strncpy(result->text, nspace, sizeof(result->text) - 1);
        memset(nspace, 0xff, PMIX_MAX_NSLEN + 1);
    }
    bump(&result->calls);
}

static void on_credential(pmix_status_t status, pmix_byte_object_t *credential, pmix_info_t infos[],
                          size_t count, void *data)
{
    struct result *result = data;
    result->thread = pthread_self();
    result->status = status;
    result->infos = count;
    if (status == PMIX_SUCCESS) {
        CHECK(credential->size > 0);
        result->data_len = credential->size < sizeof(result->data) ? credential->size : sizeof(result->data);
        memcpy(result->data, credential->bytes, result->data_len);
        CHECK(count == 1 && infos[0].value.type == PMIX_STRING);
        strncpy(result->text, infos[0].value.data.string, sizeof(result->text) - 1);
    }
    bump(&result->calls);
}

static void on_validation(pmix_status_t status, pmix_info_t infos[], size_t count, void *data)
{
    struct result *result = data;
    result->thread = pthread_self();
    result->status = status;
    result->infos = count;
    if (count > 0) {
        CHECK(infos[0].value.type == PMIX_UINT32 && infos[0].value.data.uint32 == 1000);
    }
    bump(&result->calls);
}

static pmix_info_t kinds(const char *list)
{
    pmix_info_t info;
    memset(&info, 0, sizeof(info));
    strcpy(info.key, PMIX_CRED_TYPE);
    info.value.type = PMIX_STRING;
    info.value.data.string = (char *)list;
    return info;
}

static pmix_proc_t me;
static struct result aborted, fenced, modexed, queried, logged, published, found, withdrawn, grouped,
    controlled, spawned, connected, disconnected, pushed, vouched, checked,
    allocated, session_controlled, attached;
static struct result *const all[] = {&aborted,   &fenced,  &modexed,   &queried,     &logged,
                                     &found,     &published, &withdrawn, &grouped,     &controlled,
                                     &spawned, &connected, &disconnected, &pushed, &vouched, &checked,
                                     &allocated, &session_controlled, &attached};
enum { REQUESTS = sizeof(all) / sizeof(all[0]) };

typedef pmix_status_t session_control_fn(const pmix_proc_t *, uint32_t, const pmix_info_t[], size_t,
                                         pmix_info_cbfunc_t, void *);

/* The slot at this distance behind the last one that all versions have in common. */
static session_control_fn *slot_behind(size_t slot)
{
    session_control_fn *function;
    const size_t behind = offsetof(pmix_server_module_t, client_connected2) + sizeof(function);
    memcpy(&function, (const unsigned char *)m + behind + slot * sizeof(function), sizeof(function));
    return function;
}

static void on_attached(pmix_status_t status, pmix_proc_t *proc, void *data)
{
    struct result *result = data;
    result->status = status;
    result->infos = proc->rank;
    strncpy(result->text, proc->nspace, sizeof(result->text) - 1);
    bump(&result->calls);
}

static void make_requests(void)
{
    pmix_proc_t procs[2] = {proc_of("job-1", 0), proc_of("job-2", PMIX_RANK_WILDCARD)};
    pmix_info_t info;
    memset(&info, 0, sizeof(info));
    strcpy(info.key, PMIX_COLLECT_DATA);
    info.value.type = PMIX_BOOL;
    info.value.data.flag = true;
    CHECK(m->abort(&me, NULL, 7, "told to", procs, 2, on_op, &aborted) == PMIX_SUCCESS);
    char *blob = malloc(5);
    memcpy(blob, "\1\0\2\0\3", 5);
    CHECK(m->fence_nb(procs, 2, &info, 1, blob, 5, on_modex, &fenced) == PMIX_SUCCESS);
    CHECK(m->direct_modex(&procs[0], &info, 1, on_modex, &modexed) == PMIX_SUCCESS);
    char *keys[] = {"pmix.qry.psetnum", "other", NULL};
    pmix_query_t queries[2] = {{keys, &info, 1}, {NULL, NULL, 0}};
    CHECK(m->query(&me, queries, 2, on_infos, &queried) == PMIX_SUCCESS);
    pmix_info_t text;
    memset(&text, 0, sizeof(text));
    strcpy(text.key, PMIX_LOG_STDERR);
    text.value.type = PMIX_STRING;
    text.value.data.string = "help\n";
    m->log(&me, &text, 1, NULL, 0, on_op, &logged);
    char *names[] = {"name", "", NULL};
    CHECK(m->publish(&me, &info, 1, on_op, &published) == PMIX_SUCCESS);
    CHECK(m->lookup(&me, names, &info, 1, on_found, &found) == PMIX_SUCCESS);
    CHECK(m->unpublish(&me, NULL, NULL, 3, on_op, &withdrawn) == PMIX_SUCCESS);
    CHECK(m->group(PMIX_GROUP_CONSTRUCT, "tag-1", procs, 2, &info, 1, on_group, &grouped)
          == PMIX_SUCCESS);
    CHECK(m->job_control(&me, procs, 2, &info, 1, on_infos, &controlled) == PMIX_SUCCESS);
    char *argv[] = {"child", "", "--go", NULL};
    char *env[] = {"OMPI_PARENT_PORT=1;a=b", NULL};
    pmix_app_t apps[2] = {{.cmd = "/bin/child",
                           .argv = argv,
                           .env = env,
                           .cwd = "/tmp",
                           .maxprocs = 2,
                           .info = &info,
                           .ninfo = 1},
                          {.maxprocs = -1, .ninfo = 3}};
    CHECK(m->spawn(&me, &info, 1, apps, 2, on_spawned, &spawned) == PMIX_SUCCESS);
    CHECK(m->connect(procs, 2, &info, 1, on_op, &connected) == PMIX_SUCCESS);
    CHECK(m->disconnect(procs, 2, NULL, 3, on_op, &disconnected) == PMIX_SUCCESS);
    pmix_byte_object_t input = {.bytes = "a\0b", .size = 3};
    CHECK(m->push_stdin(&me, procs, 2, &info, 1, &input, on_op, &pushed) == PMIX_SUCCESS);
    pmix_info_t own = kinds("wireup,munge");
    CHECK(m->get_credential(&me, &own, 1, on_credential, &vouched) == PMIX_SUCCESS);
    const pmix_byte_object_t token = {.bytes = "to\0ken", .size = 6};
    CHECK(m->validate_credential(&me, &token, NULL, 0, on_validation, &checked) == PMIX_SUCCESS);
    CHECK(m->allocate(&me, PMIX_ALLOC_EXTEND, &info, 1, on_infos, &allocated) == PMIX_SUCCESS);
    CHECK(slot_behind(2)(&me, 7, &info, 1, on_infos, &session_controlled) == PMIX_SUCCESS);
    m->tool_connected(&info, 1, on_attached, &attached);
}

/* What a version calls when a session is to be controlled is elsewhere or something else for another. */
static void test_versions(void)
{
    const struct {
        uint32_t major, minor;
        size_t slot;
    } versions[] = {{4, 2, SIZE_MAX}, {5, 0, SIZE_MAX}, {6, 0, 0}, {6, 2, 2}, {8, 0, SIZE_MAX}, {7, 0, 2}, {6, 1, 2}};
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        m = wireup_module(versions[i].major, versions[i].minor);
        for (size_t slot = 0; slot < 6; slot++) {
            CHECK((slot_behind(slot) != NULL) == (slot == versions[i].slot));
        }
    }
}

static void expect_frame(const char *name)
{
    size_t len;
    uint8_t *frame = agent_read(&len);
    match_golden(name, frame, len);
    free(frame);
}

static void on_alert_done(pmix_status_t status, pmix_info_t *results, size_t count,
                          pmix_op_cbfunc_t done, void *done_data, void *data)
{
    (void)results;
    (void)done;
    (void)done_data;
    CHECK(status == PMIX_EVENT_ACTION_COMPLETE && count == 0);
    bump(data);
}

/* libpmix's own alerts are events like any other, and libpmix gets the answer that they were handled. */
static void test_alerts(void)
{
    int calls = 0;
    size_t len;
    CHECK(wireup_watch_alerts() == PMIX_SUCCESS);
    alert_handler(7, PMIX_MONITOR_FILE_ALERT, &me, NULL, 0, NULL, 0, on_alert_done, &calls);
    alert_handler(7, PMIX_MONITOR_FILE_ALERT, &me, NULL, 0, NULL, 0, NULL, NULL);
    CHECK(calls == 1);
    pmix_proc_t other = proc_of("job-1", 0);
    pmix_info_t info;
    memset(&info, 0, sizeof(info));
    strcpy(info.key, PMIX_PROCID);
    info.value.type = PMIX_PROC;
    info.value.data.proc = &other;
    loss_handler(8, PMIX_ERR_LOST_CONNECTION, &me, &info, 1, NULL, 0, on_alert_done, &calls);
    CHECK(calls == 2);
    for (int i = 0; i < 2; i++) {
        uint8_t *frame = agent_read(&len);
        CHECK(frame[4] == (WIREUP_OP_NOTIFY_EVENT & 0xff) && frame[WIREUP_HEADER_LEN] == (uint8_t)-110);
        CHECK(memcmp(frame + WIREUP_HEADER_LEN + 8, "job-1", 5) == 0);
        free(frame);
    }
    expect_frame("c/connections_lost.bin");
}

/* A tool that directs the launch is reported as one that has released the launcher. */
static void test_direction(void)
{
    unsetenv(PMIX_LAUNCHER_RNDZ_URI);
    CHECK(wireup_follow_tool() == PMIX_SUCCESS);
    setenv(PMIX_LAUNCHER_RNDZ_URI, "tool.0;tcp4://127.0.0.1:1", 1);
    CHECK(wireup_follow_tool() == PMIX_SUCCESS);
    unsetenv(PMIX_LAUNCHER_RNDZ_URI);
    size_t len;
    uint8_t *frame = agent_read(&len);
    CHECK(frame[4] == (WIREUP_OP_NOTIFY_EVENT & 0xff) && frame[WIREUP_HEADER_LEN] == (uint8_t)-3);
    CHECK(memcmp(frame + WIREUP_HEADER_LEN + 8, "tool", 4) == 0);
    CHECK(memmem(frame, len, PMIX_DEBUG_STOP_IN_INIT, strlen(PMIX_DEBUG_STOP_IN_INIT)) != NULL);
    free(frame);
}

/* The first requests of the process, so their ids begin with 1. */
void test_upcalls(void)
{
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    agent_fd = fds[0];
    test_versions();
    CHECK(wireup_link_start(fds[1], on_lost) == 0);
    me = proc_of("job-1", 1);
    size_t count;
    pmix_info_t *infos = all_kinds(&count);
    pmix_status_t codes[2] = {PMIX_ERR_PROC_ABORTED, PMIX_EVENT_NODE_DOWN};

    CHECK(m->client_connected == NULL);
    CHECK(m->client_connected2(&me, NULL, infos, 1, NULL, NULL) == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/client_connected.bin");
    CHECK(m->client_finalized(&me, NULL, NULL, NULL) == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/client_finalized.bin");
    CHECK(m->register_events(codes, 2, infos, 2, NULL, NULL) == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/register_events.bin");
    CHECK(m->deregister_events(NULL, 2, NULL, NULL) == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/deregister_events.bin");
    CHECK(m->notify_event(-3333, &me, PMIX_RANGE_SESSION, infos, count, NULL, NULL)
          == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/notify_event.bin");
    test_alerts();
    test_direction();
    pmix_proc_t pulled[2] = {proc_of("job-1", 0), proc_of("job-2", PMIX_RANK_WILDCARD)};
    CHECK(m->iof_pull(pulled, 2, infos, 1, PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL, NULL,
                      NULL) == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/iof_pull.bin");
    pmix_info_t local;
    memset(&local, 0, sizeof(local));
    strcpy(local.key, PMIX_GROUP_LOCAL_ONLY);
    CHECK(m->group(PMIX_GROUP_DESTRUCT, "tag-1", &me, 1, &local, 1, NULL, NULL)
          == PMIX_OPERATION_SUCCEEDED);
    expect_frame("c/group_ended.bin");
    make_requests();
    expect_frame("c/abort.bin");
    expect_frame("c/fence.bin");
    expect_frame("c/direct_modex.bin");
    expect_frame("c/query.bin");
    expect_frame("c/log.bin");
    expect_frame("c/publish.bin");
    expect_frame("c/lookup.bin");
    expect_frame("c/unpublish.bin");
    expect_frame("c/group.bin");
    expect_frame("c/job_control.bin");
    expect_frame("c/spawn.bin");
    expect_frame("c/connect.bin");
    expect_frame("c/disconnect.bin");
    expect_frame("c/push_stdin.bin");
    expect_frame("c/get_credential.bin");
    expect_frame("c/validate_credential.bin");
    expect_frame("c/allocate.bin");
    expect_frame("c/session_control.bin");
    expect_frame("c/tool_connected.bin");
    notice_of_spawn("job-1.2", strlen("job-1.2"));
    expect_frame("c/spawned.bin");
    /* Everything else is left to libpmix. */
    CHECK(m->fabric == NULL && m->monitor == NULL);
}

static void send_golden(const char *name)
{
    size_t len;
    uint8_t *frame = read_golden(name, &len);
    agent_write(frame, len);
    free(frame);
}

/* Out of order, as the agent may. */
void test_completions(void)
{
    send_golden("rust/answer_query.bin");
    wait_until(&queried.calls, 1);
    CHECK(pthread_equal(queried.thread, libpmix_thread));
    CHECK(queried.status == PMIX_SUCCESS && queried.infos == 2);
    CHECK(strcmp(queried.text, "42") == 0);
    send_golden("rust/answer_fence.bin");
    wait_until(&fenced.calls, 1);
    CHECK(fenced.status == PMIX_SUCCESS && fenced.data_len == 5);
    CHECK(memcmp(fenced.data, "a\0b\0c", 5) == 0);
    send_golden("rust/answer_direct_modex.bin");
    wait_until(&modexed.calls, 1);
    CHECK(modexed.status == PMIX_ERR_NOT_FOUND && modexed.data_len == 0);
    send_golden("rust/answer_abort.bin");
    wait_until(&aborted.calls, 1);
    CHECK(aborted.status == PMIX_SUCCESS);
    /* In pieces, and from another thread than the upcall's. */
    size_t len;
    uint8_t *frame = read_golden("rust/answer_log.bin", &len);
    for (size_t i = 0; i < len; i++) {
        agent_write(frame + i, 1);
    }
    free(frame);
    wait_until(&logged.calls, 1);
    CHECK(logged.status == PMIX_SUCCESS && !pthread_equal(logged.thread, pthread_self()));
    send_golden("rust/answer_unpublish.bin");
    wait_until(&withdrawn.calls, 1);
    CHECK(withdrawn.status == PMIX_ERR_NOT_FOUND);
    send_golden("rust/answer_publish.bin");
    wait_until(&published.calls, 1);
    CHECK(published.status == PMIX_ERR_DUPLICATE_KEY);
    /* A value of a foreign type between two others is left out. */
    send_golden("rust/answer_lookup.bin");
    wait_until(&found.calls, 1);
    CHECK(pthread_equal(found.thread, libpmix_thread));
    CHECK(found.status == PMIX_SUCCESS && found.infos == 2);
    CHECK(strcmp(found.text, "port") == 0);
    send_golden("rust/answer_group.bin");
    wait_until(&grouped.calls, 1);
    CHECK(grouped.status == PMIX_SUCCESS && grouped.infos == 3);
    send_golden("rust/answer_job_control.bin");
    wait_until(&controlled.calls, 1);
    CHECK(pthread_equal(controlled.thread, libpmix_thread));
    CHECK(controlled.status == PMIX_ERR_NOT_SUPPORTED && controlled.infos == 0);
    send_golden("rust/answer_disconnect.bin");
    wait_until(&disconnected.calls, 1);
    CHECK(disconnected.status == PMIX_SUCCESS && !pthread_equal(disconnected.thread, pthread_self()));
    send_golden("rust/answer_connect.bin");
    wait_until(&connected.calls, 1);
    CHECK(connected.status == PMIX_ERR_TIMEOUT);
    send_golden("rust/answer_push_stdin.bin");
    wait_until(&pushed.calls, 1);
    CHECK(pushed.status == PMIX_ERR_NOT_SUPPORTED);
    send_golden("rust/answer_spawn.bin");
    wait_until(&spawned.calls, 1);
    CHECK(spawned.status == PMIX_SUCCESS && strcmp(spawned.text, "job-1.2") == 0);
    CHECK(pthread_equal(spawned.thread, libpmix_thread));
    expect_frame("c/spawned.bin");
    send_golden("rust/answer_get_credential.bin");
    wait_until(&vouched.calls, 1);
    CHECK(pthread_equal(vouched.thread, libpmix_thread));
    CHECK(vouched.status == PMIX_SUCCESS && vouched.data_len == 6);
    CHECK(memcmp(vouched.data, "to\0ken", 6) == 0 && strcmp(vouched.text, "wireup") == 0);
    send_golden("rust/answer_validate_credential.bin");
    wait_until(&checked.calls, 1);
    CHECK(pthread_equal(checked.thread, libpmix_thread));
    CHECK(checked.status == PMIX_SUCCESS && checked.infos == 1);
    send_golden("rust/answer_allocate.bin");
    wait_until(&allocated.calls, 1);
    CHECK(pthread_equal(allocated.thread, libpmix_thread));
    CHECK(allocated.status == PMIX_SUCCESS && allocated.infos == 1);
    CHECK(strcmp(allocated.text, "a1") == 0);
    send_golden("rust/answer_session_control.bin");
    wait_until(&session_controlled.calls, 1);
    send_golden("rust/answer_tool_connected.bin");
    wait_until(&attached.calls, 1);
    CHECK(attached.status == PMIX_SUCCESS && attached.infos == 3);
    CHECK(strcmp(attached.text, "job-1-tool-0-1") == 0);
    CHECK(pthread_equal(session_controlled.thread, libpmix_thread));
    CHECK(session_controlled.status == PMIX_ERR_NOT_FOUND && session_controlled.infos == 0);
    for (size_t i = 0; i < REQUESTS; i++) {
        CHECK(all[i]->calls == 1);
    }
}

static uint8_t *answer_to_spawn(uint64_t id, pmix_status_t status, const char *name, size_t *len)
{
    struct out o;
    out_init(&o);
    put_u32(&o, (uint32_t)status);
    put_text(&o, name);
    put_count(&o, 0);
    uint8_t *frame = out_finish(&o, WIREUP_OP_SPAWN, id, len);
    CHECK(frame != NULL);
    frame[6] = WIREUP_FLAG_REPLY;
    return frame;
}

/* No bytes at all are the end of the input. */
void test_end_of_input(void)
{
    pmix_byte_object_t none = {.bytes = NULL, .size = 3};
    const pmix_byte_object_t *inputs[] = {NULL, &none};
    for (size_t i = 0; i < 2; i++) {
        struct result result = {0};
        CHECK(m->push_stdin(&me, NULL, 3, NULL, 3, inputs[i], on_op, &result) == PMIX_SUCCESS);
        size_t len;
        uint8_t *frame = agent_read(&len);
        /* No targets, no infos, no bytes. */
        CHECK(len > WIREUP_HEADER_LEN + 12);
        for (size_t n = len - 12; n < len; n++) {
            CHECK(frame[n] == 0);
        }
        uint8_t *answer = read_golden("rust/answer_push_stdin.bin", &len);
        answer[8] = frame[8];
        agent_write(answer, len);
        wait_until(&result.calls, 1);
        free(frame);
        free(answer);
    }
}

/* A failed one has no name, and one name may be as long as PMIx allows. */
void test_spawns(void)
{
    char longest[WIREUP_MAX_NSPACE + 1];
    memset(longest, 'n', WIREUP_MAX_NSPACE);
    longest[WIREUP_MAX_NSPACE] = '\0';
    const struct {
        pmix_status_t status;
        const char *name;
        size_t len;
    } answers[] = {{PMIX_ERR_NOT_FOUND, "", 0},
                   {PMIX_ERR_NOT_FOUND, "ignored", 0},
                   {PMIX_SUCCESS, longest, WIREUP_MAX_NSPACE}};
    pmix_app_t app = {.cmd = "child", .maxprocs = 1};
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct result result = {0};
        CHECK(m->spawn(&me, NULL, 0, &app, 1, on_spawned, &result) == PMIX_SUCCESS);
        size_t len;
        uint8_t *frame = agent_read(&len);
        const uint64_t id = frame[8];
        CHECK(len > WIREUP_HEADER_LEN && frame[4] == (WIREUP_OP_SPAWN & 0xff));
        free(frame);
        uint8_t *answer = answer_to_spawn(id, answers[i].status, answers[i].name, &len);
        agent_write(answer, len);
        free(answer);
        wait_until(&result.calls, 1);
        CHECK(result.status == answers[i].status && result.data_len == answers[i].len);
        if (answers[i].status == PMIX_SUCCESS) {
            frame = agent_read(&len);
            CHECK(frame[4] == (WIREUP_OP_SPAWNED & 0xff));
            free(frame);
        }
    }
}

/* What a client wants kept is known by the paths below it. */
void test_kept(void)
{
    pmix_info_t infos[3];
    struct result never = {0};
    memset(infos, 0, sizeof(infos));
    strcpy(infos[0].key, PMIX_REGISTER_CLEANUP_DIR);
    infos[0].value.type = PMIX_STRING;
    infos[0].value.data.string = "/tmp/plain";
    CHECK(m->job_control(&me, NULL, 0, infos, 1, on_infos, &never) == PMIX_SUCCESS);
    infos[0].value.data.string = "/tmp/also,/tmp/kept//";
    strcpy(infos[1].key, PMIX_CLEANUP_EMPTY);
    infos[1].value.type = PMIX_BOOL;
    infos[1].value.data.flag = true;
    CHECK(m->job_control(&me, NULL, 0, infos, 3, on_infos, &never) == PMIX_SUCCESS);
    CHECK(wireup_keeps("/tmp/kept/file") && wireup_keeps("/tmp/kept/below/file"));
    CHECK(wireup_keeps("/tmp/also/file") && !wireup_keeps("/tmp/also,/tmp/kept/file"));
    CHECK(!wireup_keeps("/tmp/kept2") && !wireup_keeps("/tmp/plain/file") && !wireup_keeps("/tmp"));
    for (int i = 0; i < 2; i++) {
        size_t len;
        uint8_t *frame = agent_read(&len);
        const uint8_t id = frame[8];
        free(frame);
        uint8_t *answer = read_golden("rust/answer_job_control.bin", &len);
        answer[8] = id;
        agent_write(answer, len);
        free(answer);
        wait_until(&never.calls, i + 1);
    }
}

/* Munge's are made and checked here; what its daemon cannot do goes to the agent if it may. Whether
 * there is a daemon is the machine's affair. */
void test_munge(void)
{
    struct result only = {0}, either = {0}, wrong = {0}, never = {0};
    pmix_info_t munge = kinds("munge"), both = kinds("kerberos,munge,wireup"), other = kinds("kerberos");
    const pmix_byte_object_t forged = {.bytes = "MUNGE:AwQFAAD:", .size = 14};
    const pmix_byte_object_t token = {.bytes = "token", .size = 5};
    CHECK(m->get_credential(&me, &other, 1, on_credential, &never) == PMIX_ERR_NOT_SUPPORTED);
    CHECK(m->validate_credential(&me, &forged, &other, 1, on_validation, &never) == PMIX_ERR_NOT_SUPPORTED);
    CHECK(m->validate_credential(&me, &token, &munge, 1, on_validation, &never) == PMIX_ERR_NOT_SUPPORTED);
    CHECK(m->get_credential(&me, &munge, 1, on_credential, &only) == PMIX_SUCCESS);
    wait_until(&only.calls, 1);
    CHECK(m->validate_credential(&me, &forged, NULL, 0, on_validation, &wrong) == PMIX_SUCCESS);
    wait_until(&wrong.calls, 1);
    CHECK(wrong.infos == 0);
    CHECK(m->get_credential(&me, &both, 1, on_credential, &either) == PMIX_SUCCESS);
    if (only.status == PMIX_SUCCESS) {
        CHECK(memcmp(only.data, "MUNGE:", 6) == 0 && strcmp(only.text, "munge") == 0);
        CHECK(wrong.status == PMIX_ERR_INVALID_CRED);
    } else {
        size_t len;
        uint8_t *frame = agent_read(&len);
        const uint8_t id = frame[8];
        CHECK(frame[4] == (WIREUP_OP_GET_CREDENTIAL & 0xff));
        free(frame);
        uint8_t *answer = read_golden("rust/answer_get_credential.bin", &len);
        answer[8] = id;
        agent_write(answer, len);
        free(answer);
        CHECK(only.status == PMIX_ERR_NOT_SUPPORTED);
    }
    wait_until(&either.calls, 1);
    CHECK(either.status == PMIX_SUCCESS && never.calls == 0);
}

/* The agent hears nothing of these, and nothing is called back. */
void test_local_groups(void)
{
    pmix_info_t local;
    memset(&local, 0, sizeof(local));
    strcpy(local.key, PMIX_GROUP_LOCAL_ONLY);
    local.value.type = PMIX_BOOL;
    local.value.data.flag = true;
    struct result never = {0};
    CHECK(m->group(PMIX_GROUP_DESTRUCT, "tag-1", &me, 1, &local, 1, on_infos, &never)
          == PMIX_OPERATION_SUCCEEDED);
    uint8_t *ended = agent_read(&(size_t){0});
    CHECK(ended[4] == (WIREUP_OP_GROUP_ENDED & 0xff));
    free(ended);
    CHECK(m->group((pmix_group_operation_t)2, "tag-1", &me, 1, NULL, 3, on_infos, &never)
          == PMIX_ERR_NOT_SUPPORTED);
    /* With members on other nodes it is a request like any other. */
    local.value.data.flag = false;
    CHECK(m->group(PMIX_GROUP_DESTRUCT, "tag-1", &me, 1, &local, 1, on_infos, &never) == PMIX_SUCCESS);
    size_t len;
    uint8_t *frame = agent_read(&len);
    CHECK(len > WIREUP_HEADER_LEN && frame[4] == (WIREUP_OP_GROUP & 0xff));
    const uint8_t id = frame[8];
    CHECK(frame[WIREUP_HEADER_LEN] == WIREUP_GROUP_DESTRUCT);
    free(frame);
    /* Endpoint data that no callback takes over is freed too. */
    uint8_t *answer = read_golden("rust/answer_group.bin", &len);
    answer[8] = id;
    agent_write(answer, len);
    wait_until(&never.calls, 1);
    CHECK(never.status == PMIX_SUCCESS && never.infos == 3);
    free(answer);
}

/* A second answer to the same request is a broken protocol: everything is completed, once. */
void test_loss(void)
{
    for (size_t i = 0; i < REQUESTS; i++) {
        memset(all[i], 0, sizeof(*all[i]));
    }
    make_requests();
    send_golden("rust/answer_fence.bin");
    wait_until(&lost_calls, 1);
    CHECK(strstr(lost_reason, "malformed") != NULL);
    for (size_t i = 0; i < REQUESTS; i++) {
        /* A tool is never refused: libpmix 4.2 does not survive that. */
        CHECK(all[i]->calls == 1);
        CHECK(all[i]->status == (all[i] == &attached ? PMIX_SUCCESS : PMIX_ERR_LOST_CONNECTION));
    }
    /* And refused from now on, with nothing called back. */
    pmix_proc_t proc = proc_of("job-1", 0);
    CHECK(m->client_finalized(&proc, NULL, NULL, NULL) == PMIX_ERR_LOST_CONNECTION);
    CHECK(m->fence_nb(&proc, 1, NULL, 0, malloc(9), 9, on_modex, &fenced) == PMIX_ERR_LOST_CONNECTION);
    CHECK(m->abort(&proc, NULL, 1, NULL, NULL, 0, on_op, &aborted) == PMIX_ERR_LOST_CONNECTION);
    CHECK(m->lookup(&proc, NULL, NULL, 0, on_found, &found) == PMIX_ERR_LOST_CONNECTION);
    CHECK(m->spawn(&proc, NULL, 0, NULL, 0, on_spawned, &spawned) == PMIX_ERR_LOST_CONNECTION);
    CHECK(m->connect(&proc, 1, NULL, 0, on_op, &connected) == PMIX_ERR_LOST_CONNECTION);
    CHECK(m->iof_pull(&proc, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, NULL, NULL)
          == PMIX_ERR_LOST_CONNECTION);
    wireup_link_stop();
    CHECK(fenced.calls == 1 && aborted.calls == 1 && found.calls == 1 && lost_calls == 1);
    CHECK(spawned.calls == 1 && connected.calls == 1 && disconnected.calls == 1);
    close(agent_fd);
}
