//! The routed experts of a model's files: which tensors hold them, and where each expert lies.

use smol_gguf::{ExpertName, Metadata, Shards, TensorInfo, TensorType, Value};

use crate::error::{Error, Result};
use crate::files::gguf_error;

/// The routed experts of a model.
#[derive(Debug)]
pub(crate) struct RoutedExperts {
    /// The layers that have experts, in order.
    pub(crate) layers: Vec<RoutedLayer>,
    /// Bytes of all their tensors in the files.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct RoutedLayer {
    /// Number of the model's block.
    pub(crate) block: u32,
    pub(crate) experts: u32,
    /// Experts that a token uses.
    pub(crate) used: u32,
    pub(crate) tensors: Vec<RoutedTensor>,
}

/// One matrix of each expert of a layer.
#[derive(Debug)]
pub(crate) struct RoutedTensor {
    pub(crate) name: String,
    /// Number among the shards.
    pub(crate) file: usize,
    /// Where the first expert begins in that file, in bytes.
    pub(crate) offset: u64,
    pub(crate) ty: TensorType,
    /// Weights of a row, and rows, of one expert.
    pub(crate) columns: u64,
    pub(crate) rows: u64,
    /// Bytes of one expert in the file.
    pub(crate) stride: u64,
}

impl RoutedExperts {
    /// Finds them by the names that llama.cpp gives; `None` if the model has none.
    ///
    /// # Errors
    /// If they are not as llama.cpp expects them: nothing that is not understood is paged.
    pub(crate) fn find(shards: &Shards, metadata: &Metadata) -> Result<Option<Self>> {
        let blocks = number(metadata, "block_count", 0).unwrap_or(0);
        // The last blocks of some models predict further tokens and are not part of the graph.
        let last = blocks.saturating_sub(number(metadata, "nextn_predict_layers", 0).unwrap_or(0));
        let mut found = Self { layers: Vec::new(), bytes: 0 };
        for (index, file) in shards.iter().enumerate() {
            for info in file.tensors() {
                let Some(name) = ExpertName::parse(info.name()) else { continue };
                if u64::from(name.block()) >= last {
                    continue;
                }
                let offset = file.file_offset(info).map_err(|error| {
                    let path = file.path().unwrap_or_else(|| std::path::Path::new(""));
                    gguf_error(error, path)
                })?;
                found.add(metadata, name.block(), index, offset, info)?;
            }
        }
        found.layers.sort_by_key(|layer| layer.block);
        for layer in &mut found.layers {
            layer.tensors.sort_by_key(|tensor| ExpertName::parse(&tensor.name));
        }
        Ok((!found.layers.is_empty()).then_some(found))
    }

    fn add(
        &mut self,
        metadata: &Metadata,
        block: u32,
        file: usize,
        offset: u64,
        info: &TensorInfo,
    ) -> Result<()> {
        let odd = |what: &str| Error::invalid(format!("`{}` cannot be paged: {what}", info.name()));
        let [columns, rows, experts, rest] = info.dims();
        if experts < 2 || rest > 1 {
            return Err(odd("it does not have a matrix for each of several experts"));
        }
        let experts = u32::try_from(experts).map_err(|_| odd("it has too many experts"))?;
        let used = number(metadata, "expert_used_count", block).unwrap_or(0);
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        if used == 0 || used > experts {
            return Err(odd("the file does not say how many experts a token uses"));
        }
        let tensor = RoutedTensor {
            name: info.name().to_owned(),
            file,
            offset,
            ty: info.ty(),
            columns,
            rows,
            stride: info.n_bytes() / u64::from(experts),
        };
        self.bytes += info.n_bytes();
        match self.layers.iter_mut().find(|layer| layer.block == block) {
            Some(layer) if layer.experts != experts => {
                return Err(odd("the tensors of its block have different numbers of experts"));
            }
            Some(layer) => layer.tensors.push(tensor),
            None => {
                self.layers.push(RoutedLayer { block, experts, used, tensors: vec![tensor] });
            }
        }
        Ok(())
    }
}

/// A number of the model, which may differ from block to block.
pub(crate) fn number(metadata: &Metadata, key: &str, block: u32) -> Option<u64> {
    match metadata.arch_get(key)? {
        Value::Array(array) => crate::memory::element(array, block as usize),
        value => value.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::tiny::{self, Arch, TinyOptions};

    #[test]
    fn every_mixture_is_understood() {
        let folder = tempfile::tempdir().unwrap();
        for arch in Arch::ALL {
            let path = folder.path().join("model.gguf");
            tiny::write(&path, arch, &TinyOptions::default()).unwrap();
            let shards = Shards::open(&path).unwrap();
            let found = RoutedExperts::find(&shards, shards.metadata()).unwrap();
            assert_eq!(found.is_some(), arch.has_experts(), "{arch:?}");
            let Some(found) = found else { continue };
            for layer in &found.layers {
                assert_eq!(layer.tensors.len(), 3, "{arch:?}");
                assert!(layer.tensors[2].name.contains("down"), "{arch:?}");
                for tensor in &layer.tensors {
                    let (file, info) = shards.tensor(&tensor.name).unwrap();
                    assert_eq!(tensor.offset, file.file_offset(info).unwrap());
                    assert_eq!(tensor.stride * u64::from(layer.experts), info.n_bytes());
                }
            }
        }
    }
}
