//! What each architecture's loader asks for: its keys and tensors.

use super::layers::{Builder, EXPERT, FEED_FORWARD, HEAD, HEADS, HIDDEN};
use super::{Arch, DraftHead};

/// The deviation of token embeddings where nothing else scales them.
const EMBEDDING: f32 = 0.12;

/// Adds the keys and tensors of the builder's architecture.
pub fn build(builder: &mut Builder) {
    match builder.arch {
        Arch::Llama => llama(builder),
        Arch::LlamaMoe => llama_moe(builder),
        Arch::Qwen3 => qwen3(builder),
        Arch::Qwen35 => qwen35(builder),
        Arch::BailingMoe2 => bailingmoe2(builder),
        Arch::BailingMoe3 => bailingmoe3(builder),
        Arch::GraniteHybrid => granitehybrid(builder),
        Arch::Gemma3 => gemma3(builder),
        Arch::Lfm2 => lfm2(builder),
        Arch::Glm4Moe => glm4moe(builder),
    }
}

fn norms(b: &mut Builder, block: &str, names: &[&str]) {
    for name in names {
        b.norm(&format!("{block}{name}.weight"), &[HIDDEN]);
    }
}

fn llama(b: &mut Builder) {
    let layers = b.layers(3);
    b.attention_keys(2u32);
    b.set("rope.dimension_count", HEAD as u32);
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        b.attention(&block, 2, 1, false);
        b.feed_forward(&block);
    }
}

fn llama_moe(b: &mut Builder) {
    let layers = b.layers(2);
    b.attention_keys(2u32);
    // This architecture gives experts the general feed-forward length.
    b.set("feed_forward_length", EXPERT as u32);
    b.set("rope.dimension_count", HEAD as u32);
    b.expert_keys();
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        b.attention(&block, 2, 1, false);
        b.experts(&block, EXPERT, false);
    }
}

fn qwen3(b: &mut Builder) {
    let layers = b.layers(3);
    b.attention_keys(2u32);
    b.set("rope.dimension_count", HEAD as u32);
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        b.attention(&block, 2, 1, true);
        b.feed_forward(&block);
    }
}

fn qwen35(b: &mut Builder) {
    const KEY_HEADS: u64 = 2;
    const VALUE_HEADS: u64 = 4;
    const INTERVAL: u32 = 4;
    let layers = b.layers(4);
    b.attention_keys(2u32);
    b.set("rope.dimension_count", 32u32);
    b.set("rope.dimension_sections", vec![6i32, 5, 5, 0]);
    b.set("ssm.conv_kernel", 4u32);
    b.set("ssm.inner_size", (VALUE_HEADS * HEAD) as u32);
    b.set("ssm.state_size", HEAD as u32);
    b.set("ssm.time_step_rank", VALUE_HEADS as u32);
    b.set("ssm.group_count", KEY_HEADS as u32);
    b.set("full_attention_interval", INTERVAL);
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    let (keys, values) = (KEY_HEADS * HEAD, VALUE_HEADS * HEAD);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "post_attention_norm"]);
        if (layer + 1).is_multiple_of(INTERVAL) {
            b.attention(&block, 2, 2, true);
        } else {
            b.matrix(&format!("{block}attn_qkv.weight"), &[HIDDEN, 2 * keys + values]);
            b.matrix(&format!("{block}attn_gate.weight"), &[HIDDEN, values]);
            b.random(&format!("{block}ssm_conv1d.weight"), &[4, 2 * keys + values], 0.0, 0.5);
            b.random(&format!("{block}ssm_dt.bias"), &[VALUE_HEADS], 0.0, 0.5);
            // Decay rates are negative: the deviation keeps the bell's end below zero.
            b.random(&format!("{block}ssm_a"), &[VALUE_HEADS], -1.0, 0.25);
            b.matrix(&format!("{block}ssm_beta.weight"), &[HIDDEN, VALUE_HEADS]);
            b.matrix(&format!("{block}ssm_alpha.weight"), &[HIDDEN, VALUE_HEADS]);
            b.norm(&format!("{block}ssm_norm.weight"), &[HEAD]);
            b.matrix(&format!("{block}ssm_out.weight"), &[values, HIDDEN]);
        }
        b.feed_forward(&block);
    }
    if let Some(head) = b.options.drafts {
        // It counts as a block, behind those of the model.
        b.set("block_count", layers + 1);
        b.set("nextn_predict_layers", 1u32);
        let block = format!("blk.{layers}.");
        norms(b, &block, &["attn_norm", "post_attention_norm", "nextn.enorm", "nextn.hnorm"]);
        b.attention(&block, 2, 2, true);
        b.feed_forward(&block);
        b.matrix(&format!("{block}nextn.eh_proj.weight"), &[2 * HIDDEN, HIDDEN]);
        if head == DraftHead::Own {
            let dims = [HIDDEN, b.options.vocab as u64];
            b.matrix(&format!("{block}nextn.shared_head_head.weight"), &dims);
        }
    }
}

