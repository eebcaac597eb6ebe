/* Load of many raw TCP clients from one thread. Knows no protocol: a script on stdin says what each
 * client sends and what answers look like. Prints one line of JSON.
 *
 * Script: lines of a word and its values, bytes in hex, `-` for none.
 *   port P              on 127.0.0.1
 *   clients N           before the lines of the clients
 *   framing prefix      answers begin with their length, u32 big-endian
 *   framing fixed B     answers are B bytes each
 *   skip HEX            answers that begin so were not asked for (prefix framing)
 *   expect HEX          every answer to a request must contain this (prefix framing)
 *   id_at K             where a request holds its id, u32 big-endian; ids rise within a client
 *   round_at K          where requests hold the number of the round, u32
 *   acknowledge E A HEX after E answers send this, with the last answered id at A; not counted
 *   then WIN LAST NEXT ROUND_AT ROUND_AT_LAST
 *                       second step of a round: when the answer is WIN, send LAST first; then NEXT
 *   cpu PATH            schedstat of a thread of the server; may come several times
 *   client REQUEST SETUP UNITS [SETUP UNITS]
 *                       its request, and what it sends before: a step begins when all clients have
 *                       the answers to the one before, so many each (fixed framing: bytes)
 *   rps D SECONDS       run: keep D requests of each client in flight
 *   rounds R            run: all send, and the round is over when all are answered
 *   hold SECONDS        run: each sends one request every so often until stdin ends
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 512, EVENTS = 1024, PATIENCE_MS = 60000, READ_BYTES = 1 << 18, PATHS_MAX = 256, SETUPS = 2 };

typedef struct {
    uint8_t *bytes;
    size_t len;
} Bytes;

typedef struct {
    int fd;
    Bytes request, setup[SETUPS];
    long setup_units[SETUPS];
    Bytes rest; /* of an answer that has not come whole */
    uint32_t sent, answered, unacknowledged, acknowledge_id;
    int step;
} Client;

static Client *clients;
static int clients_n, port, poller, fixed_bytes;
static long id_at = -1, round_at = -1, acknowledge_every, acknowledge_at;
static Bytes skip, expect, acknowledge, win, last_step, next_step;
static long next_round_at, last_round_at;
static char *cpu_paths[PATHS_MAX];
static int cpu_paths_n;
static uint8_t *input;

