/* The text that a model may write freely: anything but the marks that begin calls.
 *
 * It is an automaton (Aho and Corasick, Efficient string matching, 1975): its states are the beginnings of marks that
 * the text so far ends with, the longest one counts. Each state is a rule that may end, or reads a character and goes
 * on with the rule of the next state; the character that would complete a mark is missing. Such last calls take no
 * stack. */
#include "serve/tool_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema.h"

#define STATES_MOST 512
#define MARK_MOST   128 /* bytes */

typedef struct machine {
    const char *marks[CLB_TEXT_MARKS];
    size_t n_marks;
    clb_str states[STATES_MOST]; /* beginnings of marks, each once; the empty one is the first */
    size_t n_states;
    clb_str letters[STATES_MOST]; /* characters in marks, each once */
    size_t n_letters;
    const char *name;
} machine;

static size_t character(const char *at)
{
    size_t n = 1;
    while (((unsigned char)at[n] & 0xc0) == 0x80)
        n++;
    return n;
}

static bool same(clb_str a, clb_str b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static bool insert(clb_str *set, size_t *n, clb_str s)
{
    for (size_t i = 0; i < *n; i++)
        if (same(set[i], s))
            return true;
    if (*n == STATES_MOST)
        return false;
    set[(*n)++] = s;
    return true;
}

static int collect(machine *m, clb_error *err)
{
    bool fits = insert(m->states, &m->n_states, (clb_str){"", 0});
    for (size_t i = 0; i < m->n_marks; i++) {
        fits = fits && strlen(m->marks[i]) < MARK_MOST;
        for (size_t at = 0, next; fits && m->marks[i][at]; at = next) {
            next = at + character(m->marks[i] + at);
            fits = fits && insert(m->letters, &m->n_letters, (clb_str){m->marks[i] + at, next - at});
            if (m->marks[i][next])
                fits = fits && insert(m->states, &m->n_states, (clb_str){m->marks[i], next});
        }
    }
    return fits ? COLIBRI_OK : clb_fail(err, COLIBRI_E_LIMIT, "the marks of calls are too long");
}

enum { FORBIDDEN = -1 };

/* The state behind one more character. */
static int follow(const machine *m, clb_str state, clb_str letter)
{
    char text[MARK_MOST + 4];
    const size_t n = state.n + letter.n;
    memcpy(text, state.p, state.n);
    memcpy(text + state.n, letter.p, letter.n);
    for (size_t i = 0; i < m->n_marks; i++) {
        const size_t k = strlen(m->marks[i]);
        if (k <= n && memcmp(text + n - k, m->marks[i], k) == 0)
            return FORBIDDEN;
    }
    for (size_t from = 0; from < n; from++)
        for (size_t i = 1; i < m->n_states; i++)
            if (same(m->states[i], (clb_str){text + from, n - from}))
                return (int)i;
    return 0;
}

/* A character within a class; by its number where it means something there. */
static int class_letter(clb_buf *out, clb_str letter, clb_error *err)
{
    const unsigned char c = (unsigned char)letter.p[0];
    const bool plain = letter.n > 1 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return plain ? clb_buf_append(out, letter.p, letter.n, err) : clb_buf_printf(out, err, "\\x%02x", (unsigned)c);
}

static int state_rule(const machine *m, size_t state, clb_buf *rules, clb_error *err)
{
    clb_buf others = {0}; /* characters that do not lead back to the begin */
    int rc = COLIBRI_OK;
    CLB_GO(clb_buf_printf(rules, err, "%s-%zu ::= \"\"", m->name, state));
    for (size_t i = 0; i < m->n_letters; i++) {
        const int next = follow(m, m->states[state], m->letters[i]);
        if (next == 0)
            continue;
        CLB_GO(class_letter(&others, m->letters[i], err));
        if (next == FORBIDDEN)
            continue;
        CLB_GO(clb_buf_append(rules, " | [", 4, err));
        CLB_GO(class_letter(rules, m->letters[i], err));
        CLB_GO(clb_buf_printf(rules, err, "] %s-%d", m->name, next));
    }
    if (others.n) /* each state has a character that completes a mark or goes on with it */
        CLB_GO(clb_buf_printf(rules, err, " | [^%s] %s-0\n", others.data, m->name));
    else
        CLB_GO(clb_buf_printf(rules, err, " | . %s-0\n", m->name));
done:
    clb_buf_free(&others);
    return rc;
}

int clb_text_without(const char *name, const char *const *marks, size_t n, clb_buf *rules, clb_error *err)
{
    machine *const m = calloc(1, sizeof *m);
    int rc = COLIBRI_OK;
    if (!m)
        return CLB_NOMEM(err, "a grammar");
    m->name = name;
    for (size_t i = 0; i < n && m->n_marks < CLB_TEXT_MARKS; i++)
        if (marks[i] && marks[i][0])
            m->marks[m->n_marks++] = marks[i];
    CLB_GO(collect(m, err));
    for (size_t i = 0; i < m->n_states; i++)
        CLB_GO(state_rule(m, i, rules, err));
done:
    free(m);
    return rc;
}
