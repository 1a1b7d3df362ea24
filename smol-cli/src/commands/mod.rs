//! The commands, a file each.

pub mod completions;
pub mod doctor;
pub mod inspect;
pub mod models;
pub mod pull;
