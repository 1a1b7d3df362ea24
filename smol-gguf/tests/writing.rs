//! The order and completeness of what is written.

use std::io::Write;

use smol_gguf::{DEFAULT_ALIGNMENT, ErrorKind, Gguf, Rewriter, TensorType, Writer};

fn two_tensors() -> Writer {
    let mut writer = Writer::new();
    writer.tensor("a", &[3], TensorType::F32).unwrap();
    writer.tensor("b", &[5], TensorType::I8).unwrap();
    writer
}

#[test]
fn data_must_come_in_order_and_in_full() {
    let writer = two_tensors();
    let mut data = writer.start(Vec::new()).unwrap();
    let error = data.write_tensor("b", &[0; 5]).unwrap_err();
    assert_eq!(error.to_string(), "tensor data out of order: expected `a`, got `b`");
    let error = data.write_tensor("a", &[0; 11]).unwrap_err();
    assert_eq!(error.to_string(), "tensor `a` was declared with 12 bytes of data, got 11");
    data.write_tensor("a", &[1; 12]).unwrap();
    let error = data.write_tensor("a", &[1; 12]).unwrap_err();
    assert_eq!(error.to_string(), "tensor data out of order: expected `b`, got `a`");
    data.write_tensor("b", &[2; 5]).unwrap();
    let error = data.write_tensor("c", &[]).unwrap_err();
    assert_eq!(error.to_string(), "tensor data out of order: expected no more data, got `c`");
    let gguf = Gguf::from_bytes(data.finish().unwrap()).unwrap();
    assert_eq!(gguf.tensor("b").unwrap().offset(), DEFAULT_ALIGNMENT);
    assert_eq!(gguf.file_len() % DEFAULT_ALIGNMENT, 0);
}

#[test]
fn pieces_are_counted() {
    let writer = two_tensors();
    let mut data = writer.start(Vec::new()).unwrap();
    let mut a = data.tensor("a").unwrap();
    a.write_all(&[1; 5]).unwrap();
    assert_eq!(a.remaining(), 7);
    assert!(a.write_all(&[1; 8]).is_err(), "more than declared");
    a.write_all(&[1; 7]).unwrap();
    a.finish().unwrap();
    let mut b = data.tensor("b").unwrap();
    b.write_all(&[2; 4]).unwrap();
    assert!(b.finish().is_err(), "less than declared");
    assert!(matches!(data.tensor("b").unwrap_err().kind(), ErrorKind::WriteSize { found: 4, .. }));
    let error = data.finish().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WriteSize { expected: 5, found: 4, .. }));
}

#[test]
fn readers_must_have_the_declared_size() {
    let writer = two_tensors();
    let mut data = writer.start(Vec::new()).unwrap();
    data.copy_tensor("a", &[7; 12][..]).unwrap();
    let short = data.copy_tensor("b", &[7; 4][..]).unwrap_err();
    assert!(matches!(short.kind(), ErrorKind::WriteSize { found: 4, .. }));
    let mut data = writer.start(Vec::new()).unwrap();
    assert!(data.copy_tensor("a", &[7; 13][..]).is_err());
}

#[test]
fn missing_data_is_an_error() {
    let data = two_tensors().start(Vec::new()).unwrap();
    let text = data.finish().unwrap_err().to_string();
    assert_eq!(text, "tensor `a` was declared with 12 bytes of data, got 0");
}

#[test]
fn impossible_declarations_are_refused() {
    let mut writer = two_tensors();
    assert!(writer.tensor("a", &[1], TensorType::F32).is_err(), "name is taken");
    assert!(writer.tensor("c", &[33], TensorType::Q8_0).is_err(), "no whole blocks");
    writer.set("general.alignment", 48u32);
    assert!(matches!(writer.layout().unwrap_err().kind(), ErrorKind::Alignment { .. }));
    writer.set("general.alignment", 64u32);
    assert_eq!(writer.layout().unwrap().0[1].offset(), 64);
    writer.set("", 1u8);
    assert!(matches!(writer.start(Vec::new()).unwrap_err().kind(), ErrorKind::EmptyKey { .. }));
    let mut writer = Writer::new();
    for name in ["a", "b", "c"] {
        writer.tensor(name, &[1 << 62], TensorType::I8).unwrap();
    }
    assert!(matches!(writer.layout().unwrap_err().kind(), ErrorKind::TensorTooLarge { .. }));
}

#[test]
fn full_output_is_an_error() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            let n = buf.len().min(self.0);
            self.0 -= n;
            Ok(n)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let source = {
        let mut data = two_tensors().start(Vec::new()).unwrap();
        data.write_tensor("a", &[1; 12]).unwrap();
        data.write_tensor("b", &[2; 5]).unwrap();
        Gguf::from_bytes(data.finish().unwrap()).unwrap()
    };
    for room in 0..source.file_len() as usize {
        let error = Rewriter::new(&source).write(Full(room)).err().expect("the output is full");
        match error.kind() {
            ErrorKind::Io(e) => assert_eq!(e.kind(), std::io::ErrorKind::StorageFull),
            other => panic!("{other}"),
        }
    }
    assert!(Rewriter::new(&source).write(Full(source.file_len() as usize)).is_ok());
}

#[test]
fn edits_combine() {
    let source = {
        let mut writer = two_tensors();
        writer.set("x", 1u8).set("y", 2u8);
        let mut data = writer.start(Vec::new()).unwrap();
        data.write_tensor("a", &[1; 12]).unwrap();
        data.write_tensor("b", &[2; 5]).unwrap();
        Gguf::from_bytes(data.finish().unwrap()).unwrap()
    };
    let mut plan = Rewriter::new(&source);
    plan.rename_tensor("a", "z").unwrap();
    plan.remove_key("x").set("y", "two");
    plan.add("new", &[2], TensorType::I8, vec![3, 4]).unwrap();
    let b = source.tensor("b").unwrap();
    plan.replace_with("b", &[10], TensorType::I8, |out| {
        let bytes = source.data(b)?;
        out.write_all(&bytes)?;
        out.write_all(&bytes)?;
        Ok(())
    })
    .unwrap();
    plan.sort_by_key(|t| t.name() == "z");
    assert!(plan.remove_tensor("a").is_err(), "renamed");
    let (layout, len) = plan.writer().unwrap().layout().unwrap();
    let bytes = plan.write(Vec::new()).unwrap();
    assert_eq!(bytes.len() as u64, len);
    let new = Gguf::from_bytes(bytes).unwrap();
    assert_eq!(new.tensors(), layout);
    let names: Vec<&str> = new.tensors().iter().map(|t| t.name()).collect();
    assert_eq!(names, ["b", "new", "z"]);
    assert_eq!(&*new.data(new.tensor("b").unwrap()).unwrap(), &[2; 10]);
    assert_eq!(&*new.data(new.tensor("z").unwrap()).unwrap(), &[1; 12]);
    assert_eq!(new.metadata().len(), 1);

    plan.add("z", &[1], TensorType::I8, vec![0]).unwrap();
    assert!(matches!(plan.writer().unwrap_err().kind(), ErrorKind::DuplicateTensor { .. }));
    plan.retain_tensors(|t| t.name() != "z");
    plan.replace_with("b", &[3], TensorType::I8, |_| Ok(())).unwrap();
    assert!(matches!(plan.write(Vec::new()).unwrap_err().kind(), ErrorKind::WriteSize { .. }));
}
