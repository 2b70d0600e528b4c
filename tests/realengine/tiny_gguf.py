"""A random model that llama.cpp's server really runs: half a megabyte, thousands of meaningless tokens a second.

Only the words below can be answered (and tool calls, see `CALLS`): the rows of all other tokens in the output matrix
are zero, so the model never ends by itself (only by `max_tokens` or a full context) and never breaks a UTF-8 character.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf.constants import TokenType

WORDS = tuple(f"▁{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe", "so", "tü", "日") for b in ("da", "fe", "gi", "ru"))
CONTEXT = 32768
WIDTH, FEED, HEADS = 64, 128, 4
CHAT_TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] or '' }}"
    "{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}"
    "{\"name\": \"{{ c['function']['name'] }}\", \"parameters\": {{ c['function']['arguments'] | tojson }}}"
    "{% endfor %}{% endif %}\n{% endfor %}"
)
CALLS = {"126": 50, "2": 100}
"""`logit_bias` with which a request that demands a tool gets a call of it: `{` first, and the end once that may come.

The server's grammar does the rest. Without it the words above are likelier than any call.
"""


def make_tiny_gguf(path: Path, seed: int = 1) -> Path:
    """Write the model; the same seed gives the same bytes, another seed other weights of the same size."""
    vocabulary = _vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, seed)
    _add_tokenizer(writer, vocabulary)
    _add_weights(writer, len(vocabulary), np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary() -> list[tuple[str, TokenType]]:
    special = [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)]
    spelled = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    return special + spelled + [(word, TokenType.NORMAL) for word in WORDS]


def _describe(writer: gguf.GGUFWriter, seed: int) -> None:
    writer.add_name(f"tiny-{seed}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: list[tuple[str, TokenType]]) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types([int(kind) for _, kind in vocabulary])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_weights(writer: gguf.GGUFWriter, tokens: int, random: np.random.Generator) -> None:
    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float32))

    output = np.zeros((tokens, WIDTH), np.float32)
    output[-len(WORDS) :] = random.normal(0, 2, (len(WORDS), WIDTH))
    writer.add_tensor("output.weight", output)
    add("token_embd.weight", tokens, WIDTH)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", WIDTH, WIDTH)
    for name in ("ffn_gate", "ffn_up"):
        add(f"blk.0.{name}.weight", FEED, WIDTH)
    add("blk.0.ffn_down.weight", WIDTH, FEED)
