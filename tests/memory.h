/* memory.h: the allocator of the implementation that tests are linked to (cc -include). A test that counts requests, or
 * lets them fail, defines functions of these names. */
#include <stddef.h>
#include <stdlib.h>

void *test_malloc(size_t bytes);
void test_free(void *p);
__attribute__((weak)) void *test_malloc(size_t bytes) { return malloc(bytes); }
__attribute__((weak)) void test_free(void *p) { free(p); }
#define DT_MALLOC(bytes) test_malloc(bytes)
#define DT_FREE(p) test_free(p)
