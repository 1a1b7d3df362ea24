//! The expert pager from outside: bytes, faults, limits, many threads.

mod bytes;
mod faults;
#[path = "../files/mod.rs"]
mod files;
mod fixture;
mod limits;
mod prediction;
mod simulated;
mod stop;
mod warm;
mod watched;
