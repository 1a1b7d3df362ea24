//! Saving and loading the state of a sequence.
//!
//! llama.cpp's own format trusts its input. Here it is wrapped: a header tells which model, settings and build the state
//! belongs to, and a checksum is verified before llama.cpp sees a byte.

use std::io::{ErrorKind as IoErrorKind, Read, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::human;
use crate::token::SeqId;

const MAGIC: [u8; 8] = *b"SMOLSEQ\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 80;

/// What a saved state belongs to, before its payload. All numbers are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    model: u128,
    build: u128,
    type_k: i32,
    type_v: i32,
    pos_min: i32,
    pos_max: i32,
    payload_bytes: u64,
    checksum: u64,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.model.to_le_bytes());
        bytes.extend(self.build.to_le_bytes());
        for number in [self.type_k, self.type_v, self.pos_min, self.pos_max] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        // Room for a later version to grow without a new size.
        bytes.resize(HEADER_BYTES, 0);
        let mut fixed = [0; HEADER_BYTES];
        fixed.copy_from_slice(&bytes);
        fixed
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        let mut fields = Fields(bytes);
        if fields.take::<8>() != MAGIC {
            return Err(state_error("this is not a saved state"));
        }
        let version = u32::from_le_bytes(fields.take());
        if version != VERSION {
            return Err(state_error(format!(
                "the state has format {version} but this version reads {VERSION}"
            )));
        }
        Ok(Self {
            model: u128::from_le_bytes(fields.take()),
            build: u128::from_le_bytes(fields.take()),
            type_k: i32::from_le_bytes(fields.take()),
            type_v: i32::from_le_bytes(fields.take()),
            pos_min: i32::from_le_bytes(fields.take()),
            pos_max: i32::from_le_bytes(fields.take()),
            payload_bytes: u64::from_le_bytes(fields.take()),
            checksum: u64::from_le_bytes(fields.take()),
        })
    }

    /// The checksum of this header, with an empty one in its place, and the payload.
    fn checksum_with(&self, payload: &[u8]) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(&Self { checksum: 0, ..*self }.encode());
        hash.update(payload);
        hash.digest()
    }
}

/// Takes fields off the front of a header.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        // The header's size covers all fields.
        let (front, rest) = self.0.split_at(N);
        field.copy_from_slice(front);
        self.0 = rest;
        field
    }
}

impl Context {
    /// Writes the state of a sequence: its cached keys and values or recurrent states, and its positions.
    ///
    /// The state can be loaded into any context of the same model file, build and cache types, of any size.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a sequence that the context doesn't have; [`ErrorKind::State`] if the sequence
    /// was shifted or copied and nothing was decoded since; [`ErrorKind::Io`] from the writer.
    pub fn save_seq(&mut self, seq: SeqId, mut writer: impl Write) -> Result<()> {
        self.check_seq(seq)?;
        if self.update_pending {
            let message =
                "positions were shifted or a sequence copied: decode a token before saving";
            return Err(state_error(message));
        }
        let payload = self.raw.state_of(seq.0)?;
        let mut header = self.header(seq, payload.len() as u64);
        header.checksum = header.checksum_with(&payload);
        let written = writer.write_all(&header.encode()).and_then(|()| writer.write_all(&payload));
        written
            .and_then(|()| writer.flush())
            .map_err(|error| Error::io(error, "saving the state failed", None))
    }

    /// Replaces a sequence by a saved state and returns the position after its last token, which is the number of
    /// tokens it stands for.
    ///
    /// # Errors
    /// [`ErrorKind::State`] if the bytes are damaged, cut short, or belong to another model, build or cache type;
    /// [`ErrorKind::Io`] from the reader; [`ErrorKind::InvalidArgument`] for a sequence that the context doesn't have.
    /// After any error the sequence is empty.
    pub fn load_seq(&mut self, seq: SeqId, reader: impl Read) -> Result<usize> {
        self.check_seq(seq)?;
        let loaded = self.try_load(seq, reader);
        if loaded.is_err() {
            let _ = self.raw.memory_remove(seq.0, -1, -1);
        }
        loaded
    }

