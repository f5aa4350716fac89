#include "kv/prompt_cache.h"
int clb_prompt_cache_open(const char *dir, uint64_t max_bytes, const clb_log *log, clb_prompt_cache **out,
                          clb_error *err)
{
    (void)dir;
    (void)max_bytes;
    (void)log;
    (void)err;
    *out = NULL;
    return 0;
}
void clb_prompt_cache_close(clb_prompt_cache *cache)
{
    (void)cache;
}
bool clb_prompt_cache_load(clb_prompt_cache *cache, const clb_prompt_block *block, void *const *pages)
{
    (void)cache;
    (void)block;
    (void)pages;
    return false;
}
void clb_prompt_cache_store(clb_prompt_cache *cache, const clb_prompt_block *block, const void *const *pages)
{
    (void)cache;
    (void)block;
    (void)pages;
}
void clb_prompt_cache_touch(clb_prompt_cache *cache, const clb_prompt_block *block)
{
    (void)cache;
    (void)block;
}
clb_prompt_cache_stats clb_prompt_cache_get_stats(const clb_prompt_cache *cache)
{
    (void)cache;
    return (clb_prompt_cache_stats){0};
}
