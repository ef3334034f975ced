/* An engine that costs next to nothing: enough of vLLM's HTTP for a router to be measured in front of it.
 *
 * usage: engine PORT[,PORT...] [TICK_US]
 * A streamed answer has max_tokens events: as fast as they are taken, or one every TICK_US microseconds. Each event carries
 * "t", the monotonic nanoseconds of its making. A leg with do_remote_decode gets KV parameters in return.
 * Requests need a content-length; anything else is answered with an empty JSON object.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { LISTENER, TIMER, CONNECTION };
enum { ROOM = 64 * 1024 };

typedef struct Peer {
    int kind, fd, port, dead, waits_to_write, place; /* place: in `streams`, or -1 */
    char *in, *out;
    size_t in_size, in_room, out_size, out_room;
    long left; /* events still to send */
    int usage_due;
} Peer;

static int poller, stream_count, streams_room;
static Peer **streams;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *grown(void *memory, size_t size) {
    void *made = realloc(memory, size);
    if (!made) abort();
    return made;
}

static void watch(Peer *peer, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (peer->waits_to_write ? EPOLLOUT : 0), .data.ptr = peer};
    epoll_ctl(poller, operation, peer->fd, &event);
}

static void say(Peer *peer, const char *data, size_t size) {
    if (!peer->out_size) {
        ssize_t sent = send(peer->fd, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) { peer->dead = 1; return; }
        if (sent > 0) { data += sent; size -= sent; }
        if (!size) return;
    }
    if (peer->out_size + size > peer->out_room) peer->out = grown(peer->out, peer->out_room = (peer->out_size + size) * 2);
    memcpy(peer->out + peer->out_size, data, size);
    peer->out_size += size;
    if (!peer->waits_to_write) { peer->waits_to_write = 1; watch(peer, EPOLL_CTL_MOD); }
}

static void say_more(Peer *peer) {
    ssize_t sent = send(peer->fd, peer->out, peer->out_size, MSG_NOSIGNAL);
    if (sent < 0) { if (errno != EAGAIN) peer->dead = 1; return; }
    memmove(peer->out, peer->out + sent, peer->out_size -= sent);
    if (!peer->out_size) { peer->waits_to_write = 0; watch(peer, EPOLL_CTL_MOD); }
}

static void say_json(Peer *peer, const char *body) {
    char answer[2048];
    int size = snprintf(answer, sizeof answer,
        "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %zu\r\n"
        "content-type: application/json\r\n\r\n%s", strlen(body), body);
    say(peer, answer, size);
}

static void say_event(Peer *peer, const char *document) {
    char framed[1024];
    size_t size = strlen(document) + 8; /* "data: " and two line ends */
    say(peer, framed, snprintf(framed, sizeof framed, "%zx\r\ndata: %s\n\n\r\n", size, document));
}

static void leave_streams(Peer *peer) {
    if (peer->place < 0) return;
    streams[peer->place] = streams[--stream_count];
    streams[peer->place]->place = peer->place;
    peer->place = -1;
}

