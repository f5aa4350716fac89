"""Makes a tiny random model per architecture: a GGUF file and the logits that transformers computes for it.

Needs: pip install torch transformers gguf numpy llama-cpp-python
Run:   python3 make_arch_models.py OUTDIR [NAME ...]

Writes OUTDIR/NAME.gguf (F32 weights, names and row orders as llama.cpp's converter makes them) and OUTDIR/NAME.ref
(CLBREF1, see clbref.py; logits of the transformers model in float32). Then it loads every GGUF with llama.cpp and
compares, which proves the file's conventions. Seeds are fixed, so another run makes the same files with the same
versions of the packages.
"""
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers as tf

import clbref
import llamacpp

VOCAB, EMBD, HEADS, KV_HEADS, CTX = 128, 64, 4, 2, 256
BOS, EOS = 126, 127
PROMPTS = (20, 40)
MIN_GAP = 0.03  # least distance of router logits between the last chosen and the first dropped expert


# The models -----------------------------------------------------------------------------------------------------
BASE = dict(vocab_size=VOCAB, hidden_size=EMBD, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
            max_position_embeddings=CTX, num_hidden_layers=2, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=None,
            tie_word_embeddings=False, rms_norm_eps=1e-5)
GRANITE = dict(embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.6, logits_scaling=0.7)


def theta(base, **more):
    return {"rope_type": "default", "rope_theta": base, **more}


LLAMA3_ROPE = theta(500000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=64)
LLAMA3_ROPE["rope_type"] = "llama3"

# name: (GGUF architecture, pre-tokenizer, configuration)
MODELS = {
    "llama": ("llama", "gpt-2", tf.LlamaConfig(
        **BASE | dict(num_hidden_layers=3, intermediate_size=128, rope_parameters=theta(10000.0)))),
    "llama3": ("llama", "llama-bpe", tf.LlamaConfig(
        **BASE | dict(num_hidden_layers=3, intermediate_size=112, head_dim=24, rope_parameters=LLAMA3_ROPE))),
    "mixtral": ("llama", "gpt-2", tf.MixtralConfig(
        **BASE | dict(intermediate_size=32, num_local_experts=8, num_experts_per_tok=2,
                      rope_parameters=theta(1000000.0)))),
    "qwen2": ("qwen2", "qwen2", tf.Qwen2Config(
        **BASE | dict(num_hidden_layers=3, intermediate_size=128, tie_word_embeddings=True, rms_norm_eps=1e-6,
                      use_sliding_window=False, rope_parameters=theta(1000000.0)))),
    "qwen3": ("qwen3", "qwen2", tf.Qwen3Config(
        **BASE | dict(num_hidden_layers=3, intermediate_size=96, head_dim=32, rms_norm_eps=1e-6,
                      use_sliding_window=False, rope_parameters=theta(1000000.0)))),
    "qwen3moe": ("qwen3moe", "qwen2", tf.Qwen3MoeConfig(
        **BASE | dict(intermediate_size=96, moe_intermediate_size=24, num_experts=8, num_local_experts=8,
                      num_experts_per_tok=2, norm_topk_prob=True, head_dim=32, rms_norm_eps=1e-6,
                      use_sliding_window=False, rope_parameters=theta(10000.0)))),
    "olmoe": ("olmoe", "olmo", tf.OlmoeConfig(
        **BASE | dict(num_key_value_heads=HEADS, intermediate_size=32, num_experts=8, num_experts_per_tok=2,
                      norm_topk_prob=False, rope_parameters=theta(10000.0)))),
    "granite": ("granite", "refact", tf.GraniteConfig(
        **BASE | GRANITE | dict(num_hidden_layers=3, intermediate_size=128, tie_word_embeddings=True,
                                rope_parameters=theta(10000.0)))),
    "granitemoe": ("granitemoe", "refact", tf.GraniteMoeConfig(
        **BASE | GRANITE | dict(intermediate_size=32, num_local_experts=8, num_experts_per_tok=2,
                                tie_word_embeddings=True, rope_parameters=theta(10000.0)))),
    # The shared expert is wider than a routed one: mixing up the two widths must not go unnoticed.
    "granitemoe_shared": ("granitemoe", "refact", tf.GraniteMoeSharedConfig(
        **BASE | GRANITE | dict(intermediate_size=32, shared_intermediate_size=48, num_local_experts=8,
                                num_experts_per_tok=2, tie_word_embeddings=True, rope_parameters=theta(10000.0)))),
}


