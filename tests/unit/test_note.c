/* The note reader against sound plugins, hand-made ELF files, and files that mean harm. */
#include "support.h"

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/note.h"

#define PLUGIN(name) (COLIBRI_TEST_BINARY_DIR "/tests/plugins-bad/" name ".so")

#if defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_X86_64
#endif

/* The bytes go into a block of exactly their size, so that sanitizers and valgrind see a read past the end. */
static int read_bytes(const void *data, size_t n, clb_note *note, clb_error *err)
{
    uint8_t *const exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, data, n);
    memset(note, 0xee, sizeof *note);
    *err = (clb_error){0};
    const int rc = clb_note_read(&(clb_note_source){.data = exact, .size = n}, note, err);
    if (rc) {
        assert_true(*err->msg);
        assert_null(strchr(err->msg, '\n'));
    }
    free(exact);
    return rc;
}

static void test_real_plugin(void **state)
{
    (void)state;
    size_t n;
    char *const data = test_read_file(PLUGIN("good"), &n);
    clb_note from_memory, from_file;
    clb_error err;
    assert_ok(read_bytes(data, n, &from_memory, &err), &err);
    const int fd = open(PLUGIN("good"), O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_ok(clb_note_read(&(clb_note_source){.fd = fd, .size = n}, &from_file, &err), &err);
    /* The file is shorter than was said: it was truncated after the size was taken. */
    assert_int_equal(clb_note_read(&(clb_note_source){.fd = fd, .size = UINT64_MAX}, &from_file, &err), COLIBRI_OK);
    close(fd);
    assert_memory_equal(&from_memory, &from_file, sizeof from_file);
    const struct colibri_note_desc *const d = &from_file.raw.desc;
    assert_string_equal(d->id, "test.good");
    assert_string_equal(d->version, "1.2.3");
    assert_string_equal(d->symbol, "colibri_plugin_test_good");
    assert_string_equal(d->summary, "a plugin without faults");
    assert_string_equal(d->license, "MIT");
    assert_int_equal(d->rank, 100);
    assert_int_equal(d->kinds, COLIBRI_KIND_KERNEL | COLIBRI_KIND_EXPERT_POLICY);
    free(data);
}

static void test_truncated_everywhere(void **state)
{
    (void)state;
    size_t n;
    char *const data = test_read_file(PLUGIN("good"), &n);
    clb_note note;
    clb_error err;
    size_t refused = 0;
    for (size_t cut = 0; cut < n; cut += cut < 2048 ? 1 : 64)
        refused += read_bytes(data, cut, &note, &err) != COLIBRI_OK;
    assert_true(refused > 500); /* the headers and the note itself lie in the first kilobyte */
    free(data);
}

static void test_flipped_bytes(void **state)
{
    (void)state;
    size_t n;
    char *const data = test_read_file(PLUGIN("good"), &n);
    char *const broken = malloc(n);
    assert_non_null(broken);
    test_rand rng = {20240607};
    clb_note note;
    clb_error err;
    size_t refused = 0;
    for (int i = 0; i < 20000; i++) {
        const uint32_t area = i % 4 ? 1024 : (uint32_t)n; /* mostly where the reader looks */
        memcpy(broken, data, n);
        for (uint32_t k = test_rand_below(&rng, 8) + 1; k; k--)
            broken[test_rand_below(&rng, area)] = (char)test_rand_below(&rng, 256);
        const int rc = read_bytes(broken, n, &note, &err);
        refused += rc != COLIBRI_OK;
        if (rc == COLIBRI_OK) { /* then every string ends and may be printed */
            clb_error again;
            assert_ok(clb_note_check(&note.raw.desc, sizeof note.raw.desc, &again), &again);
        }
    }
    assert_true(refused > 1000);
    free(broken);
    free(data);
}

/* ---- hand-made files -------------------------------------------------------------------------------------- */

typedef struct image {
    struct {
        Elf64_Ehdr header;
        Elf64_Phdr phdr[2];
        uint8_t notes[1024];
    } f;
    size_t n_notes; /* bytes used */
} image;

static struct colibri_note_desc sound_desc(void)
{
    return (struct colibri_note_desc){.desc_size = sizeof(struct colibri_note_desc),
                                      .abi_major = COLIBRI_ABI_MAJOR,
                                      .abi_minor = COLIBRI_ABI_MINOR,
                                      .kinds = COLIBRI_KIND_FORMAT,
                                      .rank = 7,
                                      .id = "org.example.q-4_0",
                                      .version = "0.1.0-rc.1",
                                      .symbol = "colibri_plugin_org_example_q_4_0",
                                      .summary = "gr\xc3\xb6\xc3\x9f"
                                                 "er",
                                      .license = "MIT"};
}

static void start(image *im)
{
    *im = (image){.n_notes = 0};
    Elf64_Ehdr *const h = &im->f.header;
    memcpy(h->e_ident, ELFMAG, SELFMAG);
    h->e_ident[EI_CLASS] = ELFCLASS64;
    h->e_ident[EI_DATA] = ELFDATA2LSB;
    h->e_ident[EI_VERSION] = EV_CURRENT;
    h->e_type = ET_DYN;
    h->e_machine = MACHINE;
    h->e_phoff = offsetof(image, f.phdr) - offsetof(image, f);
    h->e_phentsize = sizeof(Elf64_Phdr);
    h->e_phnum = 2;
    im->f.phdr[0].p_type = PT_LOAD;
    im->f.phdr[1].p_type = PT_NOTE;
    im->f.phdr[1].p_offset = offsetof(image, f.notes) - offsetof(image, f);
    im->f.phdr[1].p_align = 4;
}

static void add_note(image *im, uint32_t align, uint32_t namesz, const char *name, uint32_t type, const void *desc,
                     uint32_t descsz)
{
    const uint32_t h[3] = {namesz, descsz, type};
    uint8_t *const p = im->f.notes + im->n_notes;
    const size_t at_desc = (12 + namesz + align - 1) / align * align,
                 end = (at_desc + descsz + align - 1) / align * align;
    assert_true(im->n_notes + end <= sizeof im->f.notes);
    memcpy(p, h, sizeof h);
    memcpy(p + 12, name, namesz);
    if (descsz)
        memcpy(p + at_desc, desc, descsz);
    im->n_notes += end;
    im->f.phdr[1].p_filesz = im->n_notes;
    im->f.phdr[1].p_align = align;
}

static void add_ours(image *im, const struct colibri_note_desc *d)
{
    add_note(im, 4, 8, COLIBRI_NOTE_NAME, COLIBRI_NOTE_TYPE, d, sizeof *d);
}

static int read_image(const image *im, clb_note *note, clb_error *err)
{
    return read_bytes(&im->f, sizeof im->f, note, err);
}

static void test_first_of_ours_wins(void **state)
{
    (void)state;
    image im;
    clb_note note;
    clb_error err;
    struct colibri_note_desc first = sound_desc(), second = sound_desc();
    second.rank = 8;
    start(&im);
    add_note(&im, 4, 4, "GNU", 3, "0123456789abcdefghij", 20);
    add_note(&im, 4, 8, COLIBRI_NOTE_NAME, 2, "a later type", 12);
    add_note(&im, 4, 7, "Colibr", COLIBRI_NOTE_TYPE, "", 0);
    add_ours(&im, &first);
    add_ours(&im, &second);
    assert_ok(read_image(&im, &note, &err), &err);
    assert_int_equal(note.raw.desc.rank, 7);
    assert_true(note.has_id);
    assert_string_equal(note.raw.desc.id, "org.example.q-4_0");

    /* In a segment that the linker aligned to 8 because of another note. */
    start(&im);
    add_note(&im, 8, 4, "GNU", 5, "0123456789abcdef", 16);
    const uint32_t h[3] = {8, sizeof first, COLIBRI_NOTE_TYPE};
    memcpy(im.f.notes + im.n_notes, h, 12);
    memcpy(im.f.notes + im.n_notes + 12, COLIBRI_NOTE_NAME, 8);
    memcpy(im.f.notes + im.n_notes + 20, &first, sizeof first);
    im.f.phdr[1].p_filesz = im.n_notes + 20 + sizeof first;
    assert_ok(read_image(&im, &note, &err), &err);
    assert_int_equal(note.raw.desc.rank, 7);
}

static void test_longer_descriptor(void **state)
{
    (void)state;
    image im;
    clb_note note;
    clb_error err;
    struct {
        struct colibri_note_desc known;
        uint8_t tail[64];
    } d = {.known = sound_desc()};
    d.known.desc_size = sizeof d;
    start(&im);
    add_note(&im, 4, 8, COLIBRI_NOTE_NAME, COLIBRI_NOTE_TYPE, &d, sizeof d);
    assert_ok(read_image(&im, &note, &err), &err);
    assert_int_equal(note.raw.desc.rank, 7);
    d.known.desc_size = sizeof d + 4;
    start(&im);
    add_note(&im, 4, 8, COLIBRI_NOTE_NAME, COLIBRI_NOTE_TYPE, &d, sizeof d);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_FORMAT, "says it has 388");
}

