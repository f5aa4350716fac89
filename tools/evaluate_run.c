/* Running the items of colibri evaluate: the full cache, then the configured one on the same tokens. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate.h"
#include "model_run.h"

static int run_side(clb_evaluation *e, const clb_kvc_case *item, int side, const clb_kv_choice *choice,
                    const char *budget, FILE *reference, clb_eval_run *out, clb_error *err)
{
    clb_engine *const engine = side == CLB_EVAL_FULL ? &e->reference.engine : e->engine;
    clb_kv_trial_input in = clb_kvc_input_of(item, e->chunk, e->see_question);
    in.choice = choice;
    in.budget = clb_kvc_budget_of(budget, &in);
    if (in.text && !e->alone) {
        rewind(reference);
        in.reference_out = side == CLB_EVAL_FULL ? reference : NULL;
        in.reference_in = side == CLB_EVAL_OWN ? reference : NULL;
    }
    CLB_TRY(clb_kv_trial_run(engine, &in, &out->trial, err));
    CLB_TRY(clb_detokenize(engine->vocab, out->trial.generated.ids, out->trial.generated.n, false, &out->said, err));
    clb_kvc_values(item, &out->trial, &out->said, out->values);
    return COLIBRI_OK;
}

static int run_item(clb_evaluation *e, uint32_t number, FILE *reference, clb_error *err)
{
    const clb_kvc_case *const item = &e->cases.v[number];
    clb_eval_item *const result = &e->items[number];
    clb_kv_choice full = {0}, choice = e->choice; /* the latter a copy that may know this item's future */
    clb_kv_future *future = NULL;
    int rc = COLIBRI_OK;
    CLB_GO(clb_kv_choice_parse(e->engine->registry, e->config, NULL, &full, err));
    CLB_GO(run_side(e, item, CLB_EVAL_FULL, &full, "", reference, &result->run[CLB_EVAL_FULL], err));
    if (!e->alone && (choice.traits.needs & COLIBRI_KV_NEED_FUTURE)) {
        const clb_kv_trial_input in = clb_kvc_input_of(item, e->chunk, e->see_question);
        CLB_GO(clb_kvc_record_future(e->engine, &in, &future, err));
        choice.future = future;
    }
    if (!e->alone)
        CLB_GO(run_side(e, item, CLB_EVAL_OWN, &choice, e->budget, reference, &result->run[CLB_EVAL_OWN], err));
    result->done = true;
    e->n_done++;
    if (e->fd >= 0)
        CLB_GO(clb_kvc_write_json(e->fd, clb_args_value(e->args, "jsonl"), clb_evaluate_item_json(e, number), err));
done:
    clb_kv_future_destroy(future);
    clb_kv_choice_free(&full);
    return rc;
}

static int items(clb_evaluation *e, FILE *reference, clb_error *err)
{
    for (uint32_t i = 0; i < e->cases.n; i++) {
        int rc = clb_args_interrupted(e->args) ? COLIBRI_E_CANCELLED : run_item(e, i, reference, err);
        if (rc == COLIBRI_E_CANCELLED && clb_args_interrupted(e->args)) {
            e->interrupted = true;
            return COLIBRI_OK;
        }
        if (rc)
            return clb_context(err, "item %.80s", e->grid.ids[e->cases.v[i].item]);
        clb_progress(e->engine->log, "evaluating", i + 1, e->cases.n);
    }
    return COLIBRI_OK;
}

int clb_evaluate_all(clb_evaluation *e, clb_error *err)
{
    FILE *const reference = tmpfile();
    e->items = calloc((size_t)e->cases.n + 1, sizeof *e->items);
    int rc = COLIBRI_OK;
    if (!reference)
        CLB_GO(clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot make a temporary file"));
    if (!e->items)
        CLB_GO(CLB_NOMEM(err, "results"));
    CLB_GO(items(e, reference, err));
done:
    if (reference)
        fclose(reference);
    return rc;
}
