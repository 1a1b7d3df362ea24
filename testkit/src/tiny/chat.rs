//! Tokenizers and chat templates in the style of each architecture.

use super::layers::Builder;
use super::vocab::{TokenKind, Vocab};
use super::{Arch, Template};

/// How an architecture's models usually tokenize and chat.
struct Style {
    /// The pre-tokenizer of byte-pair vocabularies; `None` for those that merge by score.
    pre: Option<&'static str>,
    /// The control tokens, from id 0, or from 1 behind `<unk>`.
    control: &'static [&'static str],
    bos: Option<&'static str>,
    eos: &'static str,
    add_bos: bool,
    template: Option<&'static str>,
}

const CHATML: &str = "\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content \
 + '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";
const BAILING: &str = "\
{%- for message in messages %}{%- set name = 'HUMAN' if message.role == 'user' \
 else message.role | upper %}{{ '<role>' + name + '</role>' + message.content + '<|role_end|>' }}\
{%- endfor %}{%- if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{%- endif %}";
const GRANITE: &str = "\
{%- for message in messages %}{{ '<|start_of_role|>' + message['role'] + '<|end_of_role|>' \
 + message['content'] + '<|end_of_text|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}";
const GEMMA: &str = "\
{{ bos_token }}{%- if messages[0].role == 'system' %}{%- set first = messages[0].content + '\\n\\n' %}\
{%- set turns = messages[1:] %}{%- else %}{%- set first = '' %}{%- set turns = messages %}{%- endif %}\
{%- for message in turns %}\
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate') }}{%- endif %}\
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' \
 + (first if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{%- endif %}";
const GLM: &str = "\
[gMASK]<sop>{%- for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content }}\
{%- endfor %}{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{%- endif %}";
/// An unclosed block and expression.
const BROKEN: &str = "{% for message in messages %}{{ message.content ";

fn style(arch: Arch, byte_level: bool) -> Style {
    let chatml = Style {
        pre: None,
        control: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        bos: None,
        eos: "<|im_end|>",
        add_bos: false,
        template: Some(CHATML),
    };
    match arch {
        Arch::Llama | Arch::LlamaMoe if byte_level => Style { pre: Some("smollm"), ..chatml },
        Arch::Llama | Arch::LlamaMoe => Style {
            control: &["<s>", "</s>"],
            bos: Some("<s>"),
            eos: "</s>",
            add_bos: true,
            template: None,
            ..chatml
        },
        Arch::Qwen3 => Style { pre: Some("qwen2"), ..chatml },
        Arch::Qwen35 => Style { pre: Some("qwen35"), ..chatml },
        Arch::Lfm2 => Style {
            pre: Some("lfm2"),
            control: &["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            bos: Some("<|startoftext|>"),
            add_bos: true,
            ..chatml
        },
        Arch::BailingMoe2 | Arch::BailingMoe3 => Style {
            pre: Some("bailingmoe2"),
            control: &["<|startoftext|>", "<|endoftext|>", "<role>", "</role>", "<|role_end|>"],
            bos: Some("<|startoftext|>"),
            eos: "<|role_end|>",
            template: Some(BAILING),
            ..chatml
        },
        Arch::GraniteHybrid => Style {
            pre: Some("refact"),
            control: &["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"],
            bos: Some("<|end_of_text|>"),
            eos: "<|end_of_text|>",
            template: Some(GRANITE),
            ..chatml
        },
        Arch::Gemma3 => Style {
            control: &["<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
            bos: Some("<bos>"),
            eos: "<end_of_turn>",
            add_bos: true,
            template: Some(GEMMA),
            ..chatml
        },
        Arch::Glm4Moe => Style {
            pre: Some("glm4"),
            control: &[
                "<|endoftext|>",
                "[gMASK]",
                "<sop>",
                "<|system|>",
                "<|user|>",
                "<|assistant|>",
            ],
            eos: "<|endoftext|>",
            template: Some(GLM),
            ..chatml
        },
    }
}

/// Sets the tokenizer's keys, and remembers which rows of the embedding are control tokens.
pub fn set_tokenizer(builder: &mut Builder) {
    let style = style(builder.arch, builder.options.byte_level);
    let vocab = match style.pre {
        Some(_) => Vocab::byte_level(style.control, builder.options.vocab),
        None => Vocab::scored(style.control, builder.options.vocab),
    };
    let metadata = &mut builder.draft.metadata;
    let mut set = |key: &str, value: smol_gguf::Value| {
        metadata.set(format!("tokenizer.ggml.{key}"), value);
    };
    match style.pre {
        Some(pre) => {
            set("model", "gpt2".into());
            set("pre", pre.into());
            set("merges", vocab.merges.clone().into());
        }
        None => {
            set("model", "llama".into());
            set("pre", "default".into());
            set("scores", vocab.scores.clone().into());
            set("unknown_token_id", 0u32.into());
            set("add_space_prefix", (builder.arch != Arch::Gemma3).into());
        }
    }
    set("tokens", vocab.tokens.clone().into());
    let kinds: Vec<i32> = vocab.kinds.iter().map(|kind| *kind as i32).collect();
    set("token_type", kinds.into());
    if let Some(bos) = style.bos.and_then(|bos| vocab.id(bos)) {
        set("bos_token_id", bos.into());
    }
    if let Some(eos) = vocab.id(style.eos) {
        set("eos_token_id", eos.into());
        set("padding_token_id", eos.into());
    }
    set("add_bos_token", style.add_bos.into());
    let template = match builder.options.template {
        Template::Usual => style.template,
        Template::None => None,
        Template::Broken => Some(BROKEN),
    };
    if let Some(template) = template {
        builder.draft.metadata.set("tokenizer.chat_template", template);
    }
    builder.quiet_tokens = vocab
        .kinds
        .iter()
        .map(|kind| matches!(kind, TokenKind::Control | TokenKind::Unknown))
        .collect();
}