static void test_abi(void **state)
{
    (void)state;
    image im;
    clb_note note;
    clb_error err;
    struct colibri_note_desc d = sound_desc();
    d.abi_major = COLIBRI_ABI_MAJOR + 1;
    d.kinds = 0x80000000u; /* means something there */
    start(&im);
    add_ours(&im, &d);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_PLUGIN, "a newer Colibri is needed");
    assert_true(note.has_id);
    d.abi_major = 0;
    start(&im);
    add_ours(&im, &d);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_PLUGIN, "must be rebuilt");
    d = sound_desc();
    d.abi_minor = COLIBRI_ABI_MINOR + 1;
    start(&im);
    add_ours(&im, &d);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_PLUGIN, "a newer Colibri is needed");
    /* Of another ABI only the beginning is sure: a short descriptor is judged by it all the same. */
    d.abi_major = 9;
    start(&im);
    add_note(&im, 4, 8, COLIBRI_NOTE_NAME, COLIBRI_NOTE_TYPE, &d, 8);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_PLUGIN, "ABI 9.1");
    assert_false(note.has_id);
    start(&im);
    add_note(&im, 4, 8, COLIBRI_NOTE_NAME, COLIBRI_NOTE_TYPE, &d, 4);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_FORMAT, "too short");
}

static void test_descriptor_fields(void **state)
{
    (void)state;
    static const char *const wrong[] = {"the id",      "the id",      "the id",       "the symbol",  "the symbol",
                                        "the version", "the version", "the summary",  "the summary", "the summary",
                                        "the license", "nothing",     "do not exist", "at least 320"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct colibri_note_desc d = sound_desc();
        image im;
        clb_note note;
        clb_error err;
        uint32_t descsz = sizeof d;
        switch (i) {
        case 0:
            memset(d.id, 'a', sizeof d.id);
            break;
        case 1:
            d.id[0] = '\0';
            break;
        case 2:
            memcpy(d.id, "a/../b", 7);
            break;
        case 3:
            memset(d.symbol, 'a', sizeof d.symbol);
            break;
        case 4:
            d.symbol[0] = 'X';
            break;
        case 5:
            memset(d.version, '1', sizeof d.version);
            break;
        case 6:
            memcpy(d.version, "1 2", 4);
            break;
        case 7:
            memset(d.summary, 'x', sizeof d.summary);
            break;
        case 8:
            memcpy(d.summary, "\x1b[2J", 5);
            break;
        case 9:
            memcpy(d.summary, "\xc3(", 3);
            break;
        case 10:
            memset(d.license, 'x', sizeof d.license);
            break;
        case 11:
            d.kinds = 0;
            break;
        case 12:
            d.kinds |= COLIBRI_KIND_ALL + 1;
            break;
        default:
            descsz = sizeof d - 4;
            break;
        }
        start(&im);
        add_note(&im, 4, 8, COLIBRI_NOTE_NAME, COLIBRI_NOTE_TYPE, &d, descsz);
        assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_FORMAT, wrong[i]);
    }
}

