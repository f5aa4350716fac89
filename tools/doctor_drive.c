/* What lies below the model's file: mount, file system, block device, encryption. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include "base/str.h"
#include "doctor.h"

#define SECTION "drive"
#define LAYERS  8 /* of block devices on each other; more are not followed */

struct mount {
    char point[512], type[64], source[256];
    unsigned major, minor;
};

/* mountinfo writes blanks, newlines and backslashes as three octal digits. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        unsigned c;
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && sscanf(s + 1, "%3o", &c) == 1 && c && strlen(s) >= 4) {
            *to++ = (char)c;
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

/* The mount that the file lies on: its device and its mount point should both be right. Some file systems (btrfs) have
 * other device numbers there, and a mount may be hidden below a later one: the last of several. */
static bool find_mount(const clb_doctor *d, const char *path, const struct stat *st, struct mount *out)
{
    char full[1024], line[4096];
    snprintf(full, sizeof full, "%s/proc/self/mountinfo", d->root);
    FILE *const f = fopen(full, "re");
    size_t best = 0;
    bool found = false;
    while (f && fgets(line, sizeof line, f)) {
        struct mount m = {.major = 0};
        const char *const dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*d %*d %u:%u %*s %511s", &m.major, &m.minor, m.point) != 3 ||
            sscanf(dash + 3, "%63s %255s", m.type, m.source) != 2)
            continue;
        unescape(m.point);
        unescape(m.source);
        const size_t n = strlen(m.point);
        const bool above = strncmp(path, m.point, n) == 0 && (n == 1 || path[n] == '/' || !path[n]);
        const bool same = m.major == major(st->st_dev) && m.minor == minor(st->st_dev);
        const size_t rank = (above ? n + 1 : 0) + (above && same ? sizeof m.point : 0) + (same ? 1 : 0);
        if (rank && rank >= best) {
            best = rank;
            *out = m;
            found = true;
        }
    }
    if (f)
        fclose(f);
    return found;
}