    fn try_load(&mut self, seq: SeqId, mut reader: impl Read) -> Result<usize> {
        let mut bytes = [0; HEADER_BYTES];
        reader.read_exact(&mut bytes).map_err(|error| match error.kind() {
            IoErrorKind::UnexpectedEof => state_error("this is not a saved state: it is too short"),
            _ => Error::io(error, "loading the state failed", None),
        })?;
        let header = Header::decode(&bytes)?;
        self.check_header(&header)?;
        let mut payload = Vec::new();
        reader
            .take(header.payload_bytes)
            .read_to_end(&mut payload)
            .map_err(|error| Error::io(error, "loading the state failed", None))?;
        let missing = header.payload_bytes - payload.len() as u64;
        if missing > 0 {
            return Err(state_error(format!(
                "the state is cut short: {missing} bytes are missing"
            )));
        }
        if header.checksum_with(&payload) != header.checksum {
            return Err(state_error("the state is damaged: its checksum is wrong"));
        }
        self.raw.restore_state(seq.0, &payload)?;
        let (first, last) = (self.raw.seq_pos_min(seq.0), self.raw.seq_pos_max(seq.0));
        if (first, last) != (header.pos_min, header.pos_max) {
            return Err(state_error(format!(
                "the state holds positions {first} to {last} instead of {} to {}",
                header.pos_min, header.pos_max
            )));
        }
        usize::try_from(last + 1).map_err(|_| state_error("the state has negative positions"))
    }

    fn header(&self, seq: SeqId, payload_bytes: u64) -> Header {
        Header {
            model: self.model().fingerprint(),
            build: build_fingerprint(),
            type_k: self.settings.type_k.id(),
            type_v: self.settings.type_v.id(),
            pos_min: self.raw.seq_pos_min(seq.0),
            pos_max: self.raw.seq_pos_max(seq.0),
            payload_bytes,
            checksum: 0,
        }
    }

    fn check_header(&self, header: &Header) -> Result<()> {
        if header.model != self.model().fingerprint() {
            return Err(state_error("the state belongs to another model"));
        }
        if header.build != build_fingerprint() {
            return Err(state_error("the state was saved by another version of this program"));
        }
        if (header.type_k, header.type_v) != (self.settings.type_k.id(), self.settings.type_v.id())
        {
            return Err(state_error(format!(
                "the state was saved with other cache types than {} and {}",
                self.settings.type_k, self.settings.type_v
            )));
        }
        let positions = usize::try_from(header.pos_max).unwrap_or(0);
        if positions >= self.n_ctx_seq() && !self.model().is_recurrent() {
            return Err(state_error(format!(
                "the state holds {} tokens but the context {}",
                positions.saturating_add(1),
                self.n_ctx_seq()
            )));
        }
        let most = self.settings.state_limit;
        if header.payload_bytes > most {
            return Err(state_error(format!(
                "the state claims {} but this context's states have at most {}",
                human(header.payload_bytes),
                human(most)
            )));
        }
        Ok(())
    }
}

/// Stands for what decides the layout of llama.cpp's payload besides the model: its version, patches and the byte order.
fn build_fingerprint() -> u128 {
    let info = ggml_sys::build_info();
    let mut hash = Xxh3::new();
    for part in [info.llama_commit, info.patch_set] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(&1u16.to_ne_bytes());
    hash.digest128()
}

fn state_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::State, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            model: 7 << 100,
            build: 9,
            type_k: 1,
            type_v: 8,
            pos_min: 0,
            pos_max: 41,
            payload_bytes: 5,
            checksum: 3,
        }
    }

    #[test]
    fn headers_round_trip() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes).unwrap(), header());
    }

    #[test]
    fn other_files_and_versions_are_refused() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        let error = Header::decode(&bytes).unwrap_err();
        assert!(error.message().contains("format 2"), "{error}");
        bytes[0] = b'G';
        assert_eq!(Header::decode(&bytes).unwrap_err().kind(), &ErrorKind::State);
    }

    #[test]
    fn the_checksum_covers_the_header_too() {
        let sum = header().checksum_with(b"bytes");
        assert_ne!(sum, header().checksum_with(b"byteS"));
        assert_ne!(sum, Header { pos_max: 40, ..header() }.checksum_with(b"bytes"));
        assert_eq!(sum, Header { checksum: 99, ..header() }.checksum_with(b"bytes"));
    }
}