static void test_hostile_sizes(void **state)
{
    (void)state;
    image im;
    clb_note note;
    clb_error err;
    const struct colibri_note_desc d = sound_desc();
    static const uint32_t huge[] = {0xffffffffu, 0xfffffffcu, 0x80000000u, 0x7fffffffu, 1024, 333};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        start(&im);
        add_ours(&im, &d);
        memcpy(im.f.notes + 4, &huge[i], 4); /* descsz */
        assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_FORMAT, "over the end");
        start(&im);
        add_note(&im, 4, 4, "GNU", 3, "x", 1);
        memcpy(im.f.notes + (i & 1 ? 4 : 0), &huge[i], 4); /* of a foreign note: ours is never reached */
        add_ours(&im, &d);
        const int rc = read_image(&im, &note, &err);
        assert_true(rc == COLIBRI_E_NOT_FOUND);
    }
    /* Ours ends exactly at the end of the segment, or one byte after it. */
    start(&im);
    add_ours(&im, &d);
    assert_ok(read_image(&im, &note, &err), &err);
    im.f.phdr[1].p_filesz--;
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_FORMAT, "over the end");
    /* Segments outside of the file, sums that overflow, the same megabytes again and again. */
    static const struct {
        uint64_t offset, size;
        int status;
    } segments[] = {{0, UINT64_MAX, COLIBRI_E_FORMAT},        {UINT64_MAX, 16, COLIBRI_E_FORMAT},
                    {UINT64_MAX - 8, 16, COLIBRI_E_FORMAT},   {sizeof im.f, 1, COLIBRI_E_FORMAT},
                    {sizeof im.f, 0, COLIBRI_E_NOT_FOUND},    {0, sizeof im.f, COLIBRI_E_NOT_FOUND},
                    {sizeof im.f - 3, 3, COLIBRI_E_NOT_FOUND}};
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        start(&im);
        add_ours(&im, &d);
        im.f.phdr[1].p_offset = segments[i].offset;
        im.f.phdr[1].p_filesz = segments[i].size;
        assert_int_equal(read_image(&im, &note, &err), segments[i].status);
    }
}

