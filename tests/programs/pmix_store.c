/*
 * pmix_store MODE
 *
 * Publishes and looks up through PMIx itself, with 4 ranks or more. Every mode checks what it sees;
 * each rank that comes to the end prints
 *     pmix_store rank=R size=N mode=MODE got=TEXT
 * where TEXT is what the rank looked up last, or "-".
 *
 *   types     values of several types, found with their publisher; duplicates; withdrawing
 *   wait      everybody waits before rank 0 publishes; a wait that is too short; waiting for some
 *   once      everybody waits for a value that rank 0 publishes for one reader, once per rank
 *   ranges    LOCAL, NAMESPACE, PROC_LOCAL and CUSTOM; of two values the nearer one
 *   partial   some of several keys
 *   ended     rank 3 ends while it waits, and what it published for its lifetime goes
 *   app       as two programs, ranks 0 and 1 and the rest: what lives as long as the second one
 *   put       what a rank puts after a fence that has brought everything put before, from another
 *             rank, which may be late
 *   shown     rank 0 publishes "shown", and everybody waits to be ended
 *   stuck     all ranks wait for a key that is never published, and for the end
 *   meet      with others that publish "pmi1" and "pmi2": publishes "pmix", waits until both have
 *             seen everything ("pmi1.done", "pmi2.done"), publishes "end"
 */
#include "client.h"
#include <pmix.h>

static unsigned size;
static char got[256] = "-";

/* For a call without that directive. */
enum { NO_RANGE = 0, NO_PERSISTENCE = -1 };

static void load(pmix_info_t *info, const char *key, const void *value, pmix_data_type_t type)
{
    PMIX_INFO_LOAD(info, key, value, type);
}

static pmix_status_t publish_value(const char *key, const void *value, pmix_data_type_t type,
                                   pmix_data_range_t range, int persistence)
{
    pmix_info_t infos[3];
    size_t count = 0;
    load(&infos[count++], key, value, type);
    if (range != NO_RANGE)
        load(&infos[count++], PMIX_RANGE, &range, PMIX_DATA_RANGE);
    if (persistence != NO_PERSISTENCE) {
        pmix_persistence_t persist = (pmix_persistence_t)persistence;
        load(&infos[count++], PMIX_PERSISTENCE, &persist, PMIX_PERSIST);
    }
    pmix_status_t status = PMIx_Publish(infos, count);
    for (size_t i = 0; i < count; i++)
        PMIX_INFO_DESTRUCT(&infos[i]);
    return status;
}

static pmix_status_t publish(const char *key, const char *text, pmix_data_range_t range, int persistence)
{
    return publish_value(key, text, PMIX_STRING, range, persistence);
}

static pmix_status_t look_up_many(pmix_pdata_t *found, size_t count, pmix_data_range_t range, int wait,
                                  int timeout)
{
    pmix_info_t infos[3];
    size_t used = 0;
    if (range != NO_RANGE)
        load(&infos[used++], PMIX_RANGE, &range, PMIX_DATA_RANGE);
    if (wait >= 0)
        load(&infos[used++], PMIX_WAIT, &wait, PMIX_INT);
    if (timeout > 0)
        load(&infos[used++], PMIX_TIMEOUT, &timeout, PMIX_INT);
    return PMIx_Lookup(found, count, infos, used);
}

static void want(pmix_pdata_t *found, const char *key)
{
    PMIX_PDATA_CONSTRUCT(found);
    snprintf(found->key, sizeof found->key, "%s", key);
}

/* Looks one text up, into `got`. */
static pmix_status_t look_up(const char *key, pmix_data_range_t range, int wait, int timeout)
{
    pmix_pdata_t found;
    want(&found, key);
    pmix_status_t status = look_up_many(&found, 1, range, wait, timeout);
    if (status == PMIX_SUCCESS) {
        hold(found.value.type == PMIX_STRING, "a text was found");
        snprintf(got, sizeof got, "%s", found.value.data.string);
    }
    PMIX_PDATA_DESTRUCT(&found);
    return status;
}

static pmix_status_t unpublish(const char *key, pmix_data_range_t range)
{
    char *keys[] = {(char *)key, NULL};
    pmix_info_t info;
    if (range != NO_RANGE)
        load(&info, PMIX_RANGE, &range, PMIX_DATA_RANGE);
    return PMIx_Unpublish(key == NULL ? NULL : keys, range == NO_RANGE ? NULL : &info,
                          range == NO_RANGE ? 0 : 1);
}

/* ---- lookups that go on in the background ---- */

static int answers;
static pmix_status_t answered;

