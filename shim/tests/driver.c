/*
 * Test driver of the shim. Usage: driver check|write GOLDEN_DIRECTORY
 *
 * check compares the frames that the shim makes with golden/c, and feeds it golden/rust, which the
 * Rust tests make; write makes golden/c anew.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

static const char *golden;
static bool writing;
int agent_fd;

void failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, condition);
    exit(1);
}

static FILE *open_golden(const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", golden, name);
    FILE *file = fopen(path, mode);
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

uint8_t *read_golden(const char *name, size_t *len)
{
    FILE *file = open_golden(name, "rb");
    uint8_t *bytes = malloc(65536);
    CHECK(bytes != NULL);
    *len = fread(bytes, 1, 65536, file);
    fclose(file);
    return bytes;
}

void match_golden(const char *name, const void *bytes, size_t len)
{
    if (writing) {
        FILE *file = open_golden(name, "wb");
        CHECK(fwrite(bytes, 1, len, file) == len);
        CHECK(fclose(file) == 0);
        return;
    }
    size_t expected_len;
    uint8_t *expected = read_golden(name, &expected_len);
    if (expected_len != len || memcmp(expected, bytes, len) != 0) {
        fprintf(stderr, "%s differs from what the shim makes\n", name);
        exit(1);
    }
    free(expected);
}

uint8_t *agent_read(size_t *len)
{
    uint8_t header[WIREUP_HEADER_LEN];
    CHECK(recv(agent_fd, header, sizeof(header), MSG_WAITALL) == sizeof(header));
    struct in in;
    in_init(&in, header, sizeof(header), NULL);
    const size_t payload = take_u32(&in);
    uint8_t *frame = malloc(sizeof(header) + payload);
    CHECK(frame != NULL);
    memcpy(frame, header, sizeof(header));
    if (payload > 0) {
        CHECK(recv(agent_fd, frame + sizeof(header), payload, MSG_WAITALL) == (ssize_t)payload);
    }
    *len = sizeof(header) + payload;
    return frame;
}

void agent_write(const void *bytes, size_t len)
{
    CHECK(send(agent_fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void bump(int *counter)
{
    pthread_mutex_lock(&lock);
    *counter += 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void wait_until(const int *counter, int value)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    pthread_mutex_lock(&lock);
    while (*counter < value) {
        CHECK(pthread_cond_timedwait(&changed, &lock, &end) == 0);
    }
    CHECK(*counter == value);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: driver check|write GOLDEN_DIRECTORY\n");
        return 2;
    }
    writing = strcmp(argv[1], "write") == 0;
    golden = argv[2];
    CHECK(wireup_shim_abi() == WIREUP_SHIM_ABI);
    test_upcalls();
    if (!writing) {
        test_wire();
        test_completions();
        test_spawns();
        test_end_of_input();
        test_kept();
        test_munge();
        test_local_groups();
        test_loss();
        puts("shim driver: ok");
    }
    return 0;
}
