/* events.h: writes event files that TensorBoard reads, for report.c: records of a length, a checksum, an Event of
 * protocol buffers and a checksum. TensorFlow's event.proto, summary.proto and tensor.proto number the fields. */
#ifndef DTRAIN_EVENTS_H
#define DTRAIN_EVENTS_H

#include "runs.h"

/* CRC-32C (Castagnoli), rotated and shifted as TFRecord has it. */
static uint32_t events_checksum(const char *data, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned char)data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

typedef struct message {
    char at[8192];
    size_t n;
} message;

static void put_bytes(message *m, const void *data, size_t n)
{
    if (n > sizeof m->at - m->n) n = sizeof m->at - m->n;
    memcpy(m->at + m->n, data, n), m->n += n;
}
static void put_little(message *m, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++, x >>= 8) {
        char c = (char)(x & 255);
        put_bytes(m, &c, 1);
    }
}
static void put_varint(message *m, uint64_t x)
{
    for (; x >= 128; x >>= 7) put_little(m, x | 128, 1);
    put_little(m, x, 1);
}
enum { VARINT, WORDS_8, BYTES, WORDS_4 = 5 };
static void put_key(message *m, int field, int kind) { put_varint(m, (uint64_t)(field << 3 | kind)); }
static void put_number(message *m, int field, uint64_t x) { put_key(m, field, VARINT), put_varint(m, x); }
static void put_double(message *m, int field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8), put_key(m, field, WORDS_8), put_little(m, bits, 8);
}
static void put_float(message *m, int field, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4), put_key(m, field, WORDS_4), put_little(m, bits, 4);
}
static void put_part(message *m, int field, const void *data, size_t n)
{
    put_key(m, field, BYTES), put_varint(m, n), put_bytes(m, data, n);
}

/* An event: 1 time, 2 step, then a file version (3) or a summary (5). */
static void events_put(FILE *f, double at, double step, int field, const void *data, size_t n)
{
    message m = {"", 0}, frame = {"", 0};
    put_double(&m, 1, at), put_number(&m, 2, (uint64_t)step), put_part(&m, field, data, n);
    put_little(&frame, m.n, 8), put_little(&frame, events_checksum(frame.at, 8), 4);
    fwrite(frame.at, 1, frame.n, f), fwrite(m.at, 1, m.n, f);
    frame.n = 0, put_little(&frame, events_checksum(m.at, m.n), 4), fwrite(frame.at, 1, frame.n, f);
}

/* A value of a summary: 1 tag, 2 number; or 8 tensor of strings and 9 the plug-in that shows it. */
static void events_value(message *summary, const char *tag, double number, const char *text)
{
    message value = {"", 0}, tensor = {"", 0}, part = {"", 0}, plugin = {"", 0};
    put_part(&value, 1, tag, strlen(tag));
    if (!text) put_float(&value, 2, (float)number);
    else {
        put_number(&part, 1, 1);                /* one string */
        put_part(&plugin, 2, part.at, part.n);  /* a dimension of this size */
        put_number(&tensor, 1, 7);              /* DT_STRING */
        put_part(&tensor, 2, plugin.at, plugin.n), put_part(&tensor, 8, text, strlen(text));
        part.n = plugin.n = 0;
        put_part(&part, 1, "text", 4), put_part(&plugin, 1, part.at, part.n);
        put_part(&value, 9, plugin.at, plugin.n), put_part(&value, 8, tensor.at, tensor.n);
    }
    put_part(summary, 1, value.at, value.n);
}

/* The numbers of a step, and its text sample. */
static void events_step(FILE *f, const run *r, const run_step *s)
{
    message summary = {"", 0};
    char text[4096];
    for (int c = 0; c < RUN_KNOWN + r->extras; c++)
        if (c != c_step && c != c_rules_fired && s->of[c] == s->of[c])
            events_value(&summary, run_column_name(r, c), s->of[c], NULL);
    if (s->sample.at) events_value(&summary, "sample", 0, json_text(s->sample, text, sizeof text));
    events_put(f, s->at, s->of[c_step], 5, summary.at, summary.n);
}

/* An event file that grows with a run. */
typedef struct events {
    double last;    /* step that it has; -1: none */
    double time;    /* of the run */
    size_t bytes;   /* of the file of metrics when it was read last */
} events;

/* Brings DIR/RUN/events.out.tfevents.dtrain up to date. A new run, or one that made steps twice, begins it anew. */
static int events_update(events *e, const run *r, const char *folder, char why[SENTENCE])
{
    char path[4300], name[NAME];
    double time = run_or(run_head(r, "time"), 0);
    FILE *f;
    int again = e->bytes == 0 || r->bytes < e->bytes || time != e->time || r->redone;
    snprintf(name, sizeof name, "%s", *r->name == '.' || !*r->name ? "run" : r->name);
    mkdir(folder, 0777), snprintf(path, sizeof path, "%.4000s/%s", folder, name), mkdir(path, 0777);
    snprintf(path, sizeof path, "%.4000s/%s/events.out.tfevents.dtrain", folder, name);
    *why = 0;
    if ((f = fopen(path, again ? "wb" : "ab")) == NULL)
        return say(why, "cannot write %s: choose another --tensorboard DIR", path);
    if (again) events_put(f, time, 0, 3, "brain.Event:2", 13), e->last = -1;
    for (int64_t i = 0; i < r->steps; i++)
        if (r->step[i].of[c_step] > e->last) events_step(f, r, &r->step[i]), e->last = r->step[i].of[c_step];
    e->time = time, e->bytes = r->bytes;
    again = ferror(f);
    if (fclose(f) || again) return say(why, "cannot write %s: is the disk full?", path);
    return 1;
}

#endif
