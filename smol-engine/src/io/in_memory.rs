//! A file in memory that reads short now and then, and a way to pack it, for tests that are small enough for Miri.

use super::{Mode, ReadAt, Result};
use crate::expert::Packer;
use std::path::Path;

/// Its bytes, and how it says it is read.
#[derive(Debug)]
pub(crate) struct InMemory(pub(crate) Vec<u8>, pub(crate) Mode);

impl ReadAt for InMemory {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let start = (offset as usize).min(self.0.len());
        // A short read now and then.
        let len = buf.len().min(self.0.len() - start);
        let len = if len > 32 && offset.is_multiple_of(64) { 32 } else { len };
        buf[..len].copy_from_slice(&self.0[start..start + len]);
        Ok(len)
    }

    fn alignment(&self) -> usize {
        16
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn path(&self) -> &Path {
        Path::new("memory")
    }

    fn mode(&self) -> &Mode {
        &self.1
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

/// Every bit is the other one.
pub(crate) struct Inverts;

impl Packer for Inverts {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        packed.iter_mut().zip(plain).for_each(|(to, from)| *to = !from);
    }
}