static void on_found(pmix_status_t status, pmix_pdata_t found[], size_t count, void *data)
{
    (void)data;
    pthread_mutex_lock(&lock);
    answers++;
    answered = status;
    if (status == PMIX_SUCCESS && count == 1 && found[0].value.type == PMIX_STRING)
        snprintf(got, sizeof got, "%s", found[0].value.data.string);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* Asks and goes on: the server has it before it has anything we send later. */
static void start_waiting(const char *key)
{
    static pmix_info_t infos[2];
    static char *keys[2];
    int all = 0, timeout = 120;
    load(&infos[0], PMIX_WAIT, &all, PMIX_INT);
    load(&infos[1], PMIX_TIMEOUT, &timeout, PMIX_INT);
    keys[0] = (char *)key;
    must(PMIx_Lookup_nb(keys, infos, 2, on_found, NULL), "PMIx_Lookup_nb");
}

static void finish_waiting(void)
{
    WAIT_UNTIL(answers > 0);
    must(answered, "the lookup that waited");
    hold(answers == 1, "one answer");
}

/* Until a value of a rank that ends is gone. */
static void see_it_go(const char *key)
{
    while (look_up(key, NO_RANGE, -1, 0) == PMIX_SUCCESS)
        usleep(2000);
    expect(PMIX_ERR_NOT_FOUND, look_up(key, NO_RANGE, -1, 0), key);
}

/* ---- modes ---- */

static void types(void)
{
    char bytes[] = "a\0b";
    pmix_byte_object_t blob = {bytes, sizeof bytes - 1};
    uint32_t numbers[] = {1, 2, 3};
    pmix_data_array_t array = {.type = PMIX_UINT32, .size = 3, .array = numbers};
    if (me.rank == 0) {
        double number = 1.5;
        must(publish("text", "a text", NO_RANGE, NO_PERSISTENCE), "publish text");
        must(publish_value("blob", &blob, PMIX_BYTE_OBJECT, PMIX_RANGE_GLOBAL, PMIX_PERSIST_INDEF),
             "publish blob");
        must(publish_value("array", &array, PMIX_DATA_ARRAY, NO_RANGE, NO_PERSISTENCE), "publish array");
        must(publish_value("double", &number, PMIX_DOUBLE, NO_RANGE, NO_PERSISTENCE), "publish double");
    }
    barrier();
    expect(PMIX_ERR_DUPLICATE_KEY, publish("text", "other", NO_RANGE, NO_PERSISTENCE), "duplicate");
    expect(PMIX_ERR_DUPLICATE_KEY, publish("blob", "other", PMIX_RANGE_GLOBAL, NO_PERSISTENCE),
           "duplicate in the range GLOBAL");
    pmix_pdata_t found[4];
    const char *keys[] = {"text", "blob", "array", "double"};
    for (int i = 0; i < 4; i++)
        want(&found[i], keys[i]);
    must(look_up_many(found, 4, NO_RANGE, -1, 0), "lookup of all types");
    for (int i = 0; i < 4; i++)
        hold(found[i].proc.rank == 0 && strcmp(found[i].proc.nspace, me.nspace) == 0, "publisher");
    hold(strcmp(found[0].value.data.string, "a text") == 0, "text");
    hold(found[1].value.type == PMIX_BYTE_OBJECT && found[1].value.data.bo.size == 3 &&
             memcmp(found[1].value.data.bo.bytes, bytes, 3) == 0,
         "blob");
    hold(found[2].value.type == PMIX_DATA_ARRAY && found[2].value.data.darray->size == 3 &&
             memcmp(found[2].value.data.darray->array, numbers, sizeof numbers) == 0,
         "array");
    hold(found[3].value.type == PMIX_DOUBLE && found[3].value.data.dval == 1.5, "double");
    /* Only the publisher withdraws, and only what is in that range. */
    if (me.rank == 1)
        expect(PMIX_ERR_NOT_FOUND, unpublish("text", NO_RANGE), "unpublish of another's value");
    barrier();
    if (me.rank == 0) {
        must(unpublish("text", NO_RANGE), "unpublish");
        expect(PMIX_ERR_NOT_FOUND, unpublish("blob", NO_RANGE), "unpublish in another range");
    }
    barrier();
    expect(PMIX_ERR_NOT_FOUND, look_up("text", NO_RANGE, -1, 0), "lookup of what was withdrawn");
    want(&found[0], "blob");
    must(look_up_many(found, 1, NO_RANGE, -1, 0), "lookup of what was not");
    barrier();
    if (me.rank == 0)
        must(unpublish(NULL, NO_RANGE), "unpublish of everything");
    barrier();
    want(&found[0], "blob");
    want(&found[1], "array");
    expect(PMIX_ERR_NOT_FOUND, look_up_many(found, 2, NO_RANGE, -1, 0), "lookup after all that");
}

static void wait_mode(void)
{
    expect(PMIX_ERR_TIMEOUT, look_up("never", NO_RANGE, 0, 1), "a wait of a second");
    start_waiting("late");
    barrier();
    if (me.rank == 0) {
        hold(answers == 0, "nothing was published yet");
        must(publish("late", "at last", NO_RANGE, NO_PERSISTENCE), "publish");
    }
    finish_waiting();
    /* What is there needs no waiting. */
    must(look_up("late", NO_RANGE, 0, 600), "lookup with a wait");
    pmix_pdata_t found[2];
    want(&found[0], "never");
    want(&found[1], "late");
    must(look_up_many(found, 2, NO_RANGE, 1, 600), "one of two");
    hold(found[0].value.type == PMIX_UNDEF && found[1].value.type == PMIX_STRING, "the right one");
}

static void once(void)
{
    start_waiting("once");
    barrier();
    if (me.rank == 0)
        for (unsigned i = 0; i < size; i++) {
            char text[16];
            snprintf(text, sizeof text, "%u", i);
            must(publish("once", text, NO_RANGE, PMIX_PERSIST_FIRST_READ), "publish");
        }
    finish_waiting();
    barrier();
    char mine[256];
    memcpy(mine, got, sizeof mine);
    expect(PMIX_ERR_NOT_FOUND, look_up("once", NO_RANGE, -1, 0), "nothing is left");
    memcpy(got, mine, sizeof got);
}

static void ranges(void)
{
    char text[32];
    snprintf(text, sizeof text, "of-%u", me.rank);
    /* One value per node: the second on a node is a duplicate. Even ranks are first of theirs. */
    if (me.rank % 2 == 0) {
        pmix_status_t status = publish("here", text, PMIX_RANGE_LOCAL, NO_PERSISTENCE);
        if (status != PMIX_SUCCESS && status != PMIX_ERR_DUPLICATE_KEY)
            wrong("publish for the node", status);
    }
    must(publish("mine", text, PMIX_RANGE_PROC_LOCAL, NO_PERSISTENCE), "publish for myself");
    if (me.rank == 1) {
        must(publish("job", text, PMIX_RANGE_NAMESPACE, NO_PERSISTENCE), "for the job");
        must(publish("mine", "far", PMIX_RANGE_GLOBAL, NO_PERSISTENCE), "for all");
        pmix_proc_t reader;
        pmix_data_range_t custom = PMIX_RANGE_CUSTOM;
        pmix_info_t infos[3];
        pmix_data_array_t array = {.type = PMIX_PROC, .size = 1, .array = &reader};
        PMIX_LOAD_PROCID(&reader, me.nspace, 2);
        load(&infos[0], "custom", text, PMIX_STRING);
        load(&infos[1], PMIX_RANGE, &custom, PMIX_DATA_RANGE);
        load(&infos[2], PMIX_EVENT_CUSTOM_RANGE, &array, PMIX_DATA_ARRAY);
        must(PMIx_Publish(infos, 3), "publish for rank 2");
        expect(PMIX_ERR_BAD_PARAM, PMIx_Publish(infos, 2), "for nobody in particular");
    }
    barrier();
    must(look_up("job", NO_RANGE, -1, 0), "the job's");
    hold(strcmp(got, "of-1") == 0, "the job's value");
    must(look_up("job", PMIX_RANGE_NAMESPACE, -1, 0), "of publishers in the job");
    must(look_up("mine", NO_RANGE, -1, 0), "mine");
    hold(strcmp(got, text) == 0, "the nearer value");
    must(look_up("mine", PMIX_RANGE_PROC_LOCAL, -1, 0), "of myself");
    hold(strcmp(got, text) == 0, "my value");
    expect(me.rank == 1 ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND, look_up("job", PMIX_RANGE_PROC_LOCAL, -1, 0),
           "what another published, of myself");
    expect(me.rank == 2 ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND, look_up("custom", NO_RANGE, -1, 0),
           "what is for rank 2");
    must(look_up("here", NO_RANGE, -1, 0), "the node's");
}

static void partial(void)
{
    if (me.rank == 0) {
        must(publish("there", "yes", NO_RANGE, NO_PERSISTENCE), "publish");
        must(publish("one", "yes", NO_RANGE, PMIX_PERSIST_FIRST_READ), "publish");
    }
    barrier();
    pmix_pdata_t found[3];
    for (int round = 0; round < 2; round++) {
        want(&found[0], "there");
        want(&found[1], "missing");
        want(&found[2], "one");
        expect(PMIX_ERR_PARTIAL_SUCCESS, look_up_many(found, 3, NO_RANGE, -1, 0), "some of it");
    }
    barrier();
    /* Not lost on who could not get everything. */
    if (me.rank == size - 1)
        must(look_up("one", NO_RANGE, -1, 0), "the value for one reader");
    want(&found[0], "nothing");
    want(&found[1], "missing");
    expect(PMIX_ERR_NOT_FOUND, look_up_many(found, 2, NO_RANGE, -1, 0), "none of it");
}

static void ended(void)
{
    if (me.rank == 3) {
        must(publish("mine", "rank 3", NO_RANGE, PMIX_PERSIST_PROC), "publish");
        must(publish("stays", "rank 3", NO_RANGE, PMIX_PERSIST_SESSION), "publish");
        start_waiting("late");
    }
    barrier();
    if (me.rank == 2)
        start_waiting("late");
    barrier();
    if (me.rank == 0) {
        see_it_go("mine");
        must(look_up("stays", NO_RANGE, -1, 0), "what outlives its publisher");
        must(publish("late", "for rank 2", NO_RANGE, PMIX_PERSIST_FIRST_READ), "publish");
    }
    if (me.rank == 2) {
        finish_waiting();
        hold(strcmp(got, "for rank 2") == 0, "the value");
    }
}

static void app(void)
{
    if (me.rank == 2) {
        must(publish("mine", "rank 2", NO_RANGE, PMIX_PERSIST_PROC), "publish");
        must(publish("ours", "app 1", NO_RANGE, PMIX_PERSIST_APP), "publish");
    }
    barrier();
    if (me.rank == 0) {
        see_it_go("mine");
        must(look_up("ours", NO_RANGE, -1, 0), "what lives as long as the program");
        must(publish("go", "now", NO_RANGE, NO_PERSISTENCE), "publish");
        see_it_go("ours");
    } else if (me.rank != 2) {
        must(look_up("go", NO_RANGE, 0, 120), "go");
    }
}

/* Waits for two texts. */
static void look_up_two(pmix_pdata_t found[2], const char *first, const char *second)
{
    want(&found[0], first);
    want(&found[1], second);
    must(look_up_many(found, 2, NO_RANGE, 0, 120), first);
    hold(found[0].value.type == PMIX_STRING && found[1].value.type == PMIX_STRING, "two texts");
}

static void meet(void)
{
    pmix_pdata_t found[2];
    look_up_two(found, "pmi1", "pmi2");
    hold(found[0].proc.rank == 0 && found[1].proc.rank == 2, "publishers");
    snprintf(got, sizeof got, "%s %s", found[0].value.data.string, found[1].value.data.string);
    expect(PMIX_ERR_DUPLICATE_KEY, publish("pmi1", "mine", NO_RANGE, NO_PERSISTENCE), "duplicate");
    must(publish("pmix", "port#3", NO_RANGE, NO_PERSISTENCE), "publish");
    look_up_two(found, "pmi1.done", "pmi2.done");
    must(publish("end", "yes", NO_RANGE, NO_PERSISTENCE), "publish of the end");
}

static void shown(void)
{
    if (me.rank == 0)
        must(publish("shown", "port#3", NO_RANGE, NO_PERSISTENCE), "publish");
    for (;;)
        pause();
}

static void put_text(const char *key)
{
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, key, PMIX_STRING);
    must(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");
    PMIX_VALUE_DESTRUCT(&value);
}

static void put(void)
{
    const struct timespec while_others_ask = {0, 200000000};
    pmix_proc_t other;
    pmix_value_t *value = NULL;
    put_text("first");
    fence(true);
    if (me.rank % 2 == 1)
        nanosleep(&while_others_ask, NULL);
    put_text("second");
    PMIX_LOAD_PROCID(&other, me.nspace, (me.rank + size - 1) % size);
    must(PMIx_Get(&other, "second", NULL, 0, &value), "the second value");
    hold(value->type == PMIX_STRING, "a text");
    snprintf(got, sizeof got, "%s", value->data.string);
    PMIX_VALUE_RELEASE(value);
    barrier();
}

static void stuck(void)
{
    start_waiting("never");
    barrier();
    report("pmix_store rank=%u waits", me.rank);
    must(look_up("never", NO_RANGE, 0, 0), "lookup without limit");
}

int main(int argc, char **argv)
{
    static const struct mode modes[] = {
        {"types", types}, {"wait", wait_mode}, {"once", once}, {"ranges", ranges}, {"partial", partial},
        {"ended", ended}, {"app", app}, {"put", put}, {"stuck", stuck}, {"meet", meet}, {"shown", shown}, {NULL, NULL}};
    const struct mode *mode = find_mode(modes, argc > 1 ? argv[1] : "");
    alarm(LAST_RESORT_SECONDS);
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    size = size_of(me.nspace);
    if (mode == NULL)
        fail(2, "usage: pmix_store types|wait|once|ranges|partial|ended|app|put|stuck|meet|shown");
    mode->run();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    report("pmix_store rank=%u size=%u mode=%s got=\"%s\"", me.rank, size, mode->name, got);
    return 0;
}