def build(config, seed):
    """Random weights, large enough to make every part of the graph matter; norms differ from 1, biases from 0."""
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.config._experts_implementation = "eager"
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=gen)
            if "norm" in name:
                p.copy_(1.0 + 0.3 * noise.clamp(-2, 2))
            elif name.endswith(".bias"):
                p.copy_(0.4 * noise)
            elif "router" in name or name.endswith("mlp.gate.weight"):
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(0.25 * noise)
            else:
                p.copy_(noise * 1.2 / p.shape[-1] ** 0.5)
    return model.eval()


def run(model, prompts):
    """Logits per prompt, and the least router gap seen."""
    gaps, hooks = [], []

    def watch(_, __, output):
        ranked = output[0].float().sort(dim=-1, descending=True).values
        k = model.config.num_experts_per_tok
        gaps.append(float((ranked[:, k - 1] - ranked[:, k]).min()))

    for m in model.modules():
        if type(m).__name__.endswith("TopKRouter"):
            hooks.append(m.register_forward_hook(watch))
    with torch.no_grad():
        out = [(ids, model(torch.tensor([ids]), use_cache=False).logits[0].numpy()) for ids in prompts]
    for h in hooks:
        h.remove()
    return out, min(gaps, default=float("inf")), bool(hooks)


# The file -------------------------------------------------------------------------------------------------------
def vocabulary():
    """128 tokens: printable ASCII, some bytes more, the merges that the rest allows, and two control tokens."""
    alphabet = {b: chr(b) for b in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))}
    for b in range(256):
        alphabet.setdefault(b, chr(256 + sum(1 for x in range(b) if x not in alphabet or ord(alphabet[x]) > 255)))
    tokens = [alphabet[b] for b in [32, *range(33, 127), 10, 9, 13, 0xC3, 0xA9]]
    space = alphabet[32]
    merges = [(space, "t"), ("h", "e"), (space + "t", "he"), ("i", "n"), ("e", "r"), (space, "a"), ("o", "n"),
              ("r", "e"), ("a", "n"), ("an", "d"), (space, "and"), (space, "o"), (space + "o", "n"), ("s", "t"),
              (space, space), ("0", "0"), ("l", "l"), ("o", "u"), (space, "w"), ("in", "g"), (alphabet[0xC3], alphabet[0xA9]),
              (alphabet[10], alphabet[10]), ("'", "s"), (space, "s"), (space + "s", "he"), (space, "in")]
    tokens += [a + b for a, b in merges]
    tokens += ["<|endoftext|>", "<|im_end|>"]
    assert len(tokens) == VOCAB == len(set(tokens))
    types = [gguf.TokenType.NORMAL] * (VOCAB - 2) + [gguf.TokenType.CONTROL] * 2
    return tokens, types, [f"{a} {b}" for a, b in merges]


