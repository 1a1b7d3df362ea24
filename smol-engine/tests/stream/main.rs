//! Weight streaming from outside: bytes, faults, zones, many runs and threads.

mod bytes;
mod faults;
#[path = "../files/mod.rs"]
mod files;
mod fixture;
mod runs;
mod zones;
