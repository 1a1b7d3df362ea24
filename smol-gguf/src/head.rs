//! Pruned vocabulary heads: output matrices that have the rows of some tokens only.

use std::io::Write;

use crate::error::{Error, ErrorKind, Result};
use crate::{Gguf, Rewriter, Rows, Shards, TensorInfo, TensorType};

/// The tensor that tells which token each row of a pruned head belongs to: ascending ids, as `i32` or `i64`.
///
/// llama.cpp without this library's patches refuses a file that has it.
pub const OUTPUT_IDS: &str = "output_ids";

/// The tensor of the vocabulary head.
const OUTPUT: &str = "output.weight";
/// What some models add to the head's result.
const OUTPUT_BIAS: &str = "output.bias";
/// The head of models that have no other.
const EMBEDDINGS: &str = "token_embd.weight";
/// How the names of the heads end that blocks have which draft further tokens (multi-token prediction).
const DRAFTS: &str = ".nextn.shared_head_head.weight";

/// What [`Rewriter::prune_head`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunedHead {
    /// Rows of the head as it was.
    pub rows_before: u64,
    /// Rows that are left.
    pub rows: u64,
    /// Bytes of the head as it was.
    pub bytes_before: u64,
    /// Bytes that are left.
    pub bytes: u64,
    /// Whether the head was the embedding matrix too, which stays whole: the new file is larger by the head.
    pub was_tied: bool,
}

impl Gguf {
    /// Returns the tokens that the rows of a pruned head belong to; `None`: the head is whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HeadIds`] when these aren't ascending ids, [`ErrorKind::TensorUse`] when they are of another type, and
    /// when they can't be read.
    pub fn output_ids(&self) -> Result<Option<Vec<u32>>> {
        self.tensor(OUTPUT_IDS).map(|tensor| read_ids(self, tensor)).transpose()
    }
}

impl Shards {
    /// Returns the tokens that the rows of a pruned head belong to, as [`Gguf::output_ids`].
    ///
    /// # Errors
    ///
    /// As [`Gguf::output_ids`].
    pub fn output_ids(&self) -> Result<Option<Vec<u32>>> {
        self.tensor(OUTPUT_IDS).map(|(file, tensor)| read_ids(file, tensor)).transpose()
    }
}

impl<'a> Rewriter<'a> {
    /// Keeps only the rows of these tokens in the vocabulary head of `source`, whose copy this is; the tokens come in any
    /// order, and twice doesn't matter. All other tokens can be read, but never be written.
    ///
    /// Where the embedding matrix is the head too, it stays, and a head of its own comes behind it. Blocks that draft further
    /// tokens with heads of their own keep the same rows of these. A head that has been pruned can be pruned further.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoHead`] when there is no output matrix or its rows can't be told apart, [`ErrorKind::HeadToken`] for a
    /// token that has no row, [`ErrorKind::EmptyHead`] without tokens.
    ///
    /// # Examples
    ///
    /// ```
    /// # use smol_gguf::{TensorType, Writer};
    /// # let mut writer = Writer::new();
    /// # writer.tensor("output.weight", &[1, 4], TensorType::F32)?;
    /// # let mut data = writer.start(Vec::new())?;
    /// # data.write_tensor("output.weight", &[[0; 4], [1; 4], [2; 4], [3; 4]].concat())?;
    /// # let bytes = data.finish()?;
    /// use smol_gguf::{Gguf, Rewriter, Shards};
    ///
    /// let source = Shards::from(Gguf::from_bytes(bytes)?);
    /// let mut plan = Rewriter::from_shards(&source);
    /// assert_eq!(plan.prune_head(&source, &[3, 1])?.rows, 2);
    ///
    /// let new = Gguf::from_bytes(plan.write(Vec::new())?)?;
    /// assert_eq!(new.output_ids()?, Some(vec![1, 3]));
    /// assert_eq!(*new.data(new.tensor("output.weight").unwrap())?, [1, 1, 1, 1, 3, 3, 3, 3]);
    /// # Ok::<(), smol_gguf::Error>(())
    /// ```
    pub fn prune_head(&mut self, source: &'a Shards, tokens: &[u32]) -> Result<PrunedHead> {
        let mut ids = tokens.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let own = source.tensor(OUTPUT);
        let (_, head) = own
            .or_else(|| source.tensor(EMBEDDINGS))
            .filter(|(_, head)| head.shape().len() == 2 && head.ty().block_len() <= head.shape()[0])
            .ok_or(ErrorKind::NoHead)?;
        let rows = rows_of(&ids, head.n_rows(), source.output_ids()?)?;
        let shape = [head.shape()[0], rows.len() as u64];
        match own {
            Some(_) => self.convert(OUTPUT, &shape, head.ty(), only(&rows))?,
            None => self.add_converted(OUTPUT, EMBEDDINGS, &shape, head.ty(), only(&rows))?,
        };
        for (_, tensor) in source.tensors() {
            // One of another height belongs to a vocabulary of its own.
            if tensor.name().ends_with(DRAFTS) && tensor.n_rows() == head.n_rows() {
                let shape = [tensor.shape()[0], shape[1]];
                self.convert(tensor.name(), &shape, tensor.ty(), only(&rows))?;
            }
        }
        if let Some((_, bias)) = source.tensor(OUTPUT_BIAS) {
            if bias.n_elements() != head.n_rows() || bias.ty().block_len() != 1 {
                return Err(ErrorKind::NoHead.into());
            }
            let element = (bias.n_bytes() / bias.n_elements()) as usize;
            self.convert(OUTPUT_BIAS, &shape[1..], bias.ty(), move |all, out| {
                let of = |&row: &u64| &all.bytes()[row as usize * element..][..element];
                Ok(out.write_all(&rows.iter().flat_map(of).copied().collect::<Vec<u8>>())?)
            })?;
        }
        if source.tensor(OUTPUT_IDS).is_some() {
            self.remove_tensor(OUTPUT_IDS)?;
        }
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.add(OUTPUT_IDS, &shape[1..], TensorType::I32, bytes)?;
        Ok(PrunedHead {
            rows_before: head.n_rows(),
            rows: shape[1],
            bytes_before: head.n_bytes(),
            bytes: head.row_bytes() * shape[1],
            was_tied: own.is_none(),
        })
    }
}

