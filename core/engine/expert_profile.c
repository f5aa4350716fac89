#include "engine/expert_profile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "store/cache.h"

#define MAGIC   "CLBPROF1"
#define LARGEST (CLB_MOST_PROFILE + 65536) /* with the header */
#define ENDING  ".profile"

static int header(const clb_model *model, clb_buf *out, clb_error *err)
{
    const char *name = clb_store_policy_name(model->store);
    const uint32_t numbers[] = {model->n_moe_layers, model->hp.n_experts}, n_name = (uint32_t)strlen(name);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < clb_gguf_n_shards(model->gguf); i++)
        bytes += clb_gguf_shard_size(model->gguf, i);
    CLB_TRY(clb_buf_append(out, MAGIC, sizeof MAGIC - 1, err));
    CLB_TRY(clb_buf_append(out, numbers, sizeof numbers, err));
    CLB_TRY(clb_buf_append(out, &bytes, sizeof bytes, err));
    CLB_TRY(clb_buf_append(out, &n_name, sizeof n_name, err));
    return clb_buf_append(out, name, n_name, err);
}

static int load(const clb_model *model, int fd, const char *path, clb_error *err)
{
    clb_buf file = {0}, head = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_buf_read(&file, fd, path, LARGEST, err));
    CLB_GO(header(model, &head, err));
    if (file.n < head.n || memcmp(file.data, head.data, head.n))
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "it is of another model or expert policy, or no profile"));
    rc = clb_store_load_profile(model->store, file.data + head.n, file.n - head.n, err);
done:
    clb_buf_free(&file);
    clb_buf_free(&head);
    return rc;
}

int clb_expert_profile_open(const clb_config *config, const clb_model *model, const char *model_path,
                            const clb_log *log, char **path, clb_error *err)
{
    const char *asked = clb_config_str(config, CLB_SET_store_expert_profile);
    *path = NULL;
    if (strcmp(asked, "none") == 0)
        return COLIBRI_OK;
    if (!clb_store_keeps_profile(model->store)) {
        if (strncmp(clb_config_origin(config, CLB_SET_store_expert_profile), "--", 2) == 0)
            return clb_fail(err, COLIBRI_E_USAGE, "--expert-profile does not apply: expert policy %s keeps no profile",
                            clb_store_policy_name(model->store));
        return COLIBRI_OK;
    }
    clb_buf name = {0};
    CLB_TRY(*asked ? clb_buf_printf(&name, err, "%s", asked)
                   : clb_buf_printf(&name, err, "%s.%s" ENDING, model_path, clb_store_policy_name(model->store)));
    const int fd = open(name.data, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno != ENOENT)
        clb_logf(log, COLIBRI_LOG_WARN, "%s: cannot read the expert profile: %s", name.data, strerror(errno));
    if (fd >= 0) {
        clb_error why;
        if (load(model, fd, name.data, &why)) {
            clb_logf(log, COLIBRI_LOG_WARN, "%s: not used, and left alone: %s", name.data, why.msg);
            clb_buf_free(&name);
        } else {
            clb_logf(log, COLIBRI_LOG_INFO, "expert profile %s", name.data);
        }
        close(fd);
    }
    *path = name.data;
    return COLIBRI_OK;
}

void clb_expert_profile_save(const clb_model *model, const char *path, const clb_log *log)
{
    clb_buf file = {0};
    clb_error err;
    int rc = header(model, &file, &err);
    const size_t n = rc ? 0 : clb_store_save_profile(model->store, NULL, 0);
    void *bytes = n ? malloc(n) : NULL;
    if (!rc && n && !bytes)
        rc = CLB_NOMEM(&err, "the expert profile");
    if (!rc && (!n || clb_store_save_profile(model->store, bytes, n) != n))
        rc = clb_fail(&err, COLIBRI_E_PLUGIN, "expert policy %s gives none of sensible and constant size",
                      clb_store_policy_name(model->store));
    if (!rc)
        rc = clb_buf_append(&file, bytes, n, &err);
    if (!rc)
        rc = clb_file_replace(path, file.data, file.n, true, &err);
    if (rc)
        clb_logf(log, COLIBRI_LOG_WARN, "the expert profile is not kept: %s", err.msg);
    else
        clb_logf(log, COLIBRI_LOG_INFO, "expert profile kept in %s", path);
    free(bytes);
    clb_buf_free(&file);
}
