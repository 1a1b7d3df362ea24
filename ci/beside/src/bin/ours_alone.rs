//! Links this library and no whisper.cpp: what [`ours`] gives without a neighbour.

#[path = "../ours.rs"]
mod ours;

fn main() -> anyhow::Result<()> {
    print!("{}", ours::run()?);
    Ok(())
}
