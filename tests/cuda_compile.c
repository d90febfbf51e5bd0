/* Compiles the device's text by NVRTC as the header does, and says what the compiler said:
 *     cuda_compile LIBRARY TEXT PTX --gpu-architecture=compute_90a OPTION ..
 * PTX is the file that gets the assembler's text; -: none. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static void find(const char *name, void *place)
{
    void *symbol = dlsym(library, name);
    if (!symbol) fprintf(stderr, "no %s\n", name), exit(2);
    memcpy(place, &symbol, sizeof symbol);
}

int main(int argc, char **argv)
{
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, char **);
    int (*log_size)(void *, size_t *), (*log_text)(void *, char *), (*size_of)(void *, size_t *), (*ptx)(void *, char *);
    static char text[1 << 22];
    char *log;
    size_t size;
    void *program = NULL;
    FILE *file = argc > 4 ? fopen(argv[2], "r") : NULL;
    int failed;
    if (!file || !fread(text, 1, sizeof text - 1, file) || !(library = dlopen(argv[1], RTLD_NOW))) return 2;
    find("nvrtcCreateProgram", &create), find("nvrtcCompileProgram", &compile);
    find("nvrtcGetProgramLogSize", &log_size), find("nvrtcGetProgramLog", &log_text);
    if (create(&program, text, "dtrain.cu", 0, NULL, NULL)) return 2;
    find("nvrtcGetPTXSize", &size_of), find("nvrtcGetPTX", &ptx);
    failed = compile(program, argc - 4, argv + 4);
    log_size(program, &size);
    if (!(log = calloc(1, size + 1))) return 2;
    log_text(program, log);
    printf("%s%s\n", log, failed ? "not compiled" : *log ? "compiled with warnings" : "compiled without a warning");
    fclose(file);
    if (failed || !strcmp(argv[3], "-")) return failed != 0;
    free(log);
    if (size_of(program, &size) || !(log = malloc(size)) || ptx(program, log) || !(file = fopen(argv[3], "w"))) return 2;
    fputs(log, file);
    return fclose(file) != 0;
}