static void test_too_many_notes(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20 };
    uint8_t *const big = calloc(1, SIZE);
    assert_non_null(big);
    image im;
    clb_note note;
    clb_error err;
    start(&im);
    im.f.header.e_phnum = 200; /* overlapping segments that each claim the whole file */
    memcpy(big, &im.f.header, sizeof im.f.header);
    for (size_t i = 0; i < 200; i++) {
        const Elf64_Phdr p = {.p_type = PT_NOTE, .p_offset = 0, .p_filesz = 200000, .p_align = 4};
        memcpy(big + im.f.header.e_phoff + i * sizeof p, &p, sizeof p);
    }
    assert_fails(read_bytes(big, SIZE, &note, &err), &err, COLIBRI_E_FORMAT, "of notes");
    free(big);
}

static void test_other_files(void **state)
{
    (void)state;
    image im;
    clb_note note;
    clb_error err;
    const struct colibri_note_desc d = sound_desc();
    static const char *const wrong[] = {"not an ELF",      "64-bit",          "little-endian",   "little-endian",
                                        "shared object",   "another machine", "program headers", "program headers",
                                        "program headers", "truncated",       "truncated"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        start(&im);
        add_ours(&im, &d);
        Elf64_Ehdr *const h = &im.f.header;
        switch (i) {
        case 0:
            h->e_ident[1] = 'F';
            break;
        case 1:
            h->e_ident[EI_CLASS] = ELFCLASS32;
            break;
        case 2:
            h->e_ident[EI_DATA] = ELFDATA2MSB;
            break;
        case 3:
            h->e_ident[EI_VERSION] = 9;
            break;
        case 4:
            h->e_type = ET_EXEC;
            break;
        case 5:
            h->e_machine = EM_S390;
            break;
        case 6:
            h->e_phentsize = 32;
            break;
        case 7:
            h->e_phnum = 0;
            break;
        case 8:
            h->e_phnum = 0xffff;
            break;
        case 9:
            h->e_phoff = UINT64_MAX;
            break;
        default:
            h->e_phoff = sizeof im.f - 8;
            break;
        }
        assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_FORMAT, wrong[i]);
    }
    start(&im);
    assert_fails(read_image(&im, &note, &err), &err, COLIBRI_E_NOT_FOUND, "no .note.colibri");
    assert_fails(read_bytes("", 0, &note, &err), &err, COLIBRI_E_FORMAT, "not an ELF");
}

/* ---- names and versions ----------------------------------------------------------------------------------- */

static void test_versions(void **state)
{
    (void)state;
    static const char *const ascending[] = {"0.9", "1.0.0-alpha", "1.0.0-beta", "1.0.0",  "1.0.1",
                                            "1.2", "1.2.3",       "1.9.9",      "1.10.0", "2"};
    enum { N = sizeof ascending / sizeof *ascending };
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            const int c = clb_version_compare(ascending[i], ascending[k]);
            assert_true(i < k ? c < 0 : i > k ? c > 0 : c == 0);
        }
    assert_int_equal(clb_version_compare("1.2+build7", "1.2+build8"), 0);
    assert_int_equal(clb_version_compare("01.2", "1.02"), 0);
    assert_true(clb_version_compare("99999999999999999999999", "1") > 0);
}

static void test_names(void **state)
{
    (void)state;
    char symbol[COLIBRI_ID_MAX + 16];
    clb_plugin_symbol("org.example.q4-k_m", symbol);
    assert_string_equal(symbol, "colibri_plugin_org_example_q4_k_m");
    char longest[COLIBRI_ID_MAX + 1];
    memset(longest, 'a', sizeof longest);
    longest[COLIBRI_ID_MAX - 1] = '\0';
    assert_true(clb_plugin_id_valid(longest));
    longest[COLIBRI_ID_MAX - 1] = 'a';
    longest[COLIBRI_ID_MAX] = '\0';
    assert_false(clb_plugin_id_valid(longest));
    assert_false(clb_plugin_id_valid(""));
    assert_false(clb_plugin_id_valid("Org"));
    assert_true(clb_component_name_valid("avx512-vnni.Q4_K"));
    assert_false(clb_component_name_valid("a b"));
    char kinds[96];
    assert_string_equal(clb_kinds_format(COLIBRI_KIND_ALL, kinds), "kernel,format,expert-policy,predictor,kv-strategy");
    static const char *const bad[] = {"\x80",      "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xc2\x9bm", "a\tb",     "\xe2\x82",     "\x7f"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(clb_text_printable(bad[i]));
    assert_true(clb_text_printable("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x90\xa6"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_plugin),       cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_flipped_bytes),     cmocka_unit_test(test_first_of_ours_wins),
        cmocka_unit_test(test_longer_descriptor), cmocka_unit_test(test_abi),
        cmocka_unit_test(test_descriptor_fields), cmocka_unit_test(test_hostile_sizes),
        cmocka_unit_test(test_too_many_notes),    cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_versions),          cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
