//! Importance matrices: how much each column of a model's matrices matters, measured on texts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::error::{ErrorKind, Result};
use crate::{Gguf, MAGIC, TensorInfo, TensorType};

/// The importance of columns, by the names of tensors: what llama.cpp's `llama-imatrix` writes, in
/// its newer form (GGUF) or its older one.
///
/// # Examples
///
/// ```no_run
/// let imatrix = smol_gguf::ImportanceMatrix::open("imatrix.gguf")?;
/// println!("{} tensors", imatrix.len());
/// # Ok::<(), smol_gguf::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ImportanceMatrix {
    columns: HashMap<String, Vec<f32>>,
}

/// Sums of squares, and how many there were: for each expert on its own.
#[derive(Default)]
struct Sums<'a> {
    sums: Option<&'a TensorInfo>,
    counts: Option<&'a TensorInfo>,
}

impl ImportanceMatrix {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When the file can't be read, it is of another kind, or numbers in it aren't finite.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || {
            let mut magic = [0; 4];
            File::open(path)?.read_exact(&mut magic)?;
            let columns =
                if magic == MAGIC { from_gguf(&Gguf::open(path)?)? } else { from_older(path)? };
            for (name, columns) in &columns {
                if columns.iter().any(|value| !value.is_finite() || *value < 0.0) {
                    return Err(wrong(format!("the importance of `{name}` has no finite values")));
                }
            }
            Ok(Self { columns })
        };
        read().map_err(|e: crate::Error| e.at(path))
    }

    /// Returns the importance of a tensor's columns: of each matrix of several in it (experts)
    /// after the other.
    pub fn get(&self, tensor: &str) -> Option<&[f32]> {
        self.columns.get(tensor).map(Vec::as_slice)
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }
}

fn from_gguf(file: &Gguf) -> Result<HashMap<String, Vec<f32>>> {
    let mut found: HashMap<&str, Sums<'_>> = HashMap::new();
    for tensor in file.tensors() {
        if let Some(name) = tensor.name().strip_suffix(".in_sum2") {
            found.entry(name).or_default().sums = Some(tensor);
        } else if let Some(name) = tensor.name().strip_suffix(".counts") {
            found.entry(name).or_default().counts = Some(tensor);
        }
    }
    if found.is_empty() {
        return Err(wrong("it is a GGUF file, but no importance matrix".into()));
    }
    found
        .into_iter()
        .map(|(name, sums)| Ok((name.to_owned(), averages(file, name, &sums)?)))
        .collect()
}

fn averages(file: &Gguf, name: &str, found: &Sums<'_>) -> Result<Vec<f32>> {
    let (Some(sums), Some(counts)) = (found.sums, found.counts) else {
        return Err(wrong(format!("`{name}` has no sums or no counts")));
    };
    let mut averages = floats(file, sums)?;
    let counts = floats(file, counts)?;
    if counts.is_empty() || averages.is_empty() || !averages.len().is_multiple_of(counts.len()) {
        let (sums, counts) = (averages.len(), counts.len());
        return Err(wrong(format!("`{name}` has {sums} sums for {counts} counts")));
    }
    let columns = averages.len() / counts.len();
    for (matrix, count) in averages.chunks_mut(columns).zip(counts) {
        let count = count.round();
        // An expert that was never chosen: nothing is known, so all columns are alike.
        matrix.iter_mut().for_each(|sum| *sum = if count > 0.0 { *sum / count } else { 1.0 });
    }
    Ok(averages)
}

fn floats(file: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>> {
    if tensor.ty() != TensorType::F32 {
        let tensor_name = tensor.name().to_owned();
        let (found, allowed) = (tensor.ty(), "f32");
        return Err(ErrorKind::TensorUse { tensor: tensor_name, found, allowed }.into());
    }
    let data = file.data(tensor)?;
    Ok(data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

/// Reads a list of names, each with the number of texts, and sums already divided by counts.
fn from_older(path: &Path) -> Result<HashMap<String, Vec<f32>>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let number = |file: &mut BufReader<File>| -> Result<i32> {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes)?;
        Ok(i32::from_le_bytes(bytes))
    };
    let size = |found: i32, bytes: u64| {
        let found = u64::try_from(found).ok().filter(|&n| n > 0 && n <= len / bytes);
        found.map(|n| n as usize).ok_or_else(|| wrong("it is no importance matrix".into()))
    };
    let entries = size(number(&mut file)?, 16)?;
    let mut columns = HashMap::with_capacity(entries);
    for _ in 0..entries {
        let mut name = vec![0; size(number(&mut file)?, 1)?];
        file.read_exact(&mut name)?;
        let name = String::from_utf8(name).map_err(|_| wrong("a name is not UTF-8".into()))?;
        let texts = number(&mut file)?;
        let mut bytes = vec![0; 4 * size(number(&mut file)?, 4)?];
        file.read_exact(&mut bytes)?;
        let divisor = if texts > 0 { texts as f32 } else { 1.0 };
        let values = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b) / divisor);
        columns.insert(name, values.collect());
    }
    Ok(columns)
}

fn wrong(what: String) -> crate::Error {
    ErrorKind::Importance { what }.into()
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::Writer;

    fn written(bytes: &[u8]) -> Result<ImportanceMatrix> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix");
        std::fs::write(&path, bytes).unwrap();
        ImportanceMatrix::open(path)
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn gguf(tensors: &[(&str, &[f32])]) -> Vec<u8> {
        let mut writer = Writer::new();
        for (name, values) in tensors {
            writer.tensor(*name, &[values.len() as u64], TensorType::F32).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        for (name, values) in tensors {
            data.write_tensor(name, &bytes(values)).unwrap();
        }
        data.finish().unwrap()
    }

    #[test]
    fn sums_are_divided_by_their_counts() {
        let file = gguf(&[
            ("a.weight.in_sum2", &[2.0, 4.0]),
            ("a.weight.counts", &[2.0]),
            ("b.weight.in_sum2", &[3.0, 6.0, 5.0, 7.0]),
            ("b.weight.counts", &[3.0, 0.0]),
        ]);
        let imatrix = written(&file).unwrap();
        assert_eq!(imatrix.len(), 2);
        assert_eq!(imatrix.get("a.weight").unwrap(), [1.0, 2.0]);
        assert_eq!(imatrix.get("b.weight").unwrap(), [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(imatrix.get("c.weight"), None);
    }

    #[test]
    fn the_older_form_is_read_too() {
        let mut file = 1i32.to_le_bytes().to_vec();
        file.extend(8i32.to_le_bytes());
        file.extend(b"a.weight");
        file.extend([4i32, 2].iter().flat_map(|n| n.to_le_bytes()));
        file.extend(bytes(&[8.0, 2.0]));
        let imatrix = written(&file).unwrap();
        assert_eq!(imatrix.get("a.weight").unwrap(), [2.0, 0.5]);
        for len in 0..file.len() {
            assert!(written(&file[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for (file, words) in [
            (gguf(&[("a.weight", &[1.0])]), "no importance matrix"),
            (gguf(&[("a.weight.in_sum2", &[1.0])]), "no counts"),
            (gguf(&[("a.in_sum2", &[1.0, 2.0, 3.0]), ("a.counts", &[1.0, 1.0])]), "3 sums for 2"),
            (gguf(&[("a.in_sum2", &[f32::NAN]), ("a.counts", &[1.0])]), "no finite values"),
            (b"nonsense of another kind".to_vec(), "no importance matrix"),
        ] {
            let error = written(&file).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
