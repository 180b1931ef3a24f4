/*
 * hops ROUNDS LINKS
 *
 * The least cost of a message that processes pass on: a ring of processes in which a message of 64 bytes goes
 * round ROUNDS times. LINKS has a letter for each of its links, u for a Unix socket and t for a TCP connection
 * (of 127.0.0.1): a barrier of two hosts over one server is uttu. Each process waits in epoll_wait, as launchers
 * do. Prints the median time of a round in microseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 64, MOST_HOPS = 64, MOST_ROUNDS = 100000 };

static void die(const char *what)
{
    fprintf(stderr, "hops: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int ascending(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void connect_pair(int pair[2], char link)
{
    if (link == 'u') {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
            die("socketpair");
        return;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || pair[0] < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 ||
        listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&address, &length) != 0 ||
        connect(pair[0], (struct sockaddr *)&address, length) != 0 || (pair[1] = accept(listener, NULL, NULL)) < 0)
        die("TCP");
    for (int end = 0; end < 2; end++)
        setsockopt(pair[end], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
}

/* Waits for a message; 0 at the end of the ring. */
static int receive(int poll, int fd, char *message)
{
    struct epoll_event event;
    if (epoll_wait(poll, &event, 1, -1) != 1)
        die("epoll_wait");
    ssize_t count = read(fd, message, MESSAGE);
    if (count != 0 && count != MESSAGE)
        die("read");
    return count != 0;
}

static void pass_on(int fd, const char *message)
{
    if (send(fd, message, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
        die("send");
}

int main(int argc, char **argv)
{
    static double took[MOST_ROUNDS];
    int pairs[MOST_HOPS][2], rounds = argc == 3 ? atoi(argv[1]) : 0;
    int hops = argc == 3 && strspn(argv[2], "ut") == strlen(argv[2]) ? (int)strlen(argv[2]) : 0;
    if (hops < 2 || hops > MOST_HOPS || rounds < 1 || rounds > MOST_ROUNDS)
        return fprintf(stderr, "usage: hops ROUNDS LINKS, of the letters u and t\n"), 2;
    for (int hop = 0; hop < hops; hop++)
        connect_pair(pairs[hop], argv[2][hop]);
    /* The first process is this one. Each reads from its own pair and writes to that of the next one. */
    int own = 0;
    for (int hop = 1; hop < hops && own == 0; hop++) {
        pid_t child = fork();
        if (child < 0)
            die("fork");
        own = child == 0 ? hop : 0;
    }
    int next = (own + 1) % hops, input = pairs[own][0], output = pairs[next][1];
    for (int hop = 0; hop < hops; hop++)
        for (int end = 0; end < 2; end++)
            if (pairs[hop][end] != input && pairs[hop][end] != output)
                close(pairs[hop][end]);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, input, &event) != 0)
        die("epoll");
    char message[MESSAGE] = {0};
    if (own != 0) {
        while (receive(poll, input, message))
            pass_on(output, message);
        return 0;
    }
    for (int round = 0; round < rounds; round++) {
        double start = microseconds();
        pass_on(output, message);
        if (!receive(poll, input, message))
            return 1;
        took[round] = microseconds() - start;
    }
    qsort(took, (size_t)rounds, sizeof *took, ascending);
    printf("%.1f\n", took[rounds / 2]);
    return 0;
}