fn bailingmoe2(b: &mut Builder) {
    let layers = b.layers(3);
    b.attention_keys(2u32);
    b.set("rope.dimension_count", 32u32);
    b.sigmoid_expert_keys(true);
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        b.matrix(&format!("{block}attn_qkv.weight"), &[HIDDEN, HIDDEN + 2 * 2 * HEAD]);
        b.amplified(&format!("{block}attn_output.weight"), &[HEADS * HEAD, HIDDEN]);
        b.query_and_key_norms(&block);
        dense_then_experts(b, &block, layer);
    }
}

fn dense_then_experts(b: &mut Builder, block: &str, layer: u32) {
    if layer == 0 {
        b.feed_forward(block);
    } else {
        b.experts(block, EXPERT, true);
    }
}

fn bailingmoe3(b: &mut Builder) {
    const LATENT: u64 = 256;
    const ROTATED: u64 = 32;
    let layers = b.layers(3);
    let mut key_value_heads = vec![0u32; layers as usize];
    key_value_heads[layers as usize - 1] = 1;
    b.attention_keys(key_value_heads);
    b.set("attention.key_length", (LATENT + ROTATED) as u32);
    b.set("attention.value_length", LATENT as u32);
    b.set("attention.key_length_mla", (HEAD + ROTATED) as u32);
    b.set("attention.value_length_mla", HEAD as u32);
    b.set("attention.kv_lora_rank", LATENT as u32);
    b.set("attention.q_lora_rank", LATENT as u32);
    b.set("rope.dimension_count", ROTATED as u32);
    b.set("ssm.conv_kernel", 4u32);
    b.set("kda.head_dim", HEAD as u32);
    b.set("kda.safe_gate", true);
    b.set("kda.gate_lower_bound", -5.0f32);
    b.sigmoid_expert_keys(true);
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    let inner = HEADS * HEAD;
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        if layer + 1 < layers {
            for part in ["q", "k", "v"] {
                b.random(&format!("{block}ssm_conv1d_{part}.weight"), &[4, 1, inner, 1], 0.0, 0.5);
                b.matrix(&format!("{block}attn_{part}.weight"), &[HIDDEN, inner]);
            }
            b.matrix(&format!("{block}ssm_f_a.weight"), &[HIDDEN, inner]);
            b.matrix(&format!("{block}ssm_g_a.weight"), &[HIDDEN, inner]);
            b.matrix(&format!("{block}ssm_beta.weight"), &[HIDDEN, HEADS]);
            b.random(&format!("{block}ssm_a"), &[1, HEADS], 1.0, 0.25);
            b.random(&format!("{block}ssm_dt.bias"), &[inner], 0.0, 0.5);
            b.norm(&format!("{block}ssm_norm.weight"), &[HEAD]);
            b.matrix(&format!("{block}attn_output.weight"), &[inner, HIDDEN]);
        } else {
            b.matrix(&format!("{block}attn_q_a.weight"), &[HIDDEN, LATENT]);
            b.norm(&format!("{block}attn_q_a_norm.weight"), &[LATENT]);
            b.matrix(&format!("{block}attn_q_b.weight"), &[LATENT, HEADS * (HEAD + ROTATED)]);
            b.matrix(&format!("{block}attn_kv_a_mqa.weight"), &[HIDDEN, LATENT + ROTATED]);
            b.norm(&format!("{block}attn_kv_a_norm.weight"), &[LATENT]);
            b.matrix(&format!("{block}attn_k_b.weight"), &[HEAD, LATENT, HEADS]);
            b.matrix(&format!("{block}attn_v_b.weight"), &[LATENT, HEAD, HEADS]);
            b.matrix(&format!("{block}attn_gate.weight"), &[HIDDEN, HEADS]);
            b.matrix(&format!("{block}attn_output.weight"), &[inner, HIDDEN]);
        }
        dense_then_experts(b, &block, layer);
    }
}