/* One event; after the last one also the usage, if it was asked for, and the end. */
static void step(Peer *peer) {
    char document[600];
    snprintf(document, sizeof document,
        "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1770000000,\"model\":\"mock\",\"choices\":"
        "[{\"index\":0,\"text\":\" tok\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null}],\"usage\":null,\"t\":%lld}",
        peer->left == 1 ? "\"length\"" : "null", now_ns());
    say_event(peer, document);
    if (--peer->left > 0) return;
    if (peer->usage_due)
        say_event(peer, "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1770000000,\"model\":\"mock\","
                        "\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":64,\"total_tokens\":80}}");
    say(peer, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", 24);
    leave_streams(peer);
}

static int has(const char *body, const char *key, const char *value) {
    for (const char *at = body; (at = strstr(at, key));) {
        at += strlen(key);
        while (*at == ' ' || *at == ':') at++;
        if (!strncmp(at, value, strlen(value))) return 1;
    }
    return 0;
}

static void begin_stream(Peer *peer, const char *body) {
    const char *wanted = strstr(body, "\"max_tokens\":");
    peer->left = wanted ? atol(wanted + 13) : 16;
    if (peer->left < 1) peer->left = 1;
    peer->usage_due = has(body, "\"include_usage\"", "true");
    const char *head = "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                       "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    say(peer, head, strlen(head));
    if (stream_count == streams_room) streams = grown(streams, (streams_room = streams_room * 2 + 64) * sizeof *streams);
    streams[peer->place = stream_count++] = peer;
    step(peer);
}

static void answer(Peer *peer, const char *head, const char *body) {
    char document[700];
    if (strncmp(head, "POST", 4)) {
        say_json(peer, "{}");
    } else if (has(body, "\"do_remote_decode\"", "true")) {
        snprintf(document, sizeof document,
            "{\"id\":\"cmpl-p\",\"object\":\"text_completion\",\"created\":1770000000,\"model\":\"mock\",\"choices\":[{\"index\":0,"
            "\"text\":\" t\",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":1,"
            "\"total_tokens\":17},\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
            "\"remote_engine_id\":\"eng-%d\",\"remote_block_ids\":[1,2,3,4,5,6,7,8],\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,"
            "\"tp_size\":1}}", peer->port);
        say_json(peer, document);
    } else if (has(body, "\"stream\"", "true")) {
        begin_stream(peer, body);
    } else {
        snprintf(document, sizeof document,
            "{\"id\":\"cmpl-0123456789\",\"object\":\"text_completion\",\"created\":1770000000,\"model\":\"mock\",\"choices\":[{\"index\":0,"
            "\"text\":\" hello world this is a mock\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}],"
            "\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":16,\"total_tokens\":32},\"port\":%d}", peer->port);
        say_json(peer, document);
    }
}

/* Answers one request of those that were read; 0 if there is no whole one. */
static int serve(Peer *peer) {
    char *end = peer->in_size ? memmem(peer->in, peer->in_size, "\r\n\r\n", 4) : NULL;
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(peer->in, "\r\ncontent-length:");
    size_t body_size = length ? strtoul(length + 17, NULL, 10) : 0, head_size = end + 4 - peer->in;
    *end = '\r';
    if (peer->in_size < head_size + body_size) return 0;
    char *body = end + 4, after = body[body_size]; /* there is always room for one byte more */
    body[body_size] = 0;
    answer(peer, peer->in, body);
    body[body_size] = after;
    memmove(peer->in, body + body_size, peer->in_size -= head_size + body_size);
    return 1;
}

static void hear(Peer *peer) {
    for (;;) {
        if (peer->in_room - peer->in_size < ROOM / 2) peer->in = grown(peer->in, peer->in_room += ROOM);
        ssize_t got = recv(peer->fd, peer->in + peer->in_size, peer->in_room - peer->in_size - 1, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) { peer->dead = 1; return; }
        peer->in_size += got;
    }
}

static void go_on(Peer *peer) {
    while (!peer->dead && peer->place < 0 && serve(peer)) {}
}

static void drop(Peer *peer) {
    leave_streams(peer);
    close(peer->fd);
    free(peer->in);
    free(peer->out);
    free(peer);
}

static Peer *made(int kind, int fd, int port) {
    Peer *peer = calloc(1, sizeof *peer);
    *peer = (Peer){.kind = kind, .fd = fd, .port = port, .place = -1};
    watch(peer, EPOLL_CTL_ADD);
    return peer;
}

static void accept_all(Peer *listener) {
    for (int fd, one = 1; (fd = accept4(listener->fd, 0, 0, SOCK_NONBLOCK)) >= 0;) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        made(CONNECTION, fd, listener->port);
    }
}

static void listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) { perror("engine: listen"); exit(1); }
    made(LISTENER, fd, port);
}

static void step_all(void) {
    for (int i = stream_count - 1; i >= 0; i--) {
        if (i >= stream_count) continue;
        Peer *peer = streams[i];
        if (peer->out_size > ROOM) continue; /* its reader is slow */
        step(peer);
        go_on(peer);
        if (peer->dead) drop(peer);
    }
}

int main(int count, char **words) {
    long tick_us = count > 2 ? atol(words[2]) : 0;
    if (count < 2) { fprintf(stderr, "usage: engine PORT[,PORT...] [TICK_US]\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    for (char *port = strtok(words[1], ","); port; port = strtok(NULL, ",")) listen_on(atoi(port));
    if (tick_us) {
        struct timespec every = {tick_us / 1000000, tick_us % 1000000 * 1000};
        Peer *timer = made(TIMER, timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 0);
        timerfd_settime(timer->fd, 0, &(struct itimerspec){every, every}, NULL);
    }
    struct epoll_event events[512];
    for (;;) {
        int ready = epoll_wait(poller, events, 512, !tick_us && stream_count ? 0 : -1), ticked = !tick_us;
        for (int i = 0; i < ready; i++) {
            Peer *peer = events[i].data.ptr;
            unsigned long long expired;
            if (peer->kind == TIMER) { ticked |= read(peer->fd, &expired, sizeof expired) > 0; continue; }
            if (peer->kind == LISTENER) { accept_all(peer); continue; }
            if (events[i].events & EPOLLOUT) say_more(peer);
            if (events[i].events & ~EPOLLOUT) hear(peer);
            go_on(peer);
            if (peer->dead) drop(peer);
        }
        if (ticked) step_all();
    }
}
