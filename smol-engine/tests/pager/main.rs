//! The expert pager from outside: bytes, faults, limits, many threads.

mod bytes;
mod faults;
mod fixture;
mod limits;
mod prediction;
mod simulated;
mod stop;
mod warm;
mod watched;
