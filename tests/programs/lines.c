/*
 * lines COUNT LENGTH[,LENGTH...] [--to out|err|both] [--chunk BYTES] [--no-final-newline]
 *
 * Writes COUNT lines; line I has the I-th length of the list (which starts again at its end), not
 * counting the newline. A line is "R I " and then letters, cut to its length; R is the rank in the
 * launcher's environment. `both` writes each line to stdout, then to stderr. With --chunk each
 * write(2) has that many bytes, so lines come in pieces. Without, each line is one write.
 */
#include "common.h"

enum { MOST_LENGTHS = 64 };

static void emit(int fd, const char *data, size_t length, size_t chunk)
{
    while (length > 0) {
        size_t part = chunk == 0 || chunk > length ? length : chunk;
        if (write_all(fd, data, part) != 0)
            _exit(1);
        data += part;
        length -= part;
    }
}

int main(int argc, char **argv)
{
    size_t lengths[MOST_LENGTHS], count = 0, longest = 0, chunk = 0;
    int to_out = 1, to_err = 0, final_newline = 1;

    if (argc < 3)
        fail(2, "usage: lines COUNT LENGTH[,LENGTH...] [--to out|err|both] [--chunk BYTES] "
                "[--no-final-newline]");
    long lines = number_argument(argv[1]);
    for (char *part = strtok(argv[2], ","); part != NULL; part = strtok(NULL, ",")) {
        if (count == MOST_LENGTHS)
            fail(2, "lines: more than %d lengths", MOST_LENGTHS);
        lengths[count] = (size_t)number_argument(part);
        if (lengths[count] > longest)
            longest = lengths[count];
        count++;
    }
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--no-final-newline") == 0) {
            final_newline = 0;
        } else if (strcmp(argv[i], "--chunk") == 0 && i + 1 < argc) {
            chunk = (size_t)number_argument(argv[++i]);
        } else if (strcmp(argv[i], "--to") == 0 && i + 1 < argc) {
            i++;
            to_out = strcmp(argv[i], "err") != 0;
            to_err = strcmp(argv[i], "out") != 0;
        } else {
            fail(2, "lines: unknown option %s", argv[i]);
        }
    }
    /* Room for the number even when the line is shorter than it. */
    char *line = malloc(longest + 64);
    if (line == NULL || count == 0)
        fail(2, "lines: no lengths, or no memory");
    for (long i = 0; i < lines; i++) {
        size_t length = lengths[(size_t)i % count];
        size_t head = (size_t)sprintf(line, "%d %ld ", rank_from_environment(), i);
        for (size_t at = head; at < length; at++)
            line[at] = (char)('a' + (at + (size_t)i) % 26);
        line[length] = '\n';
        if (i + 1 < lines || final_newline)
            length++;
        if (to_out)
            emit(STDOUT_FILENO, line, length, chunk);
        if (to_err)
            emit(STDERR_FILENO, line, length, chunk);
    }
    free(line);
    return 0;
}
