//! Memory that every command needs.

use crate::failure::Failure;
use crate::units::bytes;
use anyhow::Result;
use smol_engine::machine::Memory;

/// Memory below which not even a file's header is read: the process would end where an allocation
/// fails, without a word.
const MIN_MEMORY: u64 = 24 << 20;

/// Refuses to begin where so little memory is left that an allocation may end the process.
pub fn check() -> Result<()> {
    match Memory::probe().usable() {
        Some(available) if available < MIN_MEMORY => Err(too_little(available).into()),
        _ => Ok(()),
    }
}

fn too_little(available: u64) -> Failure {
    let left = bytes(available);
    Failure::new(format!(
        "only {left} of memory are left to this process, too little for any model"
    ))
    .advice("raise its limit, or end other programs")
}
