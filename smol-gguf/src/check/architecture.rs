//! What single architectures assert, by the names in `general.architecture`.

/// Architectures without rotary position embedding.
const WITHOUT_ROPE: &[&str] = &[
    "gpt2",
    "gptj",
    "mpt",
    "refact",
    "bloom",
    "mamba",
    "mamba2",
    "jamba",
    "jina-bert-v2",
    "t5",
    "t5encoder",
    "jais",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "arwkv7",
    "wavtokenizer-dec",
    "nemotron_h",
    "nemotron_h_moe",
    "kimi-linear",
    "kimi-k3",
    "glm5-next",
];

/// Architectures that use it in some files only.
const WITH_OPTIONAL_ROPE: &[&str] = &["granitehybrid", "granite_swa", "flint", "bert", "starcoder"];

/// Architectures whose heads must have keys and values of one length, all of it rotated.
const WHOLE_HEAD_ROTATED: &[&str] = &[
    "apertus",
    "arcee",
    "arctic",
    "baichuan",
    "chameleon",
    "codeshell",
    "cogvlm",
    "dbrx",
    "deci",
    "deepseek",
    "dots1",
    "dream",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone",
    "falcon",
    "granite",
    "graniteswitch",
    "grok",
    "grovemoe",
    "hunyuan-moe",
    "hunyuan_vl",
    "hy_v3",
    "internlm2",
    "jais2",
    "llada",
    "llada-moe",
    "llama",
    "llama4",
    "maincoder",
    "mellum",
    "mistral3",
    "olmo",
    "olmo2",
    "olmoe",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "plamo",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
    "rnd1",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "starcoder2",
    "xverse",
];

/// Architectures whose heads must have keys and values of one length.
const EQUAL_KEY_AND_VALUE: &[&str] = &[
    "afmoe",
    "bailingmoe2",
    "bert",
    "bitnet",
    "bloom",
    "chatglm",
    "cohere2",
    "command-r",
    "eurobert",
    "glm4",
    "glm4moe",
    "gpt2",
    "gptneox",
    "granitehybrid",
    "jais",
    "lfm2",
    "lfm2moe",
    "minimax-m2",
    "modern-bert",
    "mpt",
    "nemotron",
    "nemotron_h",
    "nemotron_h_moe",
    "neo-bert",
    "openelm",
    "phi2",
    "phi3",
    "qwen",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "refact",
    "stablelm",
    "starcoder",
    "t5",
];

/// How an architecture's state-space layers divide their width.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StateSpace {
    /// Into `ssm.time_step_rank` heads and `ssm.group_count` groups.
    HeadsAndGroups,
    /// Into `ssm.time_step_rank` heads, which `ssm.group_count` key heads share.
    SharedHeads,
    /// Into `ssm.time_step_rank` heads only.
    Heads,
}

pub(super) fn has_rope(arch: &str) -> bool {
    !WITHOUT_ROPE.contains(&arch) && !WITH_OPTIONAL_ROPE.contains(&arch)
}

pub(super) fn rotates_whole_head(arch: &str) -> bool {
    WHOLE_HEAD_ROTATED.contains(&arch)
}

pub(super) fn has_equal_key_and_value(arch: &str) -> bool {
    rotates_whole_head(arch) || EQUAL_KEY_AND_VALUE.contains(&arch)
}

pub(super) fn state_space(arch: &str) -> Option<StateSpace> {
    match arch {
        "mamba2" | "falcon-h1" | "granitehybrid" | "nemotron_h" | "nemotron_h_moe" => {
            Some(StateSpace::HeadsAndGroups)
        }
        "qwen3next" | "qwen35" | "qwen35moe" => Some(StateSpace::SharedHeads),
        "plamo2" => Some(StateSpace::Heads),
        _ => None,
    }
}

/// Returns the value that `token_shift_count` must have.
pub(super) fn token_shift_count(arch: &str) -> Option<u32> {
    match arch {
        "rwkv6" | "rwkv7" => Some(2),
        "rwkv6qwen2" | "arwkv7" => Some(1),
        _ => None,
    }
}

/// Architectures whose positions have several axes in every file.
pub(super) fn rotates_in_sections(arch: &str) -> bool {
    matches!(
        arch,
        "sensenova_u1"
            | "qwen2vl"
            | "paddleocr"
            | "qwen3vl"
            | "qwen3vlmoe"
            | "qwen35"
            | "qwen35moe"
            | "clef"
            | "qwen4exp"
            | "qwen3tts"
    )
}

/// Architectures with experts that have no default for `expert_gating_func`.
pub(super) fn needs_gating(arch: &str) -> bool {
    matches!(
        arch,
        "bailingmoe2"
            | "bailingmoe3"
            | "deepseek32"
            | "deepseek4"
            | "dots1"
            | "dots3note"
            | "exaone-moe"
            | "flint"
            | "kimi-k3"
            | "kimi-linear"
            | "kolibri1"
            | "lfm2moe"
            | "minimax-m2"
            | "minimax-m3"
            | "mistral-large4"
            | "muse-spark"
    )
}

/// Numbers that an architecture divides by or asserts to be there.
pub(super) fn at_least_one(arch: &str) -> &'static [&'static str] {
    match arch {
        "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7" => &["wkv.head_size"],
        "qwen3next" | "qwen35" | "qwen35moe" | "minimax-01" => &["full_attention_interval"],
        "ernie4_5-moe" | "maion-coder" => &["interleave_moe_layer_step"],
        "grovemoe" => &["experts_per_group"],
        "wavtokenizer-dec" | "k2-horizon" => &["attention.group_norm_groups"],
        "deepseek4" | "deepseek41" => &["attention.output_group_count"],
        "dflash" => &["attention.output_group_count"],
        "lfm2" | "lfm2moe" | "lfm3" => &["shortconv.l_cache"],
        "t5" | "t5encoder" => &["attention.relative_buckets_count"],
        "minimax-m3" => &["attention.indexer.block_size"],
        "nanbeige" => &["num_loops"],
        "hrm_text" => &["hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"],
        _ => &[],
    }
}