fn granitehybrid(b: &mut Builder) {
    const INNER: u64 = 2 * HIDDEN;
    const STATE: u64 = 64;
    const HEADS_SSM: u64 = 8;
    const LOGIT_SCALE: f32 = 3.0;
    let layers = b.layers(3);
    // The only attention layer is the last but one: recurrent layers before and after it.
    let attention = layers - 2;
    let mut key_value_heads = vec![0u32; layers as usize];
    key_value_heads[attention as usize] = 2;
    b.attention_keys(key_value_heads);
    b.set("rope.dimension_count", HEAD as u32);
    b.set("rope.scaling.finetuned", false);
    b.set("ssm.conv_kernel", 4u32);
    b.set("ssm.inner_size", INNER as u32);
    b.set("ssm.state_size", STATE as u32);
    b.set("ssm.time_step_rank", HEADS_SSM as u32);
    b.set("ssm.group_count", 1u32);
    b.set("logit_scale", LOGIT_SCALE);
    b.set("embedding_scale", 12.0f32);
    b.set("residual_scale", 0.246f32);
    b.set("attention.scale", 0.015_625f32);
    // The loader multiplies embeddings by 12 and what layers add by 0.246.
    b.embeddings("output_norm.weight", 0.003, LOGIT_SCALE);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        if layer == attention {
            b.attention(&block, 2, 1, false);
        } else {
            let (mixed, convolved) = (2 * INNER + 2 * STATE + HEADS_SSM, INNER + 2 * STATE);
            b.matrix(&format!("{block}ssm_in.weight"), &[HIDDEN, mixed]);
            b.random(&format!("{block}ssm_conv1d.weight"), &[4, convolved], 0.0, 0.5);
            b.random(&format!("{block}ssm_conv1d.bias"), &[convolved], 0.0, 0.1);
            b.random(&format!("{block}ssm_dt.bias"), &[HEADS_SSM], 0.0, 0.5);
            b.random(&format!("{block}ssm_a"), &[1, HEADS_SSM], -1.0, 0.25);
            b.random(&format!("{block}ssm_d"), &[1, HEADS_SSM], 1.0, 0.1);
            b.norm(&format!("{block}ssm_norm.weight"), &[INNER, 1]);
            b.matrix(&format!("{block}ssm_out.weight"), &[INNER, HIDDEN]);
        }
        b.feed_forward(&block);
    }
}

fn gemma3(b: &mut Builder) {
    // Every sixth layer sees the whole context, the others a window.
    let layers = b.layers(6);
    b.attention_keys(1u32);
    b.set("rope.dimension_count", HEAD as u32);
    b.set("attention.sliding_window", 64u32);
    // The loader multiplies embeddings by 16, the square root of their length.
    b.embeddings("output_norm.weight", 0.02, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]);
        b.attention(&block, 1, 1, true);
        b.feed_forward(&block);
    }
}

fn lfm2(b: &mut Builder) {
    const KERNEL: u64 = 3;
    let layers = b.layers(3);
    let attention = layers - 2;
    let mut key_value_heads = vec![0u32; layers as usize];
    key_value_heads[attention as usize] = 2;
    b.set("attention.head_count", HEADS as u32);
    b.set("attention.head_count_kv", key_value_heads);
    b.set("feed_forward_length", FEED_FORWARD as u32);
    b.set("shortconv.l_cache", KERNEL as u32);
    b.embeddings("token_embd_norm.weight", EMBEDDING, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "ffn_norm"]);
        if layer == attention {
            b.attention(&block, 2, 1, true);
        } else {
            b.random(&format!("{block}shortconv.conv.weight"), &[KERNEL, HIDDEN], 0.0, 0.5);
            b.matrix(&format!("{block}shortconv.in_proj.weight"), &[HIDDEN, 3 * HIDDEN]);
            b.matrix(&format!("{block}shortconv.out_proj.weight"), &[HIDDEN, HIDDEN]);
        }
        b.feed_forward(&block);
    }
}

fn glm4moe(b: &mut Builder) {
    let layers = b.layers(3);
    b.attention_keys(2u32);
    b.set("rope.dimension_count", 32u32);
    b.sigmoid_expert_keys(false);
    b.embeddings("output_norm.weight", EMBEDDING, 1.0);
    for layer in 0..layers {
        let block = format!("blk.{layer}.");
        norms(b, &block, &["attn_norm", "post_attention_norm"]);
        b.attention(&block, 2, 1, true);
        dense_then_experts(b, &block, layer);
    }
}
