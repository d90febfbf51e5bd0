/* events.h: writes event files that TensorBoard reads, for report.c: records of a length, a checksum, an Event of
 * protocol buffers and a checksum. TensorFlow's event.proto, summary.proto and tensor.proto number the fields. */
#ifndef DTRAIN_EVENTS_H
#define DTRAIN_EVENTS_H

#include "runs.h"

/* CRC-32C (Castagnoli), rotated and shifted as TFRecord has it. */
static uint32_t events_checksum(const void *data, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (const unsigned char *p = (const unsigned char *)data; n--; p++) {
        crc ^= *p;
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

typedef struct message {
    unsigned char at[8192];
    size_t n;
} message;

static void put_varint(message *m, uint64_t x)
{
    for (; x >= 128; x >>= 7) m->at[m->n++] = (unsigned char)(x | 128);
    m->at[m->n++] = (unsigned char)x;
}
enum { VARINT, WORDS_8, BYTES, WORDS_4 = 5 };
/* A field, whose value is little-endian as it is here, or a varint. */
static void put_number(message *m, int field, uint64_t x) { put_varint(m, (uint64_t)field << 3), put_varint(m, x); }
static void put_field(message *m, int field, int kind, const void *data, size_t n)
{
    put_varint(m, (uint64_t)(field << 3 | kind));
    if (kind == BYTES) put_varint(m, n);
    memcpy(m->at + m->n, data, n), m->n += n;
}

/* Adds an event to a file: 1 time, 2 step, and a file version (3) or a summary (5). */
static void events_put(FILE *f, double at, double step, int field, const void *data, size_t n)
{
    message m = {"", 0};
    uint64_t length;
    uint32_t check;
    put_field(&m, 1, WORDS_8, &at, 8), put_number(&m, 2, (uint64_t)step), put_field(&m, field, BYTES, data, n);
    length = m.n, check = events_checksum(&length, 8), fwrite(&length, 8, 1, f), fwrite(&check, 4, 1, f);
    check = events_checksum(m.at, m.n), fwrite(m.at, 1, m.n, f), fwrite(&check, 4, 1, f);
}

/* Adds a value to a summary: 1 tag, 2 number; or 8 tensor of strings and 9 the plug-in that shows it. */
static void events_value(message *summary, const char *tag, float number, const char *text)
{
    message value = {"", 0}, tensor = {"", 0};
    put_field(&value, 1, BYTES, tag, strlen(tag));
    if (!text) put_field(&value, 2, WORDS_4, &number, 4);
    else { /* a tensor of type 7, a string, with one dimension of size 1 */
        put_number(&tensor, 1, 7), put_field(&tensor, 2, BYTES, "\x12\x02\x08\x01", 4);
        put_field(&tensor, 8, BYTES, text, strlen(text));
        put_field(&value, 9, BYTES, "\x0a\x06\x0a\x04text", 8), put_field(&value, 8, BYTES, tensor.at, tensor.n);
    }
    put_field(summary, 1, BYTES, value.at, value.n);
}

/* The text sample of a step, and every number of it. */
static void events_step(FILE *f, const run_step *s, double began)
{
    message summary = {"", 0};
    char name[NAME], sample[4096];
    slice in = json_inside(s->line), key, value;
    if (s->sample.at) events_value(&summary, "sample", 0, json_text(s->sample, sample, sizeof sample));
    while (json_next(&in, &key, &value) && summary.n < sizeof summary.at - 2 * NAME) {
        double x = json_number(value);
        if (x == x && !json_is(key, "step") && !json_is(key, "rules_fired"))
            events_value(&summary, json_text(key, name, sizeof name), (float)x, NULL);
    }
    events_put(f, began + known_or(s->of[c_elapsed], 0), s->of[c_step], 5, summary.at, summary.n);
}

/* An event file that grows with a run. */
typedef struct events {
    double last, began; /* step that it has; -1: none. began: time of the run */
    size_t bytes;       /* of the file of metrics when it was read last; 0: not yet */
} events;

/* Brings DIR/RUN/events.out.tfevents.dtrain up to date. A new run, or one that made steps twice, begins it anew. */
static int events_update(events *e, const run *r, const char *folder, char why[SENTENCE])
{
    char path[4300];
    double began = known_or(json_number_of(r->head, "time"), 0);
    int bad, again = !e->bytes || r->bytes < e->bytes || began != e->began || r->redone;
    FILE *f;
    snprintf(path, sizeof path, "%.4000s/%s", folder, *r->name == '.' || !*r->name ? "run" : r->name);
    mkdir(folder, 0777), mkdir(path, 0777), strcat(path, "/events.out.tfevents.dtrain");
    *why = 0;
    if ((f = fopen(path, again ? "wb" : "ab")) == NULL)
        return say(why, "cannot write %s: choose another --tensorboard DIR", path);
    if (again) events_put(f, began, 0, 3, "brain.Event:2", 13), e->last = -1;
    for (const run_step *s = r->step; s < r->step + r->steps; s++)
        if (s->of[c_step] > e->last) events_step(f, s, began), e->last = s->of[c_step];
    e->began = began, e->bytes = r->bytes;
    bad = ferror(f);
    if (fclose(f) || bad) return say(why, "cannot write %s: is the disk full?", path);
    return 1;
}

#endif
