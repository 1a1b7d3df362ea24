//! What is written is what is read, and rewriting changes nothing but what is asked.

mod common;

use proptest::prelude::*;
use smol_gguf::{
    Array, ByteString, Gguf, Metadata, Rewriter, StringArray, TensorType, Value, Writer,
};

fn value() -> impl Strategy<Value = Value> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let scalar = prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        bytes().prop_map(|b| Value::from(ByteString::from(b))),
    ];
    fn list<T: Arbitrary + Clone>() -> impl Strategy<Value = Array>
    where
        Vec<T>: Into<Array>,
    {
        prop::collection::vec(any::<T>(), 0..40).prop_map(Into::into)
    }
    let array = prop_oneof![
        list::<u8>(),
        list::<i8>(),
        list::<u16>(),
        list::<i16>(),
        list::<u32>(),
        list::<i32>(),
        list::<u64>(),
        list::<i64>(),
        list::<bool>(),
        list::<f32>(),
        list::<f64>(),
        prop::collection::vec(bytes(), 0..20)
            .prop_map(|v| Array::String(v.into_iter().collect::<StringArray>())),
    ];
    prop_oneof![3 => scalar, 1 => array.prop_map(Value::from)]
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    ty: TensorType,
    fill: u8,
}

fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let ty = prop::sample::select(TensorType::ALL);
    let one = (prop::collection::vec(0u64..4, 0..5), ty, any::<u8>());
    prop::collection::vec(one, 0..8).prop_map(|list| {
        list.into_iter()
            .enumerate()
            .map(|(i, (mut shape, ty, fill))| {
                match shape.first_mut() {
                    Some(row) => *row *= ty.block_len(),
                    None if ty.is_quantized() => shape.push(ty.block_len()),
                    None => {}
                }
                Tensor { name: format!("tensor.{i}"), shape, ty, fill }
            })
            .collect()
    })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let alignment = prop_oneof![Just(None), (0u32..10).prop_map(|shift| Some(1u32 << shift))];
    (prop::collection::vec(("[a-z.]{1,12}", value()), 0..12), alignment).prop_map(
        |(pairs, alignment)| {
            let mut metadata: Metadata = pairs.into_iter().collect();
            if let Some(alignment) = alignment {
                metadata.set("general.alignment", alignment);
            }
            metadata
        },
    )
}

fn encode(metadata: &Metadata, tensors: &[Tensor]) -> Vec<u8> {
    let mut writer = Writer::with_metadata(metadata.clone());
    for t in tensors {
        writer.tensor(&t.name, &t.shape, t.ty).unwrap();
    }
    let (_, file_len) = writer.layout().unwrap();
    let mut data = writer.start(Vec::new()).unwrap();
    for t in tensors {
        let len = data.next_tensor().unwrap().n_bytes() as usize;
        data.write_tensor(&t.name, &vec![t.fill; len]).unwrap();
    }
    let bytes = data.finish().unwrap();
    assert_eq!(bytes.len() as u64, file_len);
    bytes
}

/// Values as bits, so that NaN equals itself.
fn bits(metadata: &Metadata) -> Vec<String> {
    metadata
        .iter()
        .map(|(key, value)| match value {
            Value::F32(v) => format!("{key} f32 {:x}", v.to_bits()),
            Value::F64(v) => format!("{key} f64 {:x}", v.to_bits()),
            Value::Array(Array::F32(a)) => {
                format!("{key} {:x?}", a.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
            }
            Value::Array(Array::F64(a)) => {
                format!("{key} {:x?}", a.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
            }
            Value::String(s) => format!("{key} {:x?}", s.as_bytes()),
            Value::Array(Array::String(a)) => format!("{key} {:x?}", a.iter().collect::<Vec<_>>()),
            other => format!("{key} {other:?}"),
        })
        .collect()
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 1 } else { 256 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn reader_returns_what_was_written(metadata in metadata(), tensors in tensors()) {
        let bytes = encode(&metadata, &tensors);
        let gguf = Gguf::from_bytes(bytes).unwrap();
        prop_assert_eq!(bits(gguf.metadata()), bits(&metadata));
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (read, written) in gguf.tensors().iter().zip(&tensors) {
            prop_assert_eq!(read.name(), &written.name);
            prop_assert_eq!(read.shape(), &written.shape);
            prop_assert_eq!(read.ty(), written.ty);
            prop_assert!(read.offset().is_multiple_of(gguf.alignment()));
            let data = gguf.data(read).unwrap();
            prop_assert_eq!(data.len() as u64, read.n_bytes());
            prop_assert!(data.iter().all(|&b| b == written.fill));
        }
    }

    #[test]
    fn rewriting_without_edits_is_the_identity(metadata in metadata(), tensors in tensors()) {
        let bytes = encode(&metadata, &tensors);
        let source = Gguf::from_bytes(bytes.clone()).unwrap();
        prop_assert_eq!(Rewriter::new(&source).write(Vec::new()).unwrap(), bytes);
    }

    #[test]
    fn edits_touch_only_what_they_name(metadata in metadata(), tensors in tensors(), pick in any::<prop::sample::Index>()) {
        prop_assume!(!tensors.is_empty());
        let source = Gguf::from_bytes(encode(&metadata, &tensors)).unwrap();
        let picked = &tensors[pick.index(tensors.len())].name;
        let mut plan = Rewriter::new(&source);
        plan.set("added.key", 7u8).remove_tensor(picked).unwrap();
        let new = Gguf::from_bytes(plan.write(Vec::new()).unwrap()).unwrap();
        prop_assert_eq!(new.metadata().len(), metadata.len() + 1);
        prop_assert!(new.tensor(picked).is_none());
        let rest: Vec<&Tensor> = tensors.iter().filter(|t| t.name != *picked).collect();
        prop_assert_eq!(new.tensors().len(), rest.len());
        for (read, written) in new.tensors().iter().zip(rest) {
            prop_assert_eq!(read.name(), &written.name);
            prop_assert!(new.data(read).unwrap().iter().all(|&b| b == written.fill));
        }
    }

    #[test]
    fn any_bytes_after_the_magic_are_parsed_or_refused(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [&b"GGUF\x03\0\0\0"[..], &tail].concat();
        if let Ok(gguf) = Gguf::from_bytes(bytes) {
            smol_gguf::check(&gguf, smol_gguf::Depth::Full);
        }
    }
}

#[cfg(not(miri))] // files
mod split {
    use super::*;
    use smol_gguf::{Shards, SplitBy, split};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..config() })]

        #[test]
        fn merging_a_split_gives_the_original(metadata in metadata(), tensors in tensors(), max in 1usize..4) {
            let dir = tempfile::tempdir().unwrap();
            let bytes = encode(&metadata, &tensors);
            let source = Gguf::from_bytes(bytes.clone()).unwrap();
            for by in [SplitBy::Tensors(max), SplitBy::Bytes(max as u64 * 256)] {
                let paths = split(&source, dir.path().join("m"), by).unwrap();
                let shards = Shards::open(paths.last().unwrap()).unwrap();
                prop_assert_eq!(shards.len(), paths.len());
                prop_assert_eq!(shards.tensors().count(), tensors.len());
                let merged = Rewriter::from_shards(&shards).write(Vec::new()).unwrap();
                prop_assert_eq!(&merged, &bytes);
            }
        }
    }
}
