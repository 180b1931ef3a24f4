/*
 * sigreport [--until SIGNAL] [--code CODE]
 *
 * Prints "sigreport rank=R pid=P ready" and then one line for each signal that arrives:
 *     sigreport rank=R signal=NAME from=PID
 * Ends with CODE (default 0) after the signal named by --until, default TERM; `--until never` makes
 * a process that only SIGKILL ends. TSTP is reported and does not stop the process; CONT too.
 */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>

static const int WATCHED[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
                              SIGTSTP, SIGCONT, SIGWINCH, SIGALRM};

int main(int argc, char **argv)
{
    const char *last = "TERM";
    int code = 0, rank = rank_from_environment();
    sigset_t set;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--until") == 0 && i + 1 < argc)
            last = argv[++i];
        else if (strcmp(argv[i], "--code") == 0 && i + 1 < argc)
            code = (int)number_argument(argv[++i]);
        else
            fail(2, "usage: sigreport [--until SIGNAL] [--code CODE]");
    }
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof WATCHED / sizeof *WATCHED; i++) {
        /* An ignored signal would be dropped although it is blocked. */
        signal(WATCHED[i], SIG_DFL);
        sigaddset(&set, WATCHED[i]);
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    alarm(LAST_RESORT_SECONDS);
    report("sigreport rank=%d pid=%d ready", rank, (int)getpid());
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(&set, &info);
        if (number < 0)
            continue;
        const char *name = sigabbrev_np(number);
        report("sigreport rank=%d signal=%s from=%d", rank, name, (int)info.si_pid);
        if (number == SIGALRM)
            return 1;
        if (strcmp(name, last) == 0)
            return code;
    }
}
