//! The commands, a file each.

pub mod completions;
pub mod doctor;
pub mod models;
pub mod pull;