static bool is_network(const char *type)
{
    static const char *const types[] = {"nfs",        "nfs4",        "cifs",      "smb3",           "9p",
                                        "fuse.sshfs", "ceph",        "glusterfs", "fuse.glusterfs", "afs",
                                        "davfs",      "fuse.rclone", "virtiofs",  "fuse.s3fs"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

/* A file of the block device or, for a partition, of its whole drive. */
static bool device_line(const clb_doctor *d, const struct mount *m, const char *name, char *out, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s", m->major, m->minor, name);
    if (clb_doctor_line(d, path, out, n))
        return true;
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/../%s", m->major, m->minor, name);
    return clb_doctor_line(d, path, out, n);
}

/* The block device, or one of those that it is made of (LVM, RAID, a partition's drive), is decrypted by the kernel. */
static bool is_encrypted(const clb_doctor *d, const char *device, int layers)
{
    char path[512], uuid[128], full[1024];
    snprintf(path, sizeof path, "%s/dm/uuid", device);
    if (clb_doctor_line(d, path, uuid, sizeof uuid) && strncmp(uuid, "CRYPT-", 6) == 0)
        return true;
    if (!layers)
        return false;
    bool found = false;
    snprintf(path, sizeof path, "%s/slaves", device);
    snprintf(full, sizeof full, "%s%s", d->root, path);
    DIR *const dir = opendir(full);
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e && !found; e = readdir(dir)) {
        const int n = snprintf(full, sizeof full, "%s/%s", path, e->d_name);
        found = e->d_name[0] != '.' && n > 0 && (size_t)n < sizeof path && is_encrypted(d, full, layers - 1);
    }
    if (dir)
        closedir(dir);
    snprintf(path, sizeof path, "%s/partition", device);
    if (found || !clb_doctor_line(d, path, uuid, sizeof uuid))
        return found;
    snprintf(path, sizeof path, "%s/..", device);
    return is_encrypted(d, path, layers - 1);
}

static void device(clb_doctor *d, const struct mount *m)
{
    char text[256], scheduler[128];
    if (device_line(d, m, "queue/rotational", text, sizeof text)) {
        const bool spins = strcmp(text, "1") == 0;
        clb_doctor_add(
            d, SECTION, "kind", spins ? CLB_DOCTOR_NOTE : CLB_DOCTOR_OK,
            spins
                ? "If it does rotate, move the model to an SSD unless it fits memory: experts are read in random order."
                : NULL,
            "%s", spins ? "a rotating drive, or a virtual one that says so" : "a solid-state drive");
    }
    if (device_line(d, m, "queue/scheduler", scheduler, sizeof scheduler) && strstr(scheduler, "[bfq]"))
        clb_doctor_add(d, SECTION, "scheduler", CLB_DOCTOR_NOTE,
                       "On NVMe 'none' or 'mq-deadline' reads faster at many requests.", "I/O scheduler: bfq");
    snprintf(text, sizeof text, "/sys/dev/block/%u:%u", m->major, m->minor);
    if (is_encrypted(d, text, LAYERS))
        clb_doctor_add(
            d, SECTION, "encryption", CLB_DOCTOR_NOTE,
            "If reading limits the speed, keep the model on an unencrypted partition: decryption takes CPU time.",
            "the drive is encrypted (dm-crypt)");
}

static void file_system(clb_doctor *d, const struct mount *m)
{
    static const char *const encrypted[] = {"ecryptfs", "fuse.gocryptfs", "fuse.encfs", "fuse.cryfs"};
    if (is_network(m->type))
        clb_doctor_add(d, SECTION, "network", CLB_DOCTOR_WARN, "Copy the model to a local drive.",
                       "%s is a network file system: every expert that is not in memory crosses the network", m->type);
    else if (strcmp(m->type, "tmpfs") == 0 || strcmp(m->type, "ramfs") == 0)
        clb_doctor_add(d, SECTION, "memory-file-system", CLB_DOCTOR_WARN,
                       "Put the model on a drive: here it takes its size in memory twice.", "%s is memory", m->type);
    else if (strcmp(m->type, "overlay") == 0)
        clb_doctor_add(d, SECTION, "overlay", CLB_DOCTOR_NOTE,
                       "Mount the model's folder into the container (docker -v).",
                       "the model is in a container's layers (overlay)");
    for (size_t i = 0; i < sizeof encrypted / sizeof *encrypted; i++)
        if (strcmp(m->type, encrypted[i]) == 0)
            clb_doctor_add(d, SECTION, "encryption", CLB_DOCTOR_WARN, "Keep the model on a plain file system.",
                           "%s decrypts in user space", m->type);
}

void clb_doctor_drive(clb_doctor *d, const char *path)
{
    struct stat st;
    struct statvfs room;
    struct mount m;
    char a[24], b[24];
    char *const real = realpath(path, NULL);
    if (!real || stat(real, &st)) {
        clb_doctor_add(d, SECTION, "path", CLB_DOCTOR_FAIL, NULL, "cannot look at %s: %s", path, strerror(errno));
        free(real);
        return;
    }
    if (find_mount(d, real, &st, &m)) {
        clb_doctor_add(d, SECTION, "mount", CLB_DOCTOR_OK, NULL, "%s lies on %s (%s, %s)", real, m.point, m.source,
                       m.type);
        file_system(d, &m);
        device(d, &m);
    }
    if (statvfs(real, &room) == 0) {
        const uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize,
                       size = (uint64_t)room.f_blocks * room.f_frsize;
        clb_doctor_add(d, SECTION, "space", free_bytes < UINT64_C(1) << 30 ? CLB_DOCTOR_NOTE : CLB_DOCTOR_OK,
                       free_bytes < UINT64_C(1) << 30 ? "A prompt cache or a packed copy of the model would not fit."
                                                      : NULL,
                       "%s of %s are free there", clb_human_bytes(free_bytes, a), clb_human_bytes(size, b));
    }
    free(real);
}
