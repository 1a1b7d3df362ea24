//! Links whisper.cpp and not this library: what [`whisper`] gives without a neighbour.

#[path = "../whisper.rs"]
mod whisper;

fn main() -> anyhow::Result<()> {
    print!("{}", whisper::run()?);
    Ok(())
}
