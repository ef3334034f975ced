/* HTTP/1.1 clients: each sends the same request again as soon as its answer is there, or, with a RATE, so many requests a
 * second are sent by whoever has nothing open; what comes due while all are busy is sent when one is not.
 *
 * usage: load PORT CONNECTIONS SECONDS WARM_S BODY_FILE PATH [RATE]
 * Writes WARM and END to stderr when the measured seconds begin and end, then one line of JSON: requests done and failed,
 * streams that were shorter than max_tokens or had no [DONE], microseconds to the first byte of a body (from the send) and of
 * an event's way here (from its "t").
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAD, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILERS };
enum { LINE = 65536 };

typedef long long Ns;

typedef struct Client {
    int fd, state, status, events, done_seen, closes, busy;
    char head[16384], size_line[32], line[LINE];
    size_t head_size, size_size, line_size, left, sent;
    Ns begun, first;
} Client;

typedef struct { Ns *at; size_t count, room; } Samples;

static int poller, port, expected = -1;
static char *request;
static size_t request_size;
static Ns warm_at, end_at;
static long done, failed, cut_short, due;
static double rate;
static int timer = -1;
static Client **idle;
static int idle_count;
static Samples first_bytes, event_ways;

static Ns now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void note(Samples *samples, Ns value) {
    if (samples->count == samples->room)
        samples->at = realloc(samples->at, (samples->room = samples->room * 2 + 4096) * sizeof *samples->at);
    samples->at[samples->count++] = value;
}

static void connect_client(Client *client) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    int one = 1;
    if (client->fd > 0) close(client->fd);
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address)) { perror("load: connect"); exit(1); }
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(client->fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(poller, EPOLL_CTL_ADD, client->fd, &event);
}

static void send_rest(Client *client) {
    while (client->sent < request_size) {
        ssize_t sent = send(client->fd, request + client->sent, request_size - client->sent, MSG_NOSIGNAL);
        if (sent < 0) break;
        client->sent += sent;
    }
    struct epoll_event event = {.events = EPOLLIN | (client->sent < request_size ? EPOLLOUT : 0), .data.ptr = client};
    epoll_ctl(poller, EPOLL_CTL_MOD, client->fd, &event);
}

static void begin(Client *client) {
    client->state = HEAD;
    client->head_size = client->size_size = client->line_size = client->sent = 0;
    client->events = client->done_seen = client->closes = 0;
    client->first = 0;
    client->busy = 1;
    client->begun = now_ns();
    ssize_t sent = send(client->fd, request, request_size, MSG_NOSIGNAL);
    client->sent = sent > 0 ? sent : 0;
    if (client->sent < request_size) send_rest(client);
}

static void finish(Client *client, int complete) {
    Ns now = now_ns();
    int whole = expected < 0 || (client->events == expected && client->done_seen);
    if (now > warm_at && now < end_at) {
        if (!complete || client->status != 200) failed++;
        else {
            done++;
            cut_short += !whole;
            if (client->begun > warm_at) note(&first_bytes, (client->first ? client->first : now) - client->begun);
        }
    }
    client->busy = 0;
    if (client->closes || !complete) connect_client(client);
    if (now >= end_at) return;
    if (!rate) begin(client);
    else if (due) { due--; begin(client); }
    else idle[idle_count++] = client;
}

static void take_line(Client *client, Ns now) {
    client->line[client->line_size] = 0;
    client->line_size = 0;
    if (strncmp(client->line, "data:", 5)) return;
    if (strstr(client->line, "[DONE]")) { client->done_seen = 1; return; }
    client->events++;
    char *made_at = strstr(client->line, "\"t\":");
    if (made_at && client->begun > warm_at) note(&event_ways, now - atoll(made_at + 4));
}

static void take_body(Client *client, const char *data, size_t size) {
    Ns now = now_ns();
    if (size && !client->first) client->first = now;
    for (const char *stop = data + size; data < stop;) {
        const char *end = memchr(data, '\n', stop - data);
        size_t part = (end ? end : stop) - data;
        if (client->line_size + part < LINE) { memcpy(client->line + client->line_size, data, part); client->line_size += part; }
        data += part + (end != NULL);
        if (end) take_line(client, now);
    }
}

/* The head, once it is all there: how much of `data` was its, and what follows. */
static size_t take_head(Client *client, const char *data, size_t size) {
    size_t before = client->head_size, part = size;
    if (before + part > sizeof client->head - 1) part = sizeof client->head - 1 - before;
    memcpy(client->head + before, data, part);
    client->head[client->head_size += part] = 0;
    char *end = strstr(client->head, "\r\n\r\n");
    if (!end) return part;
    size_t used = end + 4 - client->head - before;
    *end = 0;
    client->status = atoi(client->head + 9);
    client->head_size = 0;
    char *length = strcasestr(client->head, "\r\ncontent-length:");
    client->left = length ? strtoul(length + 17, NULL, 10) : 0;
    client->closes = strcasestr(client->head, "\r\nconnection: close") != NULL;
    client->state = strcasestr(client->head, "\r\ntransfer-encoding: chunked") ? CHUNK_SIZE : SIZED;
    if (client->state == SIZED && !client->left) finish(client, 1);
    return used;
}

