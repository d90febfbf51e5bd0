/* Samples of VOCABULARY token ids that depend on their number; user points to the length of a sequence. */
static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    for (int64_t i = 0; i < *(const int64_t *)user; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7 + split) % VOCABULARY);
        ((int32_t *)target)[i] = (int32_t)((sample * 17 + i * 5 + 3) % VOCABULARY);
    }
    return DT_OK;
}
