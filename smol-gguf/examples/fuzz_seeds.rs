//! Writes the seeds of the fuzz target: small files that reach every part of the reader.
//!
//! `cargo run --example fuzz_seeds -- smol-gguf/fuzz/seeds/read`

use std::path::Path;
use std::process::ExitCode;

use smol_gguf::{Result, TensorType, Writer};

fn main() -> ExitCode {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "fuzz/seeds/read".into());
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> Result<()> {
    Writer::new().write_file(folder.join("empty"), |_| Ok(()))?;

    let mut values = Writer::new();
    values.set("general.alignment", 8u32).set("a", 1u8).set("b", -1i8).set("c", 2u16);
    values.set("d", -2i16).set("e", -3i32).set("f", 0.5f32).set("g", true).set("h", "text");
    values.set("i", 4u64).set("j", -4i64).set("k", 0.25f64);
    values.set("l", vec![1u8, 2]).set("m", vec![-1i8]).set("n", vec![1u16]).set("o", vec![1i16]);
    values.set("p", vec![1u32]).set("q", vec![-1i32]).set("r", vec![1f32]).set("s", vec![true]);
    values.set("t", vec!["x", ""]).set("u", vec![1u64]).set("v", vec![1i64]).set("w", vec![1f64]);
    values.write_file(folder.join("values"), |_| Ok(()))?;

    let mut tensors = Writer::new();
    tensors.set("general.alignment", 1u32);
    tensors.tensor("scalar", &[], TensorType::F32)?;
    tensors.tensor("vector", &[3], TensorType::F16)?;
    tensors.tensor("blocks", &[32, 2], TensorType::Q4_0)?;
    tensors.tensor("four", &[1, 2, 1, 2], TensorType::I8)?;
    tensors.write_file(folder.join("tensors"), |data| {
        data.write_tensor("scalar", &[0; 4])?;
        data.write_tensor("vector", &[0; 6])?;
        data.write_tensor("blocks", &[0; 36])?;
        data.write_tensor("four", &[0; 4])
    })?;

    let mut model = Writer::new();
    model.set("general.architecture", "llama");
    model.set("llama.context_length", 8u32).set("llama.embedding_length", 4u32);
    model.set("llama.block_count", 1u32).set("llama.feed_forward_length", vec![4u32]);
    model.set("llama.attention.head_count", 2u32).set("llama.attention.head_count_kv", vec![1u32]);
    model.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    model.set("llama.expert_count", 2u32).set("llama.expert_used_count", 1u32);
    model.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.tokens", vec!["a", "b", "c"]);
    model.set("tokenizer.ggml.scores", vec![0f32; 3]);
    model.set("tokenizer.ggml.token_type", vec![1i32; 3]);
    model.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    model.set("tokenizer.chat_template", "{% raw %}{{ x }}{% endraw %}{# c #}");
    model.tensor("output_norm.weight", &[4], TensorType::F32)?;
    model.write_file(folder.join("model"), |data| data.write_tensor("output_norm.weight", &[0; 16]))
}