/* One byte of chunk framing. */
static void take_framing(Client *client, char byte) {
    if (client->state == CHUNK_END) {
        if (byte == '\n') client->state = CHUNK_SIZE;
    } else if (byte != '\n') {
        if (byte != '\r' && client->size_size < sizeof client->size_line - 1) client->size_line[client->size_size++] = byte;
    } else if (client->state == CHUNK_SIZE) {
        client->size_line[client->size_size] = 0;
        client->size_size = 0;
        client->left = strtoul(client->size_line, NULL, 16);
        client->state = client->left ? CHUNK : TRAILERS;
    } else { /* TRAILERS: an empty line is the end */
        int empty = !client->size_size;
        client->size_size = 0;
        if (empty) finish(client, 1);
    }
}

static void take(Client *client, const char *data, size_t size) {
    while (size && client->busy) {
        size_t used = 1;
        if (client->state == HEAD) used = take_head(client, data, size);
        else if (client->state == SIZED || client->state == CHUNK) {
            used = size < client->left ? size : client->left;
            take_body(client, data, used);
            client->left -= used;
            if (!client->left && client->state == CHUNK) client->state = CHUNK_END;
            else if (!client->left) finish(client, 1);
        } else take_framing(client, *data);
        data += used;
        size -= used;
    }
}

static void hear(Client *client) {
    static char data[65536];
    ssize_t got = recv(client->fd, data, sizeof data, 0);
    if (got > 0) take(client, data, got);
    else if (got == 0 || errno != EAGAIN) { if (client->busy) finish(client, 0); else connect_client(client); }
}

static void take_turns(void) {
    unsigned long long expired;
    if (read(timer, &expired, sizeof expired) != sizeof expired) return;
    for (due += expired; due && idle_count; due--) begin(idle[--idle_count]);
}

static void start_timer(void) {
    long every = 1e9 / rate;
    struct timespec each = {every / 1000000000, every % 1000000000};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    timerfd_settime(timer, 0, &(struct itimerspec){each, each}, NULL);
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
}

static int by_size(const void *a, const void *b) {
    Ns x = *(const Ns *)a, y = *(const Ns *)b;
    return (x > y) - (x < y);
}

static double percentile_us(Samples *samples, double share) {
    return samples->count ? samples->at[(size_t)(share * (samples->count - 1))] / 1000.0 : 0;
}

static void read_request(const char *file, const char *path) {
    FILE *in = fopen(file, "rb");
    char *body = malloc(1 << 24);
    if (!in) { perror("load: body"); exit(1); }
    size_t size = fread(body, 1, (1 << 24) - 1, in);
    body[size] = 0;
    fclose(in);
    char *tokens = strstr(body, "\"max_tokens\":");
    if (strstr(body, "\"stream\":true") && tokens) expected = atoi(tokens + 13);
    request = malloc(size + 1024);
    request_size = sprintf(request,
        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load\r\nAccept: */*\r\nAuthorization: Bearer sk-bench\r\n"
        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path, port, size);
    memcpy(request + request_size, body, size);
    request_size += size;
    free(body);
}

int main(int count, char **words) {
    if (count < 7 || count > 8) { fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS WARM_S BODY_FILE PATH [RATE]\n"); return 2; }
    port = atoi(words[1]);
    int connections = atoi(words[2]), warm = 0;
    double seconds = atof(words[3]);
    read_request(words[5], words[6]);
    poller = epoll_create1(0);
    Client *clients = calloc(connections, sizeof *clients);
    warm_at = now_ns() + (Ns)(atof(words[4]) * 1e9);
    end_at = warm_at + (Ns)(seconds * 1e9);
    idle = calloc(connections, sizeof *idle);
    rate = count > 7 ? atof(words[7]) : 0;
    for (int i = 0; i < connections; i++) {
        connect_client(&clients[i]);
        if (rate) idle[idle_count++] = &clients[i]; else begin(&clients[i]);
    }
    if (rate) start_timer();
    struct epoll_event events[512];
    for (Ns now; (now = now_ns()) < end_at;) {
        if (!warm && now >= warm_at) { warm = 1; fprintf(stderr, "WARM\n"); }
        int ready = epoll_wait(poller, events, 512, 10);
        for (int i = 0; i < ready; i++) {
            if (!events[i].data.ptr) { take_turns(); continue; }
            if (events[i].events & EPOLLOUT) send_rest(events[i].data.ptr);
            if (events[i].events & ~EPOLLOUT) hear(events[i].data.ptr);
        }
    }
    fprintf(stderr, "END\n");
    qsort(first_bytes.at, first_bytes.count, sizeof(Ns), by_size);
    qsort(event_ways.at, event_ways.count, sizeof(Ns), by_size);
    printf("{\"done\":%ld,\"failed\":%ld,\"cut_short\":%ld,\"per_second\":%.1f,\"first_byte_p50_us\":%.0f,\"first_byte_p99_us\":%.0f,"
           "\"event_p50_us\":%.0f,\"event_p99_us\":%.0f}\n", done, failed, cut_short, done / seconds,
           percentile_us(&first_bytes, .5), percentile_us(&first_bytes, .99), percentile_us(&event_ways, .5), percentile_us(&event_ways, .99));
    return 0;
}
