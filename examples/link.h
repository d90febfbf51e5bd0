/* link.h: what a message costs. Include it after dtrain.h. */
#ifndef LINK_H
#define LINK_H

/* A kind of link: s bytes take alpha + beta s seconds. r2: the share of the times' variance that the line explains. */
typedef struct dt_link {
    double alpha, beta, r2;
    int64_t points; /* that were fitted; 0: a time or a size is none */
} dt_link;

/* Fits alpha >= 0 and beta >= 0 to n messages by least squares of the relative error, by which r2 is weighted, too. */
static inline dt_link dt_link_fit(const double *bytes, const double *seconds, int n)
{
    dt_link link = {0, 0, 0, 0};
    double w = 0, ws = 0, wss = 0, v = 0, vs = 0, all = 0, left = 0, det;
    for (int i = 0; i < n; i++)
        if (!(seconds[i] >= 1e-12 && seconds[i] <= 1e12 && bytes[i] >= 0 && bytes[i] <= 1e18)) return link;
    if (n < 1) return link;
    for (int i = 0; i < n; i++) {
        double u = 1 / seconds[i], s = bytes[i];
        w += u * u, ws += u * u * s, wss += u * u * s * s, v += u, vs += u * s;
    }
    det = w * wss - ws * ws;
    link.beta = det > 0 ? (w * vs - ws * v) / det : 0.0;
    if (link.beta < 0) link.beta = 0;
    link.alpha = (v - link.beta * ws) / w;
    if (link.alpha < 0) link.alpha = 0;
    link.points = n;
    for (int i = 0; i < n; i++) {
        double t = seconds[i], f = link.alpha + link.beta * bytes[i], mean = v / w;
        all += (t - mean) * (t - mean) / (t * t);
        left += (t - f) * (t - f) / (t * t);
    }
    link.r2 = all > 0 ? 1 - left / all : 1.0;
    return link;
}

#endif
