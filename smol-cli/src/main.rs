//! `smol`: the command line of smolmaxxing.
fn main() {}
