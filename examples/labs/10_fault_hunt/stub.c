#include "lab.h"

const lab_answer lab_answers[LAB_RUNS] = {
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* A */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* B */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* C */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* D */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* E */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* F */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* G */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* H */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* I */
    {CAUSE_UNKNOWN, FIX_NOTHING, 0}, /* J */
};
