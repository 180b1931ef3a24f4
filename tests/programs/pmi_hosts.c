/*
 * pmi_hosts [KEY]
 *
 * A PMI-1 client that asks what Intel MPI asked up to some version: which ranks are on which hosts. Checks that each rank is
 * on one host and that the lengths are right.
 *     pmi_hosts rank=R hosts=N own=NAME:RANK,RANK,... [value="that of the KEY in the job's store"]
 */
#define _GNU_SOURCE
#include "pmi.h"

int main(int argc, char **argv)
{
    char list[65536], own[4400] = "", value[1100] = "";
    int length, hosts, seen = 0, at = 0, step;

    join(0);
    ask("put_ranks2hosts", "cmd=get_ranks2hosts\n");
    if (sscanf(reply, "cmd=put_ranks2hosts %d %d", &length, &hosts) != 2)
        WRONG("no length and number in: %s", reply);
    if (fgets(list, sizeof list, replies) == NULL || (int)strlen(list) + 1 != length)
        WRONG("a list of %zu bytes, not %d", strlen(list), length);
    for (int host = 0; host < hosts; host++) {
        char name[256], ranks[4096];
        int name_length;
        if (sscanf(list + at, "%d %255s %4095s%n", &name_length, name, ranks, &step) != 3)
            WRONG("no host in: %s", list + at);
        at += step + 1;
        if (name_length != (int)strlen(name) || list[at - 1] != ' ')
            WRONG("%d for %s in: %s", name_length, name, list);
        for (char *one = ranks; *one != '\0'; one = strchr(one, ',') + 1) {
            if (strtol(one, NULL, 10) == rank)
                snprintf(own, sizeof own, "%s:%s", name, ranks);
            seen++;
        }
    }
    if (strcmp(list + at, "\n") != 0 || seen != size || own[0] == '\0')
        WRONG("%d ranks in: %s", seen, list);
    if (argc > 1) {
        ask("get_result", "cmd=get kvsname=%s key=%s\n", kvsname, argv[1]);
        snprintf(value, sizeof value, " value=\"%s\"", field("value"));
    }
    ask("finalize_ack", "cmd=finalize\n");
    report("pmi_hosts rank=%d hosts=%d own=%s%s", rank, hosts, own, value);
    return 0;
}
