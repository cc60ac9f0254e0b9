// Preloaded into slurmd on hosts that have cgroup v1 too: /proc/PID/cgroup shows only the line of
// the unified hierarchy. Without it Slurm's cgroup/v2 plugin stops with "Hybrid mode is not
// supported"; nothing else can hide those lines, which are there as long as the host mounts v1.
// All else about the plugin is real: its paths, its tracking of processes, its device programs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_cgroup_file(const char *path) {
    size_t length = strlen(path);
    return length > 13 && !strncmp(path, "/proc/", 6) && !strcmp(path + length - 7, "/cgroup");
}

static int unified_only(int file) {
    char text[8192];
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    text[count > 0 ? count : 0] = 0;
    // The unified hierarchy is number 0, and the last line.
    char *line = strncmp(text, "0::", 3) ? strstr(text, "\n0::") : text;
    int filtered = memfd_create("cgroup", MFD_CLOEXEC);
    if (line && write(filtered, line + (*line == '\n'), strlen(line + (*line == '\n'))) < 0)
        return -1;
    lseek(filtered, 0, SEEK_SET);
    return filtered;
}

int open(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    if (!real)
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_list more;
    va_start(more, flags);
    int file = real(path, flags, va_arg(more, int));
    va_end(more);
    return file >= 0 && is_cgroup_file(path) ? unified_only(file) : file;
}