/// Gives on these rows of a matrix, which ascend.
fn only(rows: &[u64]) -> impl Fn(Rows<'_>, &mut dyn Write) -> Result<()> + Send + Sync + 'static {
    let kept = rows.to_vec();
    move |all, out| {
        let mut bytes = Vec::with_capacity(all.bytes().len());
        for (_, row) in all.iter().filter(|(row, _)| kept.binary_search(row).is_ok()) {
            bytes.extend_from_slice(row);
        }
        Ok(out.write_all(&bytes)?)
    }
}

/// The head's row of each token; `kept`: the tokens of its rows, if it has been pruned before.
fn rows_of(ids: &[u32], n_rows: u64, kept: Option<Vec<u32>>) -> Result<Vec<u64>> {
    if ids.is_empty() {
        return Err(ErrorKind::EmptyHead.into());
    }
    let row_of = |&id: &u32| {
        let row = match &kept {
            Some(kept) => kept.binary_search(&id).ok().map(|row| row as u64),
            None => Some(u64::from(id)),
        };
        // Ids are stored as i32.
        row.filter(|&row| row < n_rows && id <= i32::MAX as u32)
            .ok_or_else(|| Error::from(ErrorKind::HeadToken { token: id, rows: n_rows }))
    };
    ids.iter().map(row_of).collect()
}

fn read_ids(file: &Gguf, tensor: &TensorInfo) -> Result<Vec<u32>> {
    let data = file.data(tensor)?;
    let ids: Vec<i64> = match tensor.ty() {
        TensorType::I32 => {
            data.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect()
        }
        TensorType::I64 => {
            data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
        }
        found => {
            let tensor = tensor.name().to_owned();
            let kind = ErrorKind::TensorUse { tensor, found, allowed: "i32 or i64" };
            return Err(file.locate(kind.into()));
        }
    };
    let mut before = -1;
    let checked = ids.into_iter().enumerate().map(|(index, found)| {
        let ascends = found > before && found <= i32::MAX.into();
        before = found;
        let index = index as u64;
        u32::try_from(found)
            .ok()
            .filter(|_| ascends)
            .ok_or_else(|| file.locate(ErrorKind::HeadIds { index, found }.into()))
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    const ROWS: u8 = 6;

    /// A model of 6 tokens, with rows of 8 bytes that hold their number.
    fn model(tied: bool, bias: bool) -> Shards {
        let head = if tied { EMBEDDINGS } else { OUTPUT };
        let mut writer = Writer::new();
        writer.tensor(head, &[2, ROWS.into()], TensorType::F32).unwrap();
        if bias {
            writer.tensor(OUTPUT_BIAS, &[ROWS.into()], TensorType::F32).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        data.write_tensor(head, &numbered(0..ROWS, 8)).unwrap();
        if bias {
            data.write_tensor(OUTPUT_BIAS, &numbered(0..ROWS, 4)).unwrap();
        }
        Shards::from(Gguf::from_bytes(data.finish().unwrap()).unwrap())
    }

    fn numbered(rows: impl IntoIterator<Item = u8>, bytes: usize) -> Vec<u8> {
        rows.into_iter().flat_map(|row| std::iter::repeat_n(row, bytes)).collect()
    }

    fn pruned(source: &Shards, tokens: &[u32]) -> Shards {
        let mut plan = Rewriter::from_shards(source);
        plan.prune_head(source, tokens).unwrap();
        Shards::from(Gguf::from_bytes(plan.write(Vec::new()).unwrap()).unwrap())
    }

    fn data_of(model: &Shards, name: &str) -> Vec<u8> {
        let (file, tensor) = model.tensor(name).unwrap();
        file.data(tensor).unwrap().into_owned()
    }

    #[test]
    fn rows_follow_their_tokens() {
        for tied in [false, true] {
            let source = model(tied, true);
            let new = pruned(&source, &[5, 1, 2, 1]);
            assert_eq!(new.output_ids().unwrap().unwrap(), [1, 2, 5]);
            assert_eq!(data_of(&new, OUTPUT), numbered([1, 2, 5], 8));
            assert_eq!(data_of(&new, OUTPUT_BIAS), numbered([1, 2, 5], 4));
            assert_eq!(new.tensor(EMBEDDINGS).is_some(), tied);
            let again = pruned(&new, &[5, 2]);
            assert_eq!(again.output_ids().unwrap().unwrap(), [2, 5]);
            assert_eq!(data_of(&again, OUTPUT), numbered([2, 5], 8));
            assert_eq!(data_of(&again, OUTPUT_BIAS), numbered([2, 5], 4));
        }
    }

    #[test]
    fn heads_of_drafting_blocks_keep_the_same_rows() {
        let (own, other) = (format!("blk.3{DRAFTS}"), format!("blk.4{DRAFTS}"));
        let heads = [(OUTPUT, ROWS, 8), (&*own, ROWS, 12), (&*other, ROWS + 1, 12)];
        let mut writer = Writer::new();
        for (name, rows, bytes) in heads {
            writer.tensor(name, &[bytes as u64 / 4, rows.into()], TensorType::F32).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        for (name, rows, bytes) in heads {
            data.write_tensor(name, &numbered(0..rows, bytes)).unwrap();
        }
        let source = Shards::from(Gguf::from_bytes(data.finish().unwrap()).unwrap());
        let new = pruned(&pruned(&source, &[4, 1, 3]), &[1, 4]);
        assert_eq!(data_of(&new, OUTPUT), numbered([1, 4], 8));
        assert_eq!(data_of(&new, &own), numbered([1, 4], 12));
        assert_eq!(data_of(&new, &other), numbered(0..ROWS + 1, 12));
    }

    #[test]
    fn tokens_without_a_row_are_refused() {
        let source = model(false, false);
        let refused = |source: &Shards, tokens: &[u32]| {
            let error = Rewriter::from_shards(source).prune_head(source, tokens).unwrap_err();
            error.into_kind()
        };
        assert!(matches!(refused(&source, &[6]), ErrorKind::HeadToken { token: 6, rows: 6 }));
        assert!(matches!(refused(&source, &[]), ErrorKind::EmptyHead));
        let small = pruned(&source, &[1, 3]);
        assert!(matches!(refused(&small, &[1, 2]), ErrorKind::HeadToken { token: 2, rows: 2 }));
        let none = Shards::from(
            Gguf::from_bytes(Writer::new().start(Vec::new()).unwrap().finish().unwrap()).unwrap(),
        );
        assert!(matches!(refused(&none, &[0]), ErrorKind::NoHead));
    }

    #[test]
    fn ids_are_read_as_either_type_and_checked() {
        let read = |ty, ids: &[i64]| {
            let mut writer = Writer::new();
            writer.tensor(OUTPUT_IDS, &[ids.len() as u64], ty).unwrap();
            let mut data = writer.start(Vec::new()).unwrap();
            let bytes: Vec<u8> = match ty {
                TensorType::I64 => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
                _ => ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect(),
            };
            data.write_tensor(OUTPUT_IDS, &bytes).unwrap();
            Gguf::from_bytes(data.finish().unwrap()).unwrap().output_ids()
        };
        for ty in [TensorType::I32, TensorType::I64] {
            assert_eq!(read(ty, &[0, 7, 9]).unwrap().unwrap(), [0, 7, 9]);
            for (ids, at) in [([3, 3], 1), ([4, 2], 1), ([-1, 2], 0)] {
                let kind = read(ty, &ids).unwrap_err().into_kind();
                assert!(matches!(kind, ErrorKind::HeadIds { index, .. } if index == at), "{kind}");
            }
        }
        assert!(read(TensorType::I64, &[1 << 40]).is_err());
        assert!(matches!(
            read(TensorType::F32, &[1]).unwrap_err().into_kind(),
            ErrorKind::TensorUse { .. }
        ));
    }
}
