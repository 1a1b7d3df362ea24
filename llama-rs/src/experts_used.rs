//! Fewer experts a token than the file says.

use smol_gguf::{Metadata, Value};

use crate::error::{Error, Result};
use crate::model_builder::MetadataOverride;

/// The override that makes a model use `used` experts a token.
pub(crate) fn experts_override(
    metadata: &Metadata,
    used: u32,
) -> Result<(String, MetadataOverride)> {
    let architecture = metadata.architecture().unwrap_or("unknown");
    let number = |key| metadata.arch_get(key).and_then(Value::as_u64).unwrap_or(0);
    let experts = number("expert_count");
    if experts == 0 {
        return Err(Error::invalid(format!(
            "{used} experts a token: this {architecture} model has no experts"
        )));
    }
    let key = format!("{architecture}.expert_used_count");
    if matches!(metadata.get(&key), Some(Value::Array(_))) {
        return Err(Error::invalid(format!(
            "{used} experts a token: the file has a number for each layer ({key}), which cannot be replaced by one"
        )));
    }
    let most = number("expert_used_count");
    if !(1..=most).contains(&u64::from(used)) {
        return Err(Error::invalid(format!(
            "{used} experts a token: this model uses {most} of {experts}; allowed are 1 to {most}"
        )));
    }
    Ok((key, MetadataOverride::Int(used.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use smol_gguf::Array;

    fn mixture() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "glm4moe");
        metadata.set("glm4moe.expert_count", 64u32);
        metadata.set("glm4moe.expert_used_count", 8u32);
        metadata
    }

    fn refusal(metadata: &Metadata, used: u32) -> String {
        let error = experts_override(metadata, used).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        error.to_string()
    }

    #[test]
    fn up_to_what_the_file_says() {
        for used in [1, 4, 8] {
            let (key, value) = experts_override(&mixture(), used).unwrap();
            assert_eq!(key, "glm4moe.expert_used_count");
            assert_eq!(value, MetadataOverride::Int(used.into()));
        }
        for used in [0, 9, u32::MAX] {
            let message = refusal(&mixture(), used);
            assert!(message.ends_with("uses 8 of 64; allowed are 1 to 8"), "{message}");
        }
    }

    #[test]
    fn models_without_that_number() {
        let mut dense = Metadata::new();
        dense.set("general.architecture", "llama");
        assert!(refusal(&dense, 2).ends_with("this llama model has no experts"));
        let mut by_layer = mixture();
        by_layer.set("glm4moe.expert_used_count", Array::U32(vec![8, 4]));
        assert!(refusal(&by_layer, 2).contains("a number for each layer"));
    }
}
