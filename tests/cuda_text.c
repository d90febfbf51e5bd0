/* Prints the device's text of dtrain.h (./build.sh cuda-text). */
#define DT_CUDA
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

int main(void)
{
    dt__text text = DT__ZERO;
    dt__cuda_print(&text);
    if (text.failed) return 1;
    fputs(text.at, stdout);
    dt__free(text.at);
    return 0;
}
