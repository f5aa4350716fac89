"""Thin helpers over llama-cpp-python, shared by the recording scripts.

Needs: CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python numpy
"""
import math

import llama_cpp
import numpy as np

F32, F16 = 0, 1  # ggml types of the KV cache


def load(path, n_ctx=512, kv=F16, threads=1):
    """Opens a model on the CPU without flash attention; f16 KV is llama.cpp's default."""
    return llama_cpp.Llama(path, n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx, n_gpu_layers=0, n_threads=threads,
                           n_threads_batch=threads, logits_all=True, flash_attn=False, type_k=kv, type_v=kv,
                           verbose=False)


def logits(llm, ids):
    """float32 logits of every position, from an empty context."""
    llm.reset()
    llm._ctx.kv_cache_clear()
    llm.eval(list(map(int, ids)))
    return np.array(llm.scores[:len(ids)], dtype=np.float32)


def perplexity(llm, ids, bos, chunks, n_ctx=512):
    """llama-perplexity's number, see perplexity_of."""
    return perplexity_of(lambda chunk: logits(llm, chunk), ids, bos, chunks, n_ctx)


def perplexity_of(evaluate, ids, bos, chunks, n_ctx=512):
    """llama-perplexity's protocol over any function from ids to logits; bos is None where the vocabulary adds none.

    Chunks are cut from ids; if the vocabulary adds a BOS the first token of each chunk is replaced by it (ids then
    also begin with one). Positions n_ctx/2 to n_ctx-2 are scored. Returns the running perplexity after each chunk.
    """
    total, count, out = 0.0, 0, []
    assert len(ids) >= chunks * n_ctx
    for c in range(chunks):
        chunk = list(ids[c * n_ctx:(c + 1) * n_ctx])
        if bos is not None:
            chunk[0] = bos
        rows = evaluate(chunk)[n_ctx // 2:n_ctx - 1].astype(np.float64)
        wanted = ids[c * n_ctx + n_ctx // 2 + 1:(c + 1) * n_ctx]
        top = rows.max(axis=1, keepdims=True)
        norm = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1))
        total += float((norm - rows[np.arange(len(wanted)), wanted]).sum())
        count += len(wanted)
        out.append(math.exp(total / count))
    return out
