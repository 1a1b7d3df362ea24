//! Sizes of pools on the command line.

use std::collections::BTreeSet;
use std::str::FromStr;

/// Sizes that are simulated if a range has no step.
const SIZES_OF_A_RANGE: u32 = 8;
/// Most sizes of one range.
const MOST_SIZES: u32 = 1000;
/// More experts than any layer has.
const LARGEST: u32 = 1 << 16;

/// Numbers of experts: `16`, `8..64`, `8..64:4`, or several of these with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes(BTreeSet<u32>);

impl Sizes {
    /// From an eighth of the experts to all.
    pub fn eighths(experts: u32) -> Self {
        Self((1..=8).map(|eighth| (experts * eighth / 8).max(1)).collect())
    }

    /// Returns the sizes, no less than `least` and no more than `most` each, and whether one was
    /// out of this range.
    pub fn clamped(&self, least: u32, most: u32) -> (Vec<u32>, bool) {
        let clamped: BTreeSet<_> = self.0.iter().map(|size| *size.max(&least).min(&most)).collect();
        let changed = self.0.iter().any(|size| !(least..=most).contains(size));
        (clamped.into_iter().collect(), changed)
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = BTreeSet::new();
        for part in text.split(',') {
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, Some(number(step)?)),
                None => (part, None),
            };
            match (range.split_once(".."), step) {
                (Some((from, to)), step) => {
                    let (from, to) = (number(from)?, number(to)?);
                    if from > to {
                        return Err(format!("{from}..{to} holds no size"));
                    }
                    let step = step.unwrap_or((to - from).div_ceil(SIZES_OF_A_RANGE - 1).max(1));
                    if (to - from) / step >= MOST_SIZES {
                        return Err(format!("{part} holds more than {MOST_SIZES} sizes"));
                    }
                    sizes.extend((from..=to).step_by(step as usize));
                }
                (None, None) => {
                    sizes.insert(number(range)?);
                }
                (None, Some(_)) => return Err("a step needs a range, such as 8..64:4".to_owned()),
            }
        }
        Ok(Self(sizes))
    }
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..=LARGEST) => Ok(number),
        Ok(_) => Err(format!("a size is 1 to {LARGEST}")),
        Err(_) => Err("write N, FROM..TO or FROM..TO:STEP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Vec<u32> {
        text.parse::<Sizes>().unwrap().0.into_iter().collect()
    }

    #[test]
    fn numbers_and_ranges() {
        assert_eq!(sizes("16"), [16]);
        assert_eq!(sizes("8..64"), [8, 16, 24, 32, 40, 48, 56, 64]);
        assert_eq!(sizes("8..64:28"), [8, 36, 64]);
        assert_eq!(sizes("4..6"), [4, 5, 6]);
        assert_eq!(sizes("7..7"), [7]);
        assert_eq!(sizes("40,4..6,5"), [4, 5, 6, 40]);
        for wrong in [
            "",
            "x",
            "0",
            "-1",
            "8..",
            "..8",
            "8..4",
            "8:2",
            "1..9:0",
            "1..60000:1",
            "1,,2",
            "99999999999",
            "1..2..3",
            "1..9:2:3",
        ] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_that_no_layer_has_are_told_of() {
        let sizes: Sizes = "2..10:4".parse().unwrap();
        assert_eq!(sizes.clamped(1, 10), (vec![2, 6, 10], false));
        assert_eq!(sizes.clamped(4, 8), (vec![4, 6, 8], true));
        assert_eq!(sizes.clamped(7, 7), (vec![7], true));
        assert_eq!(Sizes::eighths(48).0.len(), 8);
        assert_eq!(Sizes::eighths(3).clamped(1, 3).0, [1, 2, 3]);
    }
}
