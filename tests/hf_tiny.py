"""Tiny models of transformers, randomly initialised and seeded: one or more per kind of cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PAGE, INTERVAL = 8, 16
BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
SMALL_MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
MLA = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    **MOE,
}
INDEXER = {"index_n_heads": 32, "index_head_dim": 16, "index_topk": 24}
GDN = {
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "head_dim": 16,
    **SMALL_MOE,
}
KDA = {**MLA, "num_hidden_layers": 4, "linear_head_dim": 16, "linear_num_heads": 2}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Tiny:
    """One model.

    Attributes:
        kind: What its cache is an example of.
        fields: Of its config, beside ``BASE``.
        overrides: That its stack needs.
        interval: Tokens from one checkpoint to the next.
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    interval: int = INTERVAL


MODELS = {
    "llama": Tiny("keys and values"),
    "qwen2": Tiny("keys and values"),
    "qwen3": Tiny("keys and values", {"head_dim": 16}),
    "qwen3_moe": Tiny("keys and values", {"head_dim": 16, **SMALL_MOE}),
    "glm4_moe": Tiny("keys and values", {"head_dim": 16, **MOE}),
    "minimax_m2": Tiny("keys and values", {"head_dim": 16, "rotary_dim": 8, **SMALL_MOE}),
    "gemma3_text": Tiny("windows", {"num_hidden_layers": 6, "sliding_window": 24, "head_dim": 16}),
    "gpt_oss": Tiny(
        "windows", {"num_hidden_layers": 4, "sliding_window": 20, "head_dim": 16, **SMALL_MOE}
    ),
    "mimo_v2_flash": Tiny(  # the class has twice the heads in windows, and no field that says so
        "windows of other heads",
        {"num_hidden_layers": 4, "sliding_window": 25, "head_dim": 16, "v_head_dim": 8, **MOE},
        ["dims.swa_kv_heads=2 * num_key_value_heads"],
    ),
    "deepseek_v2": Tiny("latents", {**MLA, "topk_method": "greedy"}),
    "deepseek_v3": Tiny("latents", MLA),
    "deepseek_v32": Tiny("latents and an indexer", {**MLA, **INDEXER}),
    "glm_moe_dsa": Tiny(
        "latents and a shared indexer",
        {
            **MLA,
            **INDEXER,
            "num_hidden_layers": 4,
            "indexer_types": ["full", "shared", "full", "shared"],
        },
    ),
    "deepseek_v4": Tiny(
        "compressed latents",
        {
            **MLA,
            **INDEXER,
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "sliding_window": 24,
            "compress_ratios": [0, 4, 128, 4],
            "o_lora_rank": 16,
            "o_groups": 2,
        },
        ["hf_family=mla_compressed_states", "page_size=128", "checkpoint_tokens=128"],
        128,
    ),
    "kimi_linear": Tiny(
        "latents and a delta rule by channel",
        {**KDA, "q_lora_rank": None, "layer_types": [LINEAR, LINEAR, LINEAR, FULL]},
    ),
    "bailing_hybrid": Tiny("latents and a delta rule by channel", {**KDA, "layer_group_size": 4}),
    "glm5_next": Tiny(
        "latents, an indexer with gates, and a delta rule by channel",
        {
            **KDA,
            **INDEXER,
            "qk_rope_head_dim": 0,
            "index_kpool": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": [LINEAR, "indexed_attention", LINEAR, "indexed_attention"],
            "indexer_types": ["full"] * 4,
        },
        ["hf_family=mla_dsa_kda_gated"],
    ),
    "qwen3_next": Tiny("a gated delta rule", GDN),
    "qwen3_5_text": Tiny("a gated delta rule", GDN),
    "qwen3_5_moe_text": Tiny("a gated delta rule", GDN),
    "olmo_hybrid": Tiny("a gated delta rule", {**GDN, "linear_num_key_heads": 4}),
    "nemotron_h": Tiny(
        "Mamba-2 in some layers",
        {
            "layers_block_type": ["mamba", "mlp", "attention", "mamba", "moe", "attention"],
            "num_hidden_layers": 6,
            "head_dim": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 2,
            "conv_kernel": 4,
            "chunk_size": 16,
            **MOE,
        },
    ),
    "granitemoehybrid": Tiny(
        "Mamba-2 in some layers",
        {
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            **MAMBA2,
            **SMALL_MOE,
        },
    ),
    "bamba": Tiny(
        "Mamba-2 in some layers", {"num_hidden_layers": 4, "attn_layer_indices": [2], **MAMBA2}
    ),
    "falcon_h1": Tiny(
        "Mamba-2 beside attention in every layer",
        {"num_hidden_layers": 3, **MAMBA2, "mamba_n_heads": 4, "mamba_d_ssm": 64},
    ),
    "zamba2": Tiny(
        "Mamba-2 in every layer, attention in some",
        {
            "num_hidden_layers": 6,
            "hybrid_layer_ids": [2, 5],
            "layers_block_type": ["mamba", "mamba", "hybrid"] * 2,
            "mamba_d_state": 8,
            "n_mamba_heads": 8,
            "mamba_headdim": 16,
            "mamba_ngroups": 1,
            "mamba_expand": 2,
            "num_mem_blocks": 1,
            "chunk_size": 16,
            "attention_head_dim": 32,
            "num_key_value_heads": 4,
        },
    ),
    "jamba": Tiny(
        "Mamba-1, one token at a time",
        {
            "num_hidden_layers": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            **SMALL_MOE,
        },
    ),
    "lfm2": Tiny(
        "short convolutions",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "conv", FULL, "conv"],
            "block_multiple_of": 16,
        },
    ),
    "lfm2_moe": Tiny(
        "short convolutions",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "conv", FULL, "conv"],
            "num_dense_layers": 1,
            **SMALL_MOE,
        },
    ),
    "mamba2": Tiny(
        "Mamba-2 and nothing else",
        {
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 8,
            "n_groups": 2,
            "expand": 2,
            "chunk_size": 16,
        },
    ),
}
REFUSED = {
    "minimax": {"num_hidden_layers": 4, "head_dim": 16, "block_size": 16, **SMALL_MOE},
    "recurrent_gemma": {"num_hidden_layers": 3, "head_dim": 16},
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
    "projection_intermediate_size": 32,
    "out_hidden_size": 64,
}


def make(name: str, dtype: str = "float32", seed: int = 0, **fields: Any) -> Any:
    """A model in eval mode; the same in every process.

    Args:
        name: In ``MODELS`` or ``REFUSED``.
        dtype: Of its weights.
        seed: Of its weights.
        fields: Of its config, over those of the table.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    own = MODELS[name].fields if name in MODELS else REFUSED[name]
    told = {**BASE, **own, **fields}
    auto = AutoModelForCausalLM
    if name == "glm5_next":  # there is no class for its text alone
        told = {"text_config": told, "vision_config": VISION, "pad_token_id": 0}
        auto = AutoModelForImageTextToText
    torch.manual_seed(seed)
    model = auto.from_config(AutoConfig.for_model(name, **told), dtype=getattr(torch, dtype))
    return model.eval()


def settings(name: str) -> list[str]:
    """Overrides for its stack: small pages, checkpoints and tiers."""
    small = [f"page_size={PAGE}", f"checkpoint_tokens={INTERVAL}"]
    return [*small, "host.memory=24MiB", "device.memory=24MiB", *MODELS[name].overrides]


def prompt(length: int, first: int = 11) -> list[int]:
    """Ids; another ``first`` gives another prompt from the first id on."""
    return [3 + (first + 37 * i + i * i // 7) % 125 for i in range(length)]