static void die(const char *what) {
    fprintf(stderr, "sync_load: %s: %s\n", what, errno ? strerror(errno) : "no such thing");
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double server_cpu_s(void) {
    double sum = 0;
    for (int i = 0; i < cpu_paths_n; i++) {
        unsigned long long ns = 0;
        FILE *file = fopen(cpu_paths[i], "r");
        if (!file || fscanf(file, "%llu", &ns) != 1)
            die(cpu_paths[i]);
        fclose(file);
        sum += ns * 1e-9;
    }
    return sum;
}

static void put_u32(uint8_t *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static Bytes from_hex(const char *hex) {
    Bytes out = {0};
    if (!hex || !strcmp(hex, "-"))
        return out;
    out.len = strlen(hex) / 2;
    out.bytes = malloc(out.len + 1);
    for (size_t i = 0; i < out.len; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            die("bad hex");
        out.bytes[i] = byte;
    }
    return out;
}

static void send_all(Client *c, const uint8_t *bytes, size_t len) {
    while (len) {
        ssize_t n = send(c->fd, bytes, len, MSG_NOSIGNAL);
        if (n >= 0) {
            bytes += n;
            len -= n;
        } else if (errno == EAGAIN) {
            struct pollfd writable = {.fd = c->fd, .events = POLLOUT};
            if (poll(&writable, 1, PATIENCE_MS) <= 0)
                die("the server does not read");
        } else if (errno != EINTR)
            die("send");
    }
}

/* One request into a buffer; returns its length. */
static size_t put_request(Client *c, uint8_t *at, uint32_t round) {
    memcpy(at, c->request.bytes, c->request.len);
    c->sent++;
    if (id_at >= 0)
        put_u32(at + id_at, c->sent);
    if (round_at >= 0)
        put_u32(at + round_at, round);
    return c->request.len;
}

static size_t put_acknowledge(Client *c, uint8_t *at) {
    memcpy(at, acknowledge.bytes, acknowledge.len);
    c->acknowledge_id = ++c->sent;
    put_u32(at + id_at, c->acknowledge_id);
    put_u32(at + acknowledge_at, c->answered);
    c->unacknowledged = 0;
    return acknowledge.len;
}

typedef void (*Answer)(Client *, const uint8_t *, size_t);

/* Read what is there and hand out whole answers; in set-up, fixed framing counts bytes. */
static void take(Client *c, Answer answer, int fixed) {
    ssize_t n = recv(c->fd, input + c->rest.len, READ_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        fprintf(stderr, "sync_load: the server closed connection %ld after %u answers\n",
                (long)(c - clients), c->answered);
        exit(1);
    }
    memcpy(input, c->rest.bytes, c->rest.len);
    size_t have = c->rest.len + n, at = 0;
    while (have - at >= (size_t)(fixed ? fixed : 4)) {
        size_t head = 0, len = fixed;
        if (!fixed) {
            uint32_t prefix;
            memcpy(&prefix, input + at, 4);
            head = 4;
            len = ntohl(prefix);
            if (have - at < head + len)
                break;
        }
        const uint8_t *body = input + at + head;
        at += head + len;
        if (fixed || !skip.len || len < skip.len || memcmp(body, skip.bytes, skip.len))
            answer(c, body, len);
    }
    size_t left = have - at;
    if (left > (1 << 20))
        die("an answer of more than a megabyte");
    if (left || c->rest.len) {
        c->rest.bytes = realloc(c->rest.bytes, left + 1);
        memcpy(c->rest.bytes, input + at, left);
        c->rest.len = left;
    }
}

static int wait_events(struct epoll_event *events, int ms) {
    int n = epoll_wait(poller, events, EVENTS, ms);
    if (n < 0 && errno != EINTR)
        die("epoll_wait");
    return n < 0 ? 0 : n;
}

static void check_answer(Client *c, const uint8_t *body, size_t len) {
    c->answered++;
    if (c->answered == c->acknowledge_id || !expect.len)
        return;
    if (!memmem(body, len, expect.bytes, expect.len)) {
        fprintf(stderr, "sync_load: not the answer that was expected: ");
        for (size_t i = 0; i < len && i < 400; i++)
            fputc(body[i] >= 32 && body[i] < 127 ? body[i] : '.', stderr);
        fputc('\n', stderr);
        exit(1);
    }
}

/* --- connecting and set-up ------------------------------------------------------------------ */

static long units_due, units_done;

static void setup_answer(Client *c, const uint8_t *body, size_t len) {
    (void)c, (void)body, (void)len;
    units_done++;
}

static void connect_all(void) {
    struct epoll_event events[EVENTS];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int started = 0, connected = 0;
    while (connected < clients_n) {
        for (; started < clients_n && started - connected < WINDOW; started++) {
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
            if (fd < 0)
                die("socket");
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            if (connect(fd, (void *)&address, sizeof address) && errno != EINPROGRESS)
                die("connect");
            clients[started].fd = fd;
            struct epoll_event event = {.events = EPOLLOUT, .data.u32 = started};
            epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
        }
        int n = wait_events(events, PATIENCE_MS);
        if (!n)
            die("no connection within a minute");
        for (int i = 0; i < n; i++) {
            Client *c = &clients[events[i].data.u32];
            int error = 0;
            socklen_t len = sizeof error;
            getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
            if ((errno = error))
                die("connect");
            struct epoll_event event = {.events = EPOLLIN, .data.u32 = events[i].data.u32};
            epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
            connected++;
        }
    }
}

static void set_up(int step) {
    struct epoll_event events[EVENTS];
    for (int i = 0; i < clients_n; i++) {
        send_all(&clients[i], clients[i].setup[step].bytes, clients[i].setup[step].len);
        units_due += clients[i].setup_units[step];
        clients[i].sent = clients[i].answered += clients[i].setup_units[step];
    }
    while (units_done < units_due) {
        int n = wait_events(events, PATIENCE_MS);
        if (!n) {
            fprintf(stderr, "sync_load: set-up: %ld of %ld answers\n", units_done, units_due);
            exit(1);
        }
        for (int i = 0; i < n; i++)
            take(&clients[events[i].data.u32], setup_answer, fixed_bytes ? 1 : 0);
    }
}

/* --- requests per second ---------------------------------------------------------------------- */

static void run_rps(int depth, double seconds) {
    struct epoll_event events[EVENTS];
    size_t request_max = acknowledge.len;
    for (int i = 0; i < clients_n; i++)
        if (clients[i].request.len > request_max)
            request_max = clients[i].request.len;
    uint8_t *out = malloc((request_max + 1) * (2 * depth + 2));
    for (int i = 0; i < clients_n; i++) {
        size_t len = 0;
        for (int d = 0; d < depth; d++)
            len += put_request(&clients[i], out + len, 0);
        send_all(&clients[i], out, len);
    }
    /* The first tenth is not counted. */
    double began = now_s(), counted_from = began + seconds / 10, until = counted_from + seconds;
    double cpu = 0, now = began;
    long done = 0;
    int counting = 0;
    while (now < until) {
        if (!counting && now >= counted_from) {
            counting = 1;
            counted_from = now;
            cpu = server_cpu_s();
        }
        int n = wait_events(events, 1000);
        for (int i = 0; i < n; i++) {
            Client *c = &clients[events[i].data.u32];
            uint32_t before = c->answered, acknowledge_id = c->acknowledge_id;
            take(c, check_answer, fixed_bytes);
            uint32_t fresh = c->answered - before;
            if (acknowledge_id > before && acknowledge_id <= c->answered)
                fresh--; /* an acknowledgement is no request */
            size_t len = 0;
            c->unacknowledged += fresh;
            if (acknowledge.len && c->unacknowledged >= acknowledge_every)
                len += put_acknowledge(c, out);
            for (uint32_t k = 0; k < fresh; k++)
                len += put_request(c, out + len, 0);
            if (len)
                send_all(c, out, len);
            done += counting ? fresh : 0;
        }
        now = now_s();
    }
    printf("{\"requests\": %ld, \"seconds\": %.6f, \"cpu_s\": %.6f}\n", done, now - counted_from,
           server_cpu_s() - cpu);
}

/* --- rounds ------------------------------------------------------------------------------------- */

static uint32_t round_now;
static int released;

static void round_answer(Client *c, const uint8_t *body, size_t len) {
    check_answer(c, body, len);
    if (!next_step.len || c->step) {
        released++;
        return;
    }
    c->step = 1;
    if (len == win.len && !memcmp(body, win.bytes, len)) {
        put_u32(last_step.bytes + last_round_at, round_now);
        send_all(c, last_step.bytes, last_step.len);
    }
    put_u32(next_step.bytes + next_round_at, round_now);
    send_all(c, next_step.bytes, next_step.len);
}

/* In the second step of a round with fixed framing an answer has any length. */
static void take_step(Client *c) {
    if (next_step.len && c->step) {
        if (recv(c->fd, input, READ_BYTES, 0) > 0)
            released++;
        return;
    }
    take(c, round_answer, fixed_bytes);
}

static void run_rounds(int rounds) {
    struct epoll_event events[EVENTS];
    uint8_t *out = malloc(1 << 20);
    double *total = calloc(rounds, sizeof *total), *after_last = calloc(rounds, sizeof *total);
    double cpu = server_cpu_s();
    for (int r = 0; r < rounds; r++) {
        round_now = r;
        released = 0;
        double began = now_s(), last = began;
        for (int i = 0; i < clients_n; i++) {
            clients[i].step = 0;
            if (i == clients_n - 1)
                last = now_s();
            send_all(&clients[i], out, put_request(&clients[i], out, r));
        }
        while (released < clients_n) {
            int n = wait_events(events, PATIENCE_MS);
            if (!n) {
                fprintf(stderr, "sync_load: round %d: %d of %d released\n", r, released, clients_n);
                exit(1);
            }
            for (int i = 0; i < n; i++)
                take_step(&clients[events[i].data.u32]);
        }
        double over = now_s();
        total[r] = over - began;
        after_last[r] = over - last;
    }
    printf("{\"cpu_s\": %.6f, \"total_s\": [", server_cpu_s() - cpu);
    for (int r = 0; r < rounds; r++)
        printf("%s%.6f", r ? ", " : "", total[r]);
    printf("], \"after_last_s\": [");
    for (int r = 0; r < rounds; r++)
        printf("%s%.6f", r ? ", " : "", after_last[r]);
    printf("]}\n");
}

/* --- idle clients ------------------------------------------------------------------------------- */

static void run_hold(double seconds) {
    struct epoll_event events[EVENTS];
    uint8_t *out = malloc(1 << 20);
    double due = now_s();
    printf("{\"held\": %d}\n", clients_n);
    fflush(stdout);
    for (;;) {
        if (now_s() >= due) {
            due += seconds;
            for (int i = 0; i < clients_n; i++)
                send_all(&clients[i], out, put_request(&clients[i], out, 0));
        }
        int n = wait_events(events, 50);
        for (int i = 0; i < n; i++)
            take(&clients[events[i].data.u32], check_answer, fixed_bytes);
        struct pollfd script = {.fd = 0, .events = POLLIN};
        if (poll(&script, 1, 0) > 0)
            exit(0);
    }
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    int at = 0;
    input = malloc(READ_BYTES + (1 << 20) + 1);
    poller = epoll_create1(EPOLL_CLOEXEC);
    while (getline(&line, &room, stdin) > 0) {
        char *words[8] = {0}, *rest = line;
        for (int i = 0; i < 8 && (words[i] = strsep(&rest, " \n")) && *words[i]; i++)
            ;
        const char *word = words[0];
        if (!strcmp(word, "port"))
            port = atoi(words[1]);
        else if (!strcmp(word, "clients"))
            clients = calloc(clients_n = atoi(words[1]), sizeof *clients);
        else if (!strcmp(word, "framing"))
            fixed_bytes = !strcmp(words[1], "fixed") ? atoi(words[2]) : 0;
        else if (!strcmp(word, "skip"))
            skip = from_hex(words[1]);
        else if (!strcmp(word, "expect"))
            expect = from_hex(words[1]);
        else if (!strcmp(word, "id_at"))
            id_at = atol(words[1]);
        else if (!strcmp(word, "round_at"))
            round_at = atol(words[1]);
        else if (!strcmp(word, "acknowledge")) {
            acknowledge_every = atol(words[1]);
            acknowledge_at = atol(words[2]);
            acknowledge = from_hex(words[3]);
        } else if (!strcmp(word, "then")) {
            win = from_hex(words[1]);
            last_step = from_hex(words[2]);
            next_step = from_hex(words[3]);
            next_round_at = atol(words[4]);
            last_round_at = atol(words[5]);
        } else if (!strcmp(word, "cpu") && cpu_paths_n < PATHS_MAX)
            cpu_paths[cpu_paths_n++] = strdup(words[1]);
        else if (!strcmp(word, "client") && at < clients_n) {
            clients[at].request = from_hex(words[1]);
            for (int step = 0; step < SETUPS && words[2 * step + 3]; step++) {
                clients[at].setup[step] = from_hex(words[2 * step + 2]);
                clients[at].setup_units[step] = atol(words[2 * step + 3]);
            }
            at++;
        } else {
            if (at != clients_n || !clients_n)
                die("a script without its clients");
            connect_all();
            for (int step = 0; step < SETUPS; step++)
                set_up(step);
            if (!strcmp(word, "rps"))
                run_rps(atoi(words[1]), atof(words[2]));
            else if (!strcmp(word, "rounds"))
                run_rounds(atoi(words[1]));
            else if (!strcmp(word, "hold"))
                run_hold(atof(words[1]));
            else
                die(word);
            return 0;
        }
    }
    die("a script without a run");
}