def permute(w, heads):
    """Row order for the NORM rope (pairs 2i, 2i+1) from that of transformers (pairs i, i + head_dim/2)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_factors(config):
    """What the llama3 scaling divides each frequency by."""
    r = config.rope_parameters
    dim = config.head_dim
    freqs = 1.0 / r["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
    length, low, high = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"]
    out = []
    for wave in 2 * np.pi / freqs:
        if wave < length / high:
            out.append(1.0)
        elif wave > length / low:
            out.append(r["factor"])
        else:
            smooth = (length / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, dtype=np.float32)


LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors(model, arch):
    """The GGUF tensors of a model, as (name, float32 array)."""
    norm_rope = arch in ("llama", "granite", "granitemoe")
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    if model.config.rope_parameters["rope_type"] == "llama3":
        yield "rope_freqs.weight", rope_factors(model.config)
    for name, p in model.named_parameters():  # a tied output matrix is listed once, as the embedding
        w = p.detach().numpy()
        stem, _, suffix = name.rpartition(".")
        if stem in TOP_NAMES:
            yield f"{TOP_NAMES[stem]}.{suffix}", w
            continue
        _, _, layer, rest = stem.split(".", 3)
        block = f"blk.{layer}"
        if suffix == "gate_up_proj":  # [expert, gate rows then up rows, embd]
            gate, up = np.split(w, 2, axis=1)
            yield f"{block}.ffn_gate_exps.weight", gate
            yield f"{block}.ffn_up_exps.weight", up
        elif suffix == "down_proj" and rest.endswith("experts"):
            yield f"{block}.ffn_down_exps.weight", w
        elif rest == "shared_mlp.input_linear":  # gate rows then up rows
            gate, up = np.split(w, 2, axis=0)
            yield f"{block}.ffn_gate_shexp.{suffix}", gate
            yield f"{block}.ffn_up_shexp.{suffix}", up
        else:
            kind = rest.rpartition(".")[2]
            if norm_rope and kind in heads:
                w = permute(w, heads[kind])
            yield f"{block}.{LAYER_NAMES[rest]}.{suffix}", w


def write_gguf(path, model, name, arch, pre):
    c = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name(f"Colibri test model {name}")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    head_dim = getattr(c, "head_dim", None)
    if hasattr(c, "num_experts_per_tok"):
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
    if arch == "qwen3moe":
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if getattr(c, "shared_intermediate_size", 0):
        w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    if head_dim is not None and head_dim * c.num_attention_heads != c.hidden_size:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if arch in ("llama", "granite", "granitemoe"):
        w.add_vocab_size(c.vocab_size)
        w.add_rope_dimension_count(head_dim or c.hidden_size // c.num_attention_heads)
    if arch in ("granite", "granitemoe"):
        w.add_attention_scale(c.attention_multiplier)
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_logit_scale(c.logits_scaling)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    toks, types, merges = vocabulary()
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(toks)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(BOS)
    w.add_eos_token_id(EOS)
    w.add_add_bos_token(False)
    for tensor, data in tensors(model, arch):
        w.add_tensor(tensor, np.ascontiguousarray(data, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or list(MODELS)
    rng = np.random.default_rng(7)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in PROMPTS]
    print("| model | logit std | router gap | max diff, f32 KV | max diff, f16 KV |\n|---|---|---|---|---|")
    for name in names:
        arch, pre, config = MODELS[name]
        for seed in range(1, 1000):
            model = build(config, seed)
            results, gap, moe = run(model, prompts)
            if gap >= MIN_GAP:
                break
        path = out / f"{name}.gguf"
        write_gguf(path, model, name, arch, pre)
        clbref.write(out / f"{name}.ref", results)
        std = float(np.concatenate([r for _, r in results]).std())
        diffs = []
        for kv in (llamacpp.F32, llamacpp.F16):
            llm = llamacpp.load(str(path), n_ctx=CTX, kv=kv)
            diffs.append(max(float(np.abs(llamacpp.logits(llm, ids) - ref).max()) for ids, ref in results))
            llm.close()
        print(f"| {name} (seed {seed}) | {std:.2f} | {f'{gap:.3f}' if moe else '-'} | {diffs[0]:.1e} | {diffs[1]:.1e} |",
              flush=True)
        assert diffs[0] < 1e-3 and diffs[1] < 3e-2, name


if __name__ == "__main__":
    main()
