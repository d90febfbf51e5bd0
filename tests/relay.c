/* relay: a link with latency between two network namespaces, which this kernel's traffic control cannot make.
 *
 *     relay FILE_A FILE_B NAME SECONDS     FILE_*: the namespaces, as /run/netns/a
 *
 * Makes a TUN device NAME in each, prints "ready" when both are there, and carries packets from one to the other, each
 * SECONDS later. The devices end with the process, which ends when its standard input does. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { PACKETS = 8192, BYTES = 1600 }; /* 13 MB under way in each direction; more is lost, as on any link */

typedef struct packet {
    double due;
    ssize_t bytes;
    char data[BYTES];
} packet;
typedef struct line { /* one direction */
    packet *ring;
    uint32_t first, last;
} line;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int die(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int device_in(const char *space, const char *name)
{
    struct ifreq request;
    int net = open(space, O_RDONLY | O_CLOEXEC), fd;
    if (net < 0 || setns(net, CLONE_NEWNET)) die(space);
    close(net);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) die("/dev/net/tun");
    return fd;
}

/* Takes what has come, and sends what is due; the seconds until the next one is. */
static double carry(line *l, int from, int to, double delay)
{
    double t = now();
    for (ssize_t n; l->last - l->first < PACKETS; l->last++) {
        packet *p = &l->ring[l->last % PACKETS];
        if ((n = read(from, p->data, BYTES)) <= 0) break;
        p->bytes = n;
        p->due = t + delay;
    }
    for (; l->first != l->last && l->ring[l->first % PACKETS].due <= t; l->first++) {
        packet *p = &l->ring[l->first % PACKETS];
        if (write(to, p->data, (size_t)p->bytes) < 0 && errno != EIO && errno != ENOBUFS) die("write"); /* EIO: it is down */
    }
    return l->first == l->last ? 1.0 : l->ring[l->first % PACKETS].due - t;
}

int main(int argc, char **argv)
{
    static line lines[2];
    struct pollfd poll_at[3];
    double delay;
    if (argc != 5) {
        fprintf(stderr, "relay: FILE_A FILE_B NAME SECONDS\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        poll_at[i].fd = device_in(argv[1 + i], argv[3]);
        poll_at[i].events = POLLIN;
        if (!(lines[i].ring = malloc(PACKETS * sizeof(packet)))) die("memory");
    }
    poll_at[2].fd = 0;
    poll_at[2].events = POLLIN;
    delay = strtod(argv[4], NULL);
    printf("ready\n");
    fflush(stdout);
    while (!(poll_at[2].revents & (POLLIN | POLLHUP))) {
        double a = carry(&lines[0], poll_at[0].fd, poll_at[1].fd, delay), b = carry(&lines[1], poll_at[1].fd, poll_at[0].fd, delay);
        double wait = a < b ? a : b;
        struct timespec t;
        if (wait < 0) wait = 0;
        t.tv_sec = (time_t)wait;
        t.tv_nsec = (long)((wait - (double)t.tv_sec) * 1e9);
        ppoll(poll_at, 3, &t, NULL);
    }
    for (int i = 0; i < 2; i++) free(lines[i].ring);
    return 0;
}
